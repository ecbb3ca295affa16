#!/usr/bin/env python3
"""Tests a job over a real network between two network namespaces: the address at which the ranks meet, and the effect of a
cut link. Needs root and ip(8)."""

import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, kill_all_in, live_processes_with, main, wait_until

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip") and SSHD, "needs root, ip(8) and sshd")
class TwoMachines(LaunchTest):
    """`near` is the master's machine, `far` the other one. 10.77.0.0/24 joins them, and each has a docker0."""

    def setUp(self):
        super().setUp()
        self.near, self.far = f"ddpn{os.getpid()}", f"ddpf{os.getpid()}"
        try:
            for name in (self.near, self.far):
                ip("netns", "add", name)
                self.addCleanup(ip, "netns", "del", name)
            ip("-n", self.near, "link", "add", "wire0", "type", "veth", "peer", "name", "wire0", "netns", self.far)
        except subprocess.CalledProcessError as error:
            raise unittest.SkipTest(f"no network of namespaces can be made here: {error.stderr.decode().strip()}")
        for name, last in ((self.near, 1), (self.far, 2)):
            ip("-n", name, "addr", "add", f"10.77.0.{last}/24", "dev", "wire0")
            ip("-n", name, "link", "add", "docker0", "type", "veth", "peer", "name", "vethc0")
            ip("-n", name, "addr", "add", "172.17.0.1/16", "dev", "docker0")
            for device in ("lo", "wire0", "docker0", "vethc0"):
                ip("-n", name, "link", "set", device, "up")
        # The kernel reports a new carrier up to a second late. A node in use has had its carrier for long.
        self.assertTrue(wait_until(lambda: all(self.has_carrier(name) for name in (self.near, self.far))))
        self.start_sshd()

    def has_carrier(self, name):
        shown = subprocess.run(["ip", "-n", name, "link", "show", "wire0"], check=True, capture_output=True, text=True)
        return "LOWER_UP" in shown.stdout and "state UP" in shown.stdout

    def start_sshd(self):
        for name in ("host_key", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.dir / name], check=True)
        shutil.copy(self.dir / "id.pub", self.dir / "authorized_keys")
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        config = self.dir / "sshd_config"
        config.write_text(f"Port 2222\nListenAddress 10.77.0.2\nHostKey {self.dir}/host_key\nPidFile none\n"
                          f"AuthorizedKeysFile {self.dir}/authorized_keys\nStrictModes no\nUsePAM no\n"
                          "PermitRootLogin prohibit-password\nSetEnv SHLVL=1\n")
        sshd = subprocess.Popen(["ip", "netns", "exec", self.far, SSHD, "-D", "-e", "-f", config],
                                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(sshd.wait)
        self.addCleanup(kill_all_in, self.far)
        for line in sshd.stderr:
            if "Server listening" in line:
                break
        else:
            self.fail("sshd did not start")
        key = (self.dir / "host_key.pub").read_text()
        (self.dir / "known_hosts").write_text(f"[10.77.0.2]:2222 {key}")
        (self.dir / "ssh_config").write_text(f"Host *\n Port 2222\n IdentityFile {self.dir}/id\n IdentitiesOnly yes\n"
                                             f" UserKnownHostsFile {self.dir}/known_hosts\n User root\n")

    def command(self, *args):
        return ["ip", "netns", "exec", self.near,
                *super().command("--host", "localhost:1,10.77.0.2:1", "--ssh-config", self.dir / "ssh_config",
                                 "--label", "", *args)]

    def test_ranks_meet_on_the_shared_network(self):
        done = self.run_job("sh", "-c", "echo $RANK $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 10.77.0.1 wire0 =wire0", "1 10.77.0.1 wire0 =wire0"])

    def test_train_works_across_the_network(self):
        done = self.run_job("train", "--device", "cpu", "--data", "synthetic", "--limit", 400, "--batch-size", 50, timeout=120)
        self.assert_code(done, 0)
        self.assertIn("weights equal on 2 ranks", done.out)

    def test_network_that_a_node_lacks_is_refused(self):
        done = self.run_job("--network", "10.78.0.0/16", "true")
        self.assertNotEqual(done.code, 0)
        self.assertIn("10.78.0.0/16", done.err)
        self.assertIn("10.77.0.2", done.err)

    def test_a_closed_link_loses_the_node_and_ends_both_sides(self):
        process = self.start("--node-timeout", "2s", "--master-timeout", "2s", "sh", "-c", "echo up; sleep 100")
        self.assertEqual([process.stdout.readline(), process.stdout.readline()], ["up\n", "up\n"])
        cut = time.monotonic()
        ip("-n", self.near, "link", "set", "wire0", "down")
        out, err = process.communicate(timeout=40)
        self.assertEqual(process.returncode, 113, err)
        self.assertLess(time.monotonic() - cut, 20)
        self.assertIn("10.77.0.2", err)
        # The far side detects the loss itself.
        mark = f"DDPLAUNCH_JOB_ID={self.job}\0"
        self.assertTrue(wait_until(lambda: not live_processes_with(mark), 20), live_processes_with(mark))


    def drop_packets(self):
        """Drops packets in both directions without an error: frames go to a machine that does not exist."""
        for name, peer in ((self.near, 2), (self.far, 1)):
            ip("-n", name, "neigh", "replace", f"10.77.0.{peer}", "lladdr", "02:00:00:00:00:99", "dev", "wire0", "nud",
               "permanent")

    def pass_packets(self):
        for name, peer in ((self.near, 2), (self.far, 1)):
            ip("-n", name, "neigh", "del", f"10.77.0.{peer}", "dev", "wire0")

    def test_dropped_packets_lose_the_node_and_end_both_sides(self):
        process = self.start("--node-timeout", "2s", "--master-timeout", "2s", "--stop-grace", "1s", "sh", "-c",
                             'trap "" TERM; echo up; while :; do sleep 0.1; done')
        self.assertEqual([process.stdout.readline(), process.stdout.readline()], ["up\n", "up\n"])
        cut = time.monotonic()
        self.drop_packets()
        out, err = process.communicate(timeout=40)
        self.assertEqual(process.returncode, 113, err)
        # Silence is checked once a second. Then the workers of the near side have their grace.
        self.assertLess(time.monotonic() - cut, 2 + 1 + 1 + 2)
        self.assertRegex(err.splitlines()[-1], r"^ddplaunch: exit 113: node 10\.77\.0\.2: no heartbeat for [23](\.\d)? s "
                         r"\(--node-timeout\)$")
        self.assertRegex(err, r"\n  root cause: node 10\.77\.0\.2: no heartbeat for [23](\.\d)? s \(--node-timeout\); the machine, its "
                         r"network, or the agent hangs\n")
        # The far side detects the loss itself, while the link is still cut.
        mark = f"DDPLAUNCH_JOB_ID={self.job}\0"
        self.assertTrue(wait_until(lambda: not live_processes_with(mark), 20), live_processes_with(mark))
        self.assertLess(time.monotonic() - cut, 2 + 1 + 1 + 3)

    def test_packets_dropped_for_a_moment_do_no_harm(self):
        process = self.start("--node-timeout", "8s", "--master-timeout", "8s", "sh", "-c",
                             "echo up; while ! [ -e go ]; do sleep 0.1; done; echo bye")
        self.assertEqual([process.stdout.readline(), process.stdout.readline()], ["up\n", "up\n"])
        self.drop_packets()
        time.sleep(2.5)  # a few heartbeats
        self.pass_packets()
        (self.dir / "go").touch()
        done = self.finish(process, timeout=30)
        self.assert_code(done, 0)
        self.assertEqual(done.out.count("bye"), 2)


if __name__ == "__main__":
    main()
