#!/usr/bin/env python3
"""Tests outages of a node's link against the default --node-timeout of 15 s: a shorter one costs nothing, for good is a loss."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import wait_until
from tests.support.machines import MachinesTest, main_side_by_side

NODE_TIMEOUT_S = 15

# worker.sh DIRECTORY PAUSE: prints a line each PAUSE until it may end. A PAUSE of 0 is silence.
WORKER = """#!/bin/sh
echo up
line=0
until [ -e "$1/end" ]; do
  if [ "$2" = 0 ]; then sleep 0.1; continue; fi
  echo "line $line"
  line=$((line + 1))
  sleep "$2"
done
echo "lines $line"
"""


class Outages(MachinesTest):
    """The last machine is cut off. Its worker and the other one go on meanwhile. By itself TCP repeats a lost
    packet after 0.3, 0.5, 0.9, 1.7, 3.3, 6.6 and 13.1 s (outage_with_slow_retransmission.txt)."""

    def wait_for_a_heartbeat(self, name):
        """Waits for the next packet on a link that is silent but for the heartbeats, one in a second."""
        packets = self.machines[name].path("/sys/class/net/eth0/statistics/rx_packets")
        quiet_since = time.monotonic()
        while True:
            before = packets.read_text()
            wait_until(lambda: packets.read_text() != before)
            if time.monotonic() - quiet_since > 0.5:
                return
            quiet_since = time.monotonic()

    times = ()  # options of the job

    def launch(self, pause):
        return self.start(*self.times, self.script("worker.sh", WORKER), self.dir, pause)

    def begin(self, pause):
        process = self.launch(pause)
        for rank in range(2):  # in the job's files, since communicate() misses lines that readline() has buffered
            self.assertTrue(wait_until(lambda rank=rank: self.shown(rank)), "the job did not start")
        return process

    def shown(self, rank):
        path = self.job_dir / f"attempt_0/rank_{rank:05}.stdout"
        return path.read_text().splitlines() if path.exists() else []

    def cut_for(self, seconds, pause=0, cut=None):
        process = self.begin(pause)
        if pause == 0:
            self.wait_for_a_heartbeat(self.machines.names[-1])
            time.sleep(0.9)  # the worst moment: the next heartbeat is lost, 0.1 s after the cut
        began = time.monotonic()
        (cut or self.machines.cut_unnoticed)(self.machines.names[-1])
        time.sleep(began + seconds - time.monotonic())
        self.machines.rejoin(self.machines.names[-1])
        time.sleep(NODE_TIMEOUT_S + 3 - seconds)  # a loss would be found by then
        (self.dir / "end").touch()
        done = self.finish(process)
        self.assertEqual(done.code, 0, done.err)  # the job may not restart
        for rank in range(2):
            lines = self.shown(rank)
            self.assertEqual(lines, ["up", *(f"line {number}" for number in range(len(lines) - 2)), f"lines {len(lines) - 2}"])

    def cut_for_good(self, meanwhile=None, limit=NODE_TIMEOUT_S + 2, times=("--master-timeout", "15s")):
        self.lease_s = 10
        self.times = times  # a shorter lease than by default, so that the test ends sooner
        process = self.begin(0)
        began = time.monotonic()
        self.machines.cut(self.machines.names[-1])
        if meanwhile:
            meanwhile(process)
        for line in process.stderr:
            found = re.search(r"no heartbeat for (\d+)", line)
            if found and limit <= int(found[1]) < limit + 10:
                break
        else:
            self.fail("the loss is not reported")
        took = time.monotonic() - began
        self.assertLess(took, limit + 20)
        self.assertGreater(took, limit - 3.5)  # the last byte came up to a heartbeat before the cut
        self.assert_code(self.finish(process), 113)


class OverLibssh(Outages):
    def test_8_seconds_with_output(self):
        self.cut_for(8, 0.01)

    def test_14_5_seconds(self):
        self.cut_for(14.5)

    def test_14_5_seconds_with_output(self):
        self.cut_for(14.5, 0.01)

    def test_14_5_seconds_without_a_plug(self):
        self.cut_for(14.5, cut=self.machines.cut)

    def test_for_good(self):
        self.cut_for_good()

    def test_for_good_and_a_late_master(self):
        # A moment in which the master does not run, such as a long page fault, does not make the node's silence shorter.
        def stop_for_a_moment(process):
            time.sleep(7)
            os.kill(self.master(process), signal.SIGSTOP)
            time.sleep(2.5)
            self.resume(process)
        self.cut_for_good(stop_for_a_moment)


class OverTheSshProgram(Outages):
    def transport(self):
        return *super().transport(), "--ssh-command", "ssh"

    def test_14_5_seconds_with_output(self):
        self.cut_for(14.5, 0.01)

    def test_for_good(self):
        # Nobody can ask the machine whether it answers, so the node gets twice the time and 2 s.
        self.cut_for_good(limit=14, times=("--node-timeout", "6s", "--master-timeout", "6s"))


class OverDaemons(Outages):
    def setUp(self):
        super().setUp()
        self.token = self.dir / "token"
        self.machines["n0"].run(self.machines.programs / "ddplaunchd", "--new-token", self.token)
        for name in self.machines.names:
            log = self.dir / f"daemon.{name}"
            self.machines[name].spawn(log, self.machines.programs / "ddplaunchd", "--listen", "--token-file", self.token)
            self.assertTrue(wait_until(lambda log=log: "listening at" in log.read_text()))

    def transport(self):
        return "--launcher", "daemon", "--token-file", self.token

    def test_14_5_seconds(self):
        self.cut_for(14.5)

    def test_for_good(self):
        self.cut_for_good()


class PerNode(Outages):
    """A ddplaunch on n0 and one on n1."""

    count = 1

    def launch(self, pause):
        token = self.dir / "token"
        self.machines["n0"].run(self.machines.programs / "ddplaunchd", "--new-token", token)
        worker = self.script("worker.sh", WORKER)
        self.job_dir = self.dir / "job-n0"
        nodes = []
        for rank, name in enumerate(("n0", "n1")):
            words = [self.machines.programs / "ddplaunch", "--job-id", self.job, "--job-dir", self.dir / f"job-{name}", "--nnodes", 2, "--node-rank", rank,
                     "--master-addr", "n0", "--token-file", token, "--label", "", *self.times, worker, self.dir, pause]
            nodes.append(subprocess.Popen(self.machines[name].words(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          text=True, env=self.env))
            self.addCleanup(self.end_process, nodes[-1])
        self.other = nodes[1]
        return nodes[0]

    def finish(self, process, **options):
        self.other.communicate(timeout=60)
        return super().finish(process, **options)

    def test_14_5_seconds_with_output(self):
        self.cut_for(14.5, 0.01)

    def test_for_good(self):
        self.cut_for_good(limit=14, times=("--node-timeout", "6s", "--master-timeout", "6s"))


if __name__ == "__main__":
    main_side_by_side(8)
