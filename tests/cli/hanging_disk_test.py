#!/usr/bin/env python3
"""Tests a disk that hangs, as a network disk without its server: only operations on that disk wait. Heartbeats continue,
signals work, and the root cause is shown. tests/support/hanging_disk.cc delays the system calls."""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, SAME_REQUEST, SKIP, LaunchTest, Nodes, main, wait_until
from tests.support.rejoin import last_step, workers_of

HANGING_DISK = pathlib.Path(DDPLAUNCH).parents[1] / "tests/hanging_disk"


class HangingDisk(LaunchTest):
    def setUp(self):
        super().setUp()
        self.disk = self.dir / "disk"
        self.disk.mkdir()
        self.errors = self.dir / "errors"
        self.hang = self.disk / "HANG"
        self.work = self.disk / "work"
        self.work.mkdir()
        # The disk begins to hang before the second attempt has to start its worker from it.
        self.fail_once = f"if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then > {self.hang}; exit 3; fi; echo went on"
        self.addCleanup(self.hang.unlink, missing_ok=True)

    def command(self, *args):
        return [str(HANGING_DISK), str(self.disk), *super().command(*args)]

    def run_on_disk(self, *args, **popen):
        """Starts a job with its stderr in a file."""
        with self.errors.open("w") as errors:
            return self.start(*args, stderr=errors, **popen)

    def finish(self, process, timeout=60, began=None):
        done = super().finish(process, timeout, began)
        if done.code == SKIP:
            self.skipTest("no seccomp user notification here")
        done.err = self.errors.read_text()
        return done

    def said(self, text, seconds=20):
        return wait_until(lambda: text in self.errors.read_text(), seconds)

    def hangs(self):
        return wait_until((self.disk / "HANGING").exists)

    # ---- the job directory

    def start_and_fail(self, *args):
        """Starts a worker that fails at the moment when the job directory's disk begins to hang."""
        return self.run_on_disk("--job-dir", self.disk / "job", *args, "sh", "-c", f"> {self.hang}; echo words >&2; exit 3")

    CAUSE = "ddplaunch: exit 3: rank 0 on "

    def test_cause_is_shown_and_the_job_ends(self):
        process = self.start_and_fail("--report", self.dir / "report.json")
        self.assertTrue(self.said(self.CAUSE), self.errors.read_text())
        done = self.finish(process, timeout=40)
        self.assert_code(done, 3)
        self.assertIn(f"ddplaunch: waiting for the disk of {self.disk}/job (Ctrl-C: exit without waiting)\n", done.err)
        self.assertRegex(done.err, f"ddplaunch: warning: the disk of {self.disk}/job accepts no data for 10 s; not written: "
                         f"report.json, {self.dir}/report.json, [0-9]+ bytes of output\n")
        self.assertTrue(done.err.splitlines()[-1].startswith(self.CAUSE), done.err)

    def test_disk_of_the_report_alone_hangs(self):
        process = self.run_on_disk("--report", self.disk / "report.json", "sh", "-c", f"> {self.hang}; echo words >&2; exit 3")
        done = self.finish(process, timeout=40)
        self.assert_code(done, 3)
        self.assertIn(f"ddplaunch: waiting for the disk of {self.disk}/report.json (Ctrl-C: exit without waiting)\n", done.err)
        self.assertRegex(done.err, f"ddplaunch: warning: the disk of {self.disk}/report.json accepts no data for 10 s; not written: "
                         f"{self.disk}/report.json, [0-9]+ bytes of output\n")  # these are bytes of ddplaunch.log
        self.assertTrue(done.err.splitlines()[-1].startswith(self.CAUSE), done.err)
        self.assertIn('"exit_code": 3', (self.job_dir / "report.json").read_text())

    def test_interrupt_ends_it(self):
        process = self.start_and_fail()
        self.assertTrue(self.said("waiting for the disk of"), self.errors.read_text())
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process, timeout=30), 3)
        self.assertNotIn("accepts no data for 10 s", self.errors.read_text())
        # Scripts read the last line.
        self.assertTrue(self.errors.read_text().splitlines()[-1].startswith(self.CAUSE), self.errors.read_text())
    def test_a_disk_that_recovers_has_all_output(self):
        process = self.start_and_fail()
        self.assertTrue(self.said("waiting for the disk of"), self.errors.read_text())
        self.hang.unlink()
        done = self.finish(process)
        self.assert_code(done, 3)
        self.assertNotIn("warning", done.err)
        self.assertTrue(done.err.splitlines()[-1].startswith(self.CAUSE), done.err)
        self.assertIn('"exit_code": 3', (self.disk / "job/report.json").read_text())
        self.assertEqual((self.disk / "job/attempt_0/rank_00000.stderr").read_text(), "words\n")

    # ---- the agent's files in TMPDIR

    def test_files_of_the_agent_hang(self):
        (self.disk / "tmp").mkdir()
        self.env["TMPDIR"] = str(self.disk / "tmp")
        for code in (0, 3):
            process = self.run_on_disk("--max-restarts", 1 if code == 0 else 0, "--master-timeout", "5s", "--node-timeout", "5s",
                                       "sh", "-c", f"> {self.hang}; exit {code}")
            done = self.finish(process)
            self.assert_code(done, code)
            self.assertNotIn("no heartbeat", done.err)
            self.hang.unlink()

    def test_files_of_the_agent_hang_after_the_last_of_ranks_that_rejoin(self):
        # If an agent removed files after it had reported the attempt's end, it would ignore the order of the next attempt.
        (self.disk / "tmp").mkdir()
        self.env["TMPDIR"] = str(self.disk / "tmp")
        metrics = self.dir / "metrics"
        process = self.run_on_disk("--max-restarts", 1, "--restart-backoff", "0s", "--start-timeout", "20s", "train",
                                   "--on-peer-loss", "rejoin", "--data", "synthetic", "--limit", 2000, "--epochs", 10,
                                   "--metrics-file", metrics)
        self.assertTrue(wait_until(lambda: last_step(metrics) >= 5), self.errors.read_text())
        worker, = workers_of(self.job)
        self.hang.touch()
        os.kill(worker.pid, signal.SIGKILL)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertIn("restart 1 of 1", done.err)

    # ---- the start of workers

    def test_program_is_slow(self):
        """The second attempt's worker is read from a disk that hangs for twice the time after which a silent node is lost."""
        program = self.disk / "program"
        program.write_text('#!/bin/sh\ntouch up.$RANK\n[ $TORCHELASTIC_RESTART_COUNT$RANK != 01 ] || exec sleep 60\n'
                           f'while ! [ -e up.1 ]; do sleep 0.05; done\n{self.fail_once}\n')
        program.chmod(0o755)
        process = self.run_on_disk("--master-timeout", "5s", "--node-timeout", "5s", "--max-restarts", 1, "--restart-backoff", "0s",
                                   "--nproc-per-node", 2, "--oversubscribe", program)
        self.assertTrue(self.hangs(), self.errors.read_text())
        end = time.monotonic() + 10
        wait_until(lambda: process.poll() is not None or time.monotonic() > end)
        self.hang.unlink(missing_ok=True)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertIn("went on", done.out)
    def test_second_interrupt_kills_workers_that_wait_for_their_program(self):
        process = self.run_on_disk("--max-restarts", 1, "--restart-backoff", "0s", "--chdir", self.work, "sh", "-c",
                                   self.fail_once)
        self.assertTrue(self.hangs(), self.errors.read_text())
        process.send_signal(signal.SIGINT)
        self.assertTrue(self.said("again: now"))
        time.sleep(SAME_REQUEST)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        self.assert_code(self.finish(process, timeout=40), 130)
        self.assertLess(time.monotonic() - began, 5)

    # ---- SSH's files, standard input

    def test_known_hosts_hang(self):
        nodes = Nodes(self, 1)
        config = self.dir / "ssh_config"
        config.write_text(nodes.ssh_config.read_text().replace(f"{nodes.dir}/known_hosts", f"{self.disk}/known_hosts"))
        (self.disk / "known_hosts").write_text(nodes.known_hosts.read_text())
        self.hang.touch()
        args = ["--hostfile", nodes.hostfile, "--ssh-config", config, "true"]
        process = self.run_on_disk(*args)
        self.assertTrue(self.hangs(), self.errors.read_text())
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process, timeout=20), 130)

        done = self.finish(self.run_on_disk("--start-timeout", "3s", *args), timeout=30)
        self.assert_code(done, 112)
        self.assertIn("SSH keys and known_hosts were not read before the start limit; their disk hangs", done.err)

    def test_standard_input_hangs(self):
        stdin = os.eventfd(0)  # like a file of such a disk: a read waits, and epoll is not asked
        self.addCleanup(os.close, stdin)
        process = self.run_on_disk("--stdin", "0", "sh", "-c", "sleep 3; echo went on", stdin=stdin)
        done = self.finish(process, timeout=30)
        self.assert_code(done, 0)
        self.assertIn("went on", done.out)


if __name__ == "__main__":
    main()
