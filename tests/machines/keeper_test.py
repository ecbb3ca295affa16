#!/usr/bin/env python3
"""Tests what is left on a node when agent and keeper are killed together: nothing."""

import json
import pathlib
import re
import subprocess
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
    def left(self):
        """Returns the command lines of the processes on n1 other than sshd. One that has begun to end has none."""
        return [words for words in self.machines["n1"].processes().values() if words and "sshd" not in words]

    def assert_warnings_are_kept(self, err):
        prefix = "ddplaunch: warning: "
        said = [line.removeprefix(prefix) for line in err.splitlines() if line.startswith(prefix)]
        kept = json.loads((self.dir / "end.json").read_text())["warnings"]
        self.assertEqual(kept, said)
        for found in re.findall(r"^ddplaunch: (?:warning: )?(n1: \d+ process.*)$", err, re.M):
            self.assertIn(found, kept)

    def assert_swept(self, process):
        done = self.finish(process)
        self.assert_code(done, 113)
        self.assertEqual(self.left(), [])
        self.assertRegex(done.err, r"\bn1\b.*\bprocess(es)?\b")  # what the sweep found
        self.assert_warnings_are_kept(done.err)

    def started(self, rest, *args):
        process = self.start("--report", self.dir / "end.json", *args, self.script("worker.sh", WORKER + rest))
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

    def test_a_host_that_cannot_be_reached(self):
        process = self.started("exec sleep 1000\n", "--node-timeout", "3s", "--master-timeout", "3s")
        self.machines.cut("n1")
        self.machines["n1"].kill("ddplaunchd")
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 113, err)
        self.assertIn("sleep 1000", self.left())
        self.assertIn(f"ddplaunch clean {self.job}", err)
        self.assert_warnings_are_kept(err)
        self.machines.rejoin("n1")
        clean = self.machines["n0"].words(self.machines.programs / "ddplaunch", "clean", self.job)
        done = subprocess.run(clean, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual(self.left(), [], done.stdout + done.stderr)


if __name__ == "__main__":
    main_side_by_side(3)
