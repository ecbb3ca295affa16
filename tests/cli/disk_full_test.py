#!/usr/bin/env python3
"""Tests a job whose directory is on a disk that is full, recovers, is read-only, or is deleted: the job continues and reports
the problem.

The tests need a small tmpfs, so root and a kernel that lets it mount; they are skipped otherwise."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, LaunchTest, main, wait_until

# Prints 2 MB, waits for the file "go", and prints a word each 50 ms until the file "stop" exists.
WORKER = """#!/usr/bin/env python3
import os, pathlib, sys, time
for i in range(20000): print(f"{i:08d} " + "x" * 91)
sys.stdout.flush()
while not pathlib.Path("go").exists(): time.sleep(0.02)
count = 0
while not pathlib.Path("stop").exists():
    print(f"word {count}", flush=True)
    count += 1
    time.sleep(0.05)
print("end")
"""
FIRST = "".join(f"{i:08d} " + "x" * 91 + "\n" for i in range(20000))


class DiskFull(LaunchTest):
    def setUp(self):
        super().setUp()
        self.disk = self.dir / "disk"
        self.disk.mkdir()
        self.mount("size=1m")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.disk)], check=False, stderr=subprocess.DEVNULL)
        self.errors = self.dir / "errors"

    def mount(self, options):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "ddplaunch-test", str(self.disk)],
                              capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("cannot mount a tmpfs: " + done.stderr.strip())

    def start_job(self, *options):
        script = self.script("w.py", WORKER)
        self.job_dir = self.disk / "job"
        output = (self.dir / "out").open("wb")
        errors = self.errors.open("wb")
        process = subprocess.Popen(self.command("--job-dir", self.job_dir, "--nproc-per-node", 1, "--label", "none",
                                                *options, script),
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=self.env, cwd=self.dir)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def said(self, text):
        return wait_until(lambda: text in self.errors.read_text())

    def end(self, process):
        (self.dir / "go").touch()
        (self.dir / "stop").touch()
        self.assertEqual(process.wait(timeout=60), 0, self.errors.read_text())
        self.assert_nothing_left()
        return (self.dir / "out").read_text()

    def test_the_disk_is_full_and_then_has_space_again(self):
        process = self.start_job()
        file = self.job_dir / "attempt_0/rank_00000.stdout"
        self.assertTrue(self.said("No space left on device"), self.errors.read_text())
        self.mount("remount,size=64m")
        (self.dir / "go").touch()
        self.assertTrue(self.said("the job's files are written again"), self.errors.read_text())
        out = self.end(process)
        self.assertTrue(out.startswith(FIRST))
        self.assertTrue(out.endswith("\nend\n"))
        errors = self.errors.read_text()
        self.assertEqual(errors.count("No space left on device"), 1, errors)
        self.assertIn(f"ddplaunch: warning: no space left for the job's files: {file}: No space left on device; the job continues; "
                      f"its output is not saved until this is fixed\n", errors)
        again = re.search(r"ddplaunch: warning: the job's files are written again; missing: (\d+) bytes of (\S+)\n", errors)
        self.assertIsNotNone(again, errors)
        self.assertEqual(again[2], str(file))
        kept = file.read_text()
        self.assertEqual(len(kept) + int(again[1]), len(out))
        gaps = re.findall(r"(?m)^(\S+): (\d+) bytes missing at offset (\d+)$", (self.job_dir / "gaps.txt").read_text())
        self.assertEqual({gap[0] for gap in gaps}, {str(file)})
        self.assertEqual(sum(int(gap[1]) for gap in gaps), int(again[1]))
        # The file and its gaps add up to the output: an offset counts the bytes that are in the file.
        rebuilt, at = "", 0
        for _, missing, offset in gaps:
            rebuilt += kept[at:int(offset)]
            rebuilt += out[len(rebuilt):len(rebuilt) + int(missing)]
            at = int(offset)
        self.assertEqual(rebuilt + kept[at:], out)

    def test_a_disk_that_is_full_at_the_start_is_named_then(self):
        with (self.disk / "fill").open("wb", buffering=0) as fill, contextlib.suppress(OSError):
            while True:
                fill.write(b"x" * 4096)
        for words in ([], ["--quiet"], ["--dry-run"]):
            self.job_dir = self.disk / ("job" + "".join(words))
            done = subprocess.run(self.command("--job-dir", self.job_dir, *words, "true"), env=self.env, cwd=self.dir, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done)
            said = (f"ddplaunch: warning: no room for the report of this job in {self.job_dir}: No space left on device; the job runs, but its "
                    "output and its end are not saved until there is room; make room, or choose another --job-dir\n")
            self.assertEqual(done.stderr.startswith(said), words != ["--dry-run"], done)

    def test_the_disk_is_full_until_the_end(self):
        process = self.start_job("--log-dir", self.dir / "logs")
        self.assertTrue(self.said("No space left on device"), self.errors.read_text())
        out = self.end(process)
        errors = self.errors.read_text()
        self.assertIn(errors.count("No space left on device") - errors.count("report.json"), range(1, 5), errors)  # bytes may find room meanwhile
        lost = re.search(r"warning: the job's files are (?:incomplete|written again); missing: (\d+) bytes of (\S+)", errors)
        self.assertIsNotNone(lost, errors)
        kept = (self.job_dir / "attempt_0/rank_00000.stdout").read_text()
        self.assertTrue(out.startswith(FIRST))
        self.assertGreaterEqual(int(lost[1]), len(FIRST) - len(kept))
        copy = self.dir / "logs" / self.job / "attempt_0/0/stdout.log"  # on another disk, which has space
        self.assertEqual(copy.read_text(), out)

    def test_a_read_only_disk(self):
        process = self.start_job()
        self.assertTrue(self.said("No space left on device"), self.errors.read_text())
        out = self.end(process)
        self.assertIn("end\n", out)
        self.mount("remount,ro")
        (self.dir / "go").unlink()
        (self.dir / "stop").unlink()
        self.job_dir = self.disk / "other"
        done = self.run_plain(self.job_dir)
        self.assertEqual(done.returncode, 116, done.stderr)
        self.assertIn(f"the job directory {self.job_dir}: Read-only file system; choose another with --job-dir",
                      done.stderr)

    def test_a_read_only_state_directory_is_replaced(self):
        self.mount("remount,ro")
        env = dict(self.env, XDG_STATE_HOME=str(self.disk), TMPDIR=str(self.dir))
        done = subprocess.run([DDPLAUNCH, "--job-id", self.job, "sh", "-c", "echo here"], stdin=subprocess.DEVNULL, env=env,
                              capture_output=True, text=True, cwd=self.dir, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        [made] = (path for path in (self.dir / f"ddplaunch-{os.geteuid()}/jobs").iterdir() if path.is_dir())
        self.assertEqual(done.stderr, f"ddplaunch: {self.disk} is read-only; the job's files are in {made}\n")
        self.assertEqual((made / "attempt_0/rank_00000.stdout").read_text(), "here\n")

    def run_plain(self, job_dir):
        return subprocess.run(self.command("--job-dir", job_dir, "echo", "x"), stdin=subprocess.DEVNULL, env=self.env,
                              capture_output=True, text=True, cwd=self.dir, timeout=60)

    def test_the_directory_is_deleted_while_the_job_runs(self):
        self.mount("remount,size=64m")
        process = self.start_job()
        file = self.job_dir / "attempt_0/rank_00000.stdout"
        self.assertTrue(wait_until(lambda: file.exists() and file.stat().st_size == len(FIRST)))
        subprocess.run(["rm", "-rf", str(self.job_dir)], check=True)
        (self.dir / "go").touch()
        self.assertTrue(self.said("was deleted while the job runs"), self.errors.read_text())
        self.assertTrue(wait_until(lambda: file.exists() and file.read_text().startswith("word 0\n")))
        out = self.end(process)
        self.assertIn(f"ddplaunch: warning: {file} was deleted while the job runs; its content is lost; a new file replaces it\n", self.errors.read_text())
        self.assertEqual(FIRST + file.read_text(), out)


if __name__ == "__main__":
    main()
