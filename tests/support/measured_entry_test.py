#!/usr/bin/env python3
"""Tests measured_entry.py: it changes nothing about an entry of ctest that leaves nothing, and its figures are right."""

import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).with_name("measured_entry.py")
BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


class MeasuredEntry(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-measured-")
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "entries.tsv"

    def start(self, *command, **popen):
        return subprocess.Popen([sys.executable, "-I", "-S", PROGRAM, self.file, "an entry", *command], text=True, **popen)

    def run_entry(self, *command):
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def figures(self):
        """Returns the columns of the only line, as numbers after the name."""
        [line] = self.file.read_text().splitlines()
        name, *numbers = line.split("\t")
        return name, *map(float, numbers)

    def test_output_and_exit_code_are_the_commands(self):
        self.assertEqual(self.run_entry("sh", "-c", "echo out; echo err >&2; exit 77"), (77, "out\n", "err\n"))
        name, wall, _, code = self.figures()
        self.assertEqual((name, code), ("an entry", 77))
        self.assertLess(wall, 30)

    def test_a_signal_that_ends_the_command_ends_the_entry(self):
        self.assertEqual(self.run_entry("sh", "-c", "kill -SEGV $$")[0], -signal.SIGSEGV)
        self.assertEqual(self.figures()[3], -signal.SIGSEGV)

    def test_a_signal_to_the_entry_reaches_the_command(self):
        process = self.start("sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done", stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.terminate()
        self.assertEqual(process.wait(60), 5)

    def test_the_command_gets_the_signals_as_they_were(self):
        shown = ("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
        plain = subprocess.run(shown, capture_output=True, text=True, check=True, restore_signals=True).stdout
        self.assertEqual(self.run_entry(*shown), (0, plain, ""))

    def test_cpu_time_of_a_daemon_counts(self):
        # The daemon's parent ends at once. The command waits until the daemon has ended and was reaped.
        daemon = f"import os\nif pid := os.fork(): print(pid, flush=True); os._exit(0)\nos.setsid()\n{BURN}"
        command = 'pid=$("$0" -c "$1"); while kill -0 $pid 2>/dev/null; do sleep 0.01; done'
        self.assertEqual(self.run_entry("sh", "-c", command, sys.executable, daemon)[0], 0)
        self.assertGreater(self.figures()[2], 0.25)

    def run_impatient(self, line):
        """Returns exit code and output of a shell's line, whose processes get 0.3 s to end after it."""
        entry = f"import sys; sys.path.append({str(PROGRAM.parent)!r}); import measured_entry as m; m.PATIENCE_S = 0.3; m.main()"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", entry, self.file, "an entry", "sh", "-c", line], capture_output=True, text=True,
                              cwd=self.file.parent)
        return done.returncode, done.stdout

    def test_a_process_that_goes_on_fails_the_entry_and_is_killed(self):
        code, out = self.run_impatient("setsid sh -c 'sleep 60 & echo >ready; wait' & echo $!; until [ -e ready ]; do sleep 0.01; done")
        pid = int(out.splitlines()[0])
        self.assertEqual(code, 1)
        self.assertRegex(out, rf"left by this entry:\n  process {pid}: sh -c sleep 60 & echo >ready; wait\n  process \d+: sleep 60\n$")
        for word in re.findall(r"process (\d+)", out):
            self.assertFalse(pathlib.Path("/proc", word).exists())
        self.assertEqual(self.run_impatient("sleep 60 & exit 77")[0], 1)
        self.assertEqual(self.run_impatient("sleep 60 & exit 5")[0], 5)
        self.assertEqual(self.run_impatient("sleep 60 & kill -SEGV $$")[0], -signal.SIGSEGV)

    def test_a_process_that_ends_in_time_fails_nothing(self):
        self.assertEqual(self.run_entry("sh", "-c", "sleep 0.3 & exit 0"), (0, "", ""))

    def test_a_temporary_file_fails_the_entry_and_is_removed(self):
        code, out = self.run_impatient("cd $(mktemp -d); pwd; touch file; stat -c %a $TMPDIR")
        left, mode, *said = out.splitlines()
        self.assertRegex(left, r"^/tmp/e\d+/[\w.]+$")
        self.assertEqual((code, mode, said), (1, "1777", ["left by this entry:", f"  file {left}"]))
        self.assertFalse(pathlib.Path(left).parent.exists())
        code, out = self.run_impatient("d=$(mktemp -d); rmdir $d; dirname $d")
        self.assertEqual(code, 0)
        self.assertFalse(pathlib.Path(out.strip()).exists())

    def test_a_missing_program(self):
        code, _, err = self.run_entry("/nonexistent/program")
        self.assertEqual((code, err), (127, "measured_entry: /nonexistent/program: No such file or directory\n"))

    def test_the_slowest_entries(self):
        self.file.write_text("".join(f"entry{i}\t{i}.04\t{i / 2}\t0\n" for i in range(100)))
        done = subprocess.run([sys.executable, PROGRAM, "--slowest", self.file], capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        self.assertEqual((len(lines), lines[:2]), (11, ["  wall s    CPU s  entry", "    99.0     49.5  entry99"]))


if __name__ == "__main__":
    unittest.main()
