#!/usr/bin/env python3
"""Tests that the demo can fail: it must notice a ddplaunch that only pretends to work."""
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

DEMO = pathlib.Path(__file__).resolve().parent / "demo"
GOOD = "echo '[127.0.0.2:0] test accuracy 87.2 % (8718/10000)'"
# Starts a process with the job's mark that leaves its session, as a data loader may.
LEAVES_ONE = """
while [ $# -gt 0 ]; do [ "$1" = --job-id ] && job=$2; shift; done
DDPLAUNCH_JOB_ID=$job setsid sleep 60 >/dev/null 2>&1 </dev/null &
echo $! > "$PID_FILE"
"""


class Demo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = pathlib.Path(folder.name, "bin")
        self.bin.mkdir()
        self.pid_file = pathlib.Path(folder.name, "pid")
        self.data = pathlib.Path(folder.name, "data")
        self.data.mkdir()

    def demo(self, body):
        for name in ("ddplaunch", "ddplaunchd", "train"):
            program = self.bin / name
            program.write_text("#!/bin/sh\n" + (body if name == "ddplaunch" else "exit 1") + "\n")
            program.chmod(0o755)
        env = dict(os.environ, PID_FILE=str(self.pid_file), DDP_DEMO_DATA=str(self.data))
        done = subprocess.run([DEMO, self.bin], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=env, timeout=60)
        if done.returncode == 77:
            print("skipped: " + done.stderr, flush=True)
            os._exit(77)  # unittest would count SystemExit as an error
        return done.returncode, (done.stderr.splitlines() or [""])[-1]

    def test_a_good_run_passes(self):
        self.assertEqual(self.demo(GOOD), (0, ""))

    def test_low_accuracy(self):
        self.assertEqual(self.demo("echo 'test accuracy 79.9 %'"),
                         (1, "demo: FAILED: test accuracy 79.9 % is below 80 %"))

    def test_no_accuracy(self):
        self.assertEqual(self.demo("echo done"), (1, "demo: FAILED: the output contains no test accuracy"))

    def test_exit_code(self):
        self.assertEqual(self.demo(GOOD + "; exit 113"), (1, "demo: FAILED: ddplaunch exited with 113"))

    def test_a_leftover_process(self):
        code, last = self.demo(LEAVES_ONE + GOOD)
        pid = int(self.pid_file.read_text())
        os.kill(pid, signal.SIGKILL)
        self.assertEqual((code, last.strip()), (1, f"demo: FAILED: processes of the job are left: {pid}"))

    def test_no_programs(self):
        self.bin.rmdir()
        self.bin.mkdir()
        done = subprocess.run([DEMO, self.bin], text=True, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr),
                         (1, f"demo: FAILED: {self.bin} has no ddplaunch, ddplaunchd and train: run ./dev build\n"))


if __name__ == "__main__":
    unittest.main()
