#!/usr/bin/env python3
"""Tests the machines themselves: each has everything of its own, links can be cut, and nothing is left of them."""

import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import SOURCE, is_running, wait_until
from tests.support.machines import MachinesTest, main_side_by_side

# A test that does not end by itself.
ENDLESS = """
import os, signal, sys, unittest
sys.path.insert(0, sys.argv[1])
from tests.support.machines import MachinesTest, children_of

class Endless(MachinesTest):
    def runTest(self):
        self.machines["n1"].spawn(self.dir / "log", "sleep", "1000")
        holders = children_of(os.getpid())
        print(self.dir, *holders, *(child for holder in holders for child in children_of(holder)), flush=True)
        signal.pause()

unittest.TextTestRunner().run(Endless())
"""


class Harness(MachinesTest):
    def reaches(self, name):
        code = "import socket, sys; socket.create_connection((sys.argv[1], 22), 1)"
        return self.machines["n0"].run("/usr/bin/python3", "-c", code, name, check=False).returncode == 0

    def test_a_machine_has_everything_of_its_own(self):
        for file in ("/tmp/own", "/dev/shm/own", "/var/tmp/own", "/run/ann/own"):
            self.machines["n1"].run("touch", file)
            self.assertTrue(self.machines["n1"].path(file).exists())
            self.assertFalse(self.machines["n2"].path(file).exists())
            self.assertFalse(os.path.exists(file))
        for command in ("hostname", "cat /proc/sys/kernel/random/boot_id", "readlink /proc/self/ns/pid", "cat /sys/class/net/eth0/address"):
            seen = {machine.run("sh", "-c", command).stdout for machine in self.machines.machines.values()}
            self.assertEqual(len(seen), 3, seen)
        self.assertEqual(self.machines["n1"].run("sh", "-c", "id -un; pwd; ls /sys/fs/cgroup").stdout, f"ann\n{self.dir}\n")
        self.assertNotEqual(self.machines["n1"].run("touch", "/etc/own", check=False).returncode, 0)

    def test_a_job_of_an_ordinary_user_logs_in(self):
        done = self.run_job("sh", "-c", "echo $(id -un) on $(hostname) in $HOME")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["ann on n1 in /run/ann", "ann on n2 in /run/ann"])

    def test_links_are_cut_and_rejoined(self):
        for cut in (self.machines.cut, self.machines.cut_unnoticed):
            self.assertTrue(self.reaches("n1"))
            cut("n1")
            self.assertFalse(self.reaches("n1"))
            self.assertTrue(self.reaches("n2"))
            self.machines.rejoin("n1")
            self.assertTrue(wait_until(lambda: self.reaches("n1")))

    def test_processes_are_killed_in_one_machine(self):
        for name in self.machines.names:
            self.machines[name].spawn(self.dir / f"log.{name}", "sleep", "1000")
            self.assertTrue(wait_until(lambda name=name: "sleep 1000" in self.machines[name].processes().values()))
        self.assertEqual(len(self.machines["n1"].kill("sleep 1000")), 1)
        self.assertTrue(wait_until(lambda: "sleep 1000" not in self.machines["n1"].processes().values()))
        self.assertIn("sleep 1000", self.machines["n2"].processes().values())

    def test_no_machine_outlives_its_test(self):
        test = subprocess.Popen([sys.executable, "-c", ENDLESS, SOURCE], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.addCleanup(test.stdout.close)
        directory, *pids = test.stdout.readline().split()
        self.assertGreater(len(pids), 3)
        test.send_signal(signal.SIGKILL)
        test.wait()
        self.assertTrue(wait_until(lambda: not any(map(is_running, pids))), pids)
        subprocess.run(["rm", "-r", directory], check=True)  # the only thing that a killed test leaves


if __name__ == "__main__":
    main_side_by_side(3)
