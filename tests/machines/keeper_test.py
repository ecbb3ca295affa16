#!/usr/bin/env python3
"""Tests what is left on a node when agent and keeper are killed together: nothing."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.machines import MachinesTest, main_side_by_side

# Each worker leaves the reach of its process group, its session and the death signal: a child in a session of its own.
WORKER = """#!/bin/sh
setsid sleep 1000 &
until [ "$(cut -d ' ' -f 6 /proc/$!/stat)" = $! ]; do sleep 0.02; done
echo up
"""
# As `pkill -9 -f ddplaunchd`, without the program: on this machine there are the processes of one job only.
KILL = """
for process in /proc/[0-9]*; do
  [ "${process#/proc/}" != $$ ] && grep -qs ddplaunchd "$process/cmdline" && echo "${process#/proc/}"
done | xargs kill -9
"""


class WithoutKeeper(MachinesTest):
    # The sweep is bounded in time, and so is what it may leave to the death of the machine's last job.
    def left(self):
        """Returns the command lines on n1 that no sshd has started."""
        return [words for words in self.machines["n1"].processes().values() if "sshd" not in words]

    def assert_swept(self, process):
        done = self.finish(process)
        self.assert_code(done, 113)
        self.assertEqual(self.left(), [])
        self.assertRegex(done.err, r"(?i)\bn1\b.*\b(process|processes)\b")  # what the sweep found
        return done

    def started(self, rest):
        process = self.start(self.script("worker.sh", WORKER + rest))
        for _ in range(2):
            self.assertEqual(process.stdout.readline(), "up\n")
        return process

    def test_agent_and_keeper_are_killed_together(self):
        process = self.started("exec sleep 1000\n")
        self.assertGreater(len(self.machines["n1"].kill("ddplaunchd")), 1, "agent and keeper")
        self.assert_swept(process)

    def test_a_worker_kills_agent_and_keeper(self):
        process = self.started(f'until [ -e {self.dir}/go ]; do sleep 0.02; done\n[ "$(hostname)" = n1 ] || exec sleep 1000\n{KILL}\nsleep 1000\n')
        (self.dir / "go").touch()
        self.assert_swept(process)


if __name__ == "__main__":
    main_side_by_side(2)
