#!/usr/bin/env python3
"""Tests that every end of a job on one machine leaves no process, with and without control groups.

The test is a subreaper: all processes of a job stay below it, however they detach themselves, and are counted, except
zombies. torture_test.py tests random kills over SSH.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.census import Victim, alive_below, become_subreaper, below, kill_below, named
from tests.support.launch import BIN, main, wait_until
from tests.support.old_kernel import IS_KNOWN

UNRULY_WORKER = BIN.parent / "tests/unruly_worker"
FAMILY = "stubborn+child+session+pipes+daemon+stopped+storm"
GRACE = 1.0
SLACK = float(os.environ.get("DDP_SLACK", "1"))
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


def groups_of(job):
    """Returns the control group directories whose names contain the job's name."""
    found = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            for path, names, _ in os.walk(line.split()[4]):
                found += [f"{path}/{name}" for name in names if name.startswith(f"ddplaunch.{job}.")]
    return found


class Job:
    def __init__(self, test, name, *options, kinds, ranks=2, worker=()):
        self.name = f"k{os.getpid()}-{name}"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="job-", dir=test.dir))
        self.dir.chmod(0o777)
        self.ranks = ranks
        argv = [*test.prefix, test.bin / "ddplaunch", "--job-id", self.name, "--job-dir", self.dir / "files",
                "--nproc-per-node", ranks, "--oversubscribe", "--stop-grace", f"{GRACE:g}s", *options, "--",
                test.bin / "unruly_worker", self.dir, kinds, *worker]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DDPLAUNCH_", "PET_"))}
        env.update(HOME=str(self.dir), XDG_STATE_HOME=str(self.dir), XDG_RUNTIME_DIR=str(self.dir), OMP_NUM_THREADS="1")
        self.process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env,
                                        cwd=self.dir)
        test.addCleanup(self.close)
        self.began = time.monotonic()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()

    def ups(self):
        with contextlib.suppress(OSError):
            return [line.split() for line in (self.dir / "events").read_text().splitlines() if line.startswith("up ")]
        return []

    def wait_up(self):
        wait_until(lambda: len(self.ups()) == self.ranks or self.process.poll() is not None)
        if len(self.ups()) != self.ranks:
            self.process.kill()
            raise AssertionError(f"{self.name}: {self.ups()} {self.process.stderr.read()}")
        return self

    def find(self, name):
        """Returns the master, the keeper ("ddp-keeper") or the agent ("ddplaunchd") of this job."""
        if name == "ddplaunch":
            return Victim(self.process.pid, "localhost")
        for pid, (_, comm, state) in below(self.process.pid).items():
            if comm == name and state != "Z":
                return Victim(pid, "localhost")
        raise AssertionError(f"{self.name} has no {name}")

    def finish(self, seconds=30):
        _, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, err


class Ends:
    """The ends that are tested as each kind of user, and on each kernel. keeper_test.cc and attempt_tree_test.cc have the others, too."""

    prefix = []
    # Who is hit, the exit code, and the seconds in which all ends then. An agent has a grace of 5 s of its own after a lost link.
    hits = (("a killed master", ["KILL ddplaunch"], -signal.SIGKILL, 5 + 1),
            ("a killed agent", ["KILL ddplaunchd"], 113, 0.05),
            ("a killed keeper", ["KILL ddp-keeper"], 113, 5 + 1))

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-kill-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.dir.chmod(0o777)
        self.bin = self.dir / "bin"
        self.bin.mkdir()
        for program in (BIN / "ddplaunch", BIN / "ddplaunchd", UNRULY_WORKER):
            shutil.copy(program, self.bin)
        self.addCleanup(kill_below)

    def start(self, kinds=FAMILY, *options, ranks=2, worker=(), name=None):
        return Job(self, name or self.id().rpartition(".")[2].removeprefix("test_"), *options, kinds=kinds, ranks=ranks,
                   worker=worker)

    def assert_all_gone(self, *jobs, within=GRACE + 1):
        """Waits until no process lives below the test but the masters of `jobs`, which have ended."""
        owned = [job.process.pid for job in jobs]
        left = {}
        end = time.monotonic() + within * SLACK
        while (left := alive_below((), owned)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(left, named(left))
        for job in jobs:
            self.assertTrue(wait_until(lambda: not groups_of(job.name), 1), groups_of(job.name))

    def test_a_failing_worker(self):
        job = self.start(f"plain,{FAMILY}", worker=("0", "exit:5", "100"))
        code, err = job.finish()
        self.assertEqual(code, 5, err)
        self.assert_all_gone(job, within=0.05)
        self.assertNotIn("left on", err)

    def test_interrupt(self):
        job = self.start().wait_up()
        job.process.send_signal(signal.SIGINT)
        code, err = job.finish()
        self.assertEqual(code, 130, err)
        self.assert_all_gone(job, within=0.05)

    def test_hits(self):
        for name, hits, exit_code, within in self.hits:
            with self.subTest(name):
                try:
                    # A node that is silent by itself is not given up meanwhile, but the stopped agent is.
                    job = self.start(FAMILY, "--node-timeout", "2s" if hits == ["STOP ddplaunchd"] else "15s", name=name.replace(" ", "-")).wait_up()
                    victims = [(job.find(hit.split()[1]), hit.split()[0]) for hit in hits]
                    for victim, number in victims:
                        victim.hit(number)
                    code = job.process.wait(30)
                    self.assert_all_gone(job, within=within)
                    err = job.process.stderr.read()
                    self.assertEqual(code, exit_code, err)
                    if hits == ["KILL ddplaunchd"]:
                        self.assertIn("the agent was killed by SIGKILL", err)
                finally:  # after a failed case, for the next one
                    kill_below()

    def test_another_job_of_the_same_program_is_not_touched(self):
        other = self.start("stubborn+child+session+daemon", name="other").wait_up()
        before = below(other.process.pid)
        for victim in ("ddplaunchd", "ddp-keeper", None):
            job = self.start().wait_up()
            if victim:
                job.find(victim).hit("KILL")
            else:
                job.process.send_signal(signal.SIGINT)
            code, err = job.finish()
            self.assertEqual(code, 113 if victim else 130, err)
            self.assertTrue(wait_until(lambda: not self.strangers(other, before), 5 + 1), self.strangers(other, before))
        self.assertEqual(set(below(other.process.pid)), set(before))
        self.assertEqual({stat[2] for stat in below(other.process.pid).values()} & set("ZTX"), set())
        other.process.send_signal(signal.SIGINT)
        code, err = other.finish()
        self.assertEqual(code, 130, err)
        self.assert_all_gone(other, within=0.05)

    @staticmethod
    def strangers(other, before):
        """Returns the live processes below the test that do not belong to the job `other`. A daemon of `other` is below its
        agent, not below its master."""
        return alive_below({other.process.pid, *before}, [other.process.pid])


@unittest.skipUnless(UNRULY_WORKER.exists(), f"{UNRULY_WORKER} is not built")
class Kill(Ends, unittest.TestCase):
    """Tests as the present user. As root a job has a control group, if the machine supports any."""

    hits = (*Ends.hits,
            ("a killed keeper of a stopped agent", ["STOP ddplaunchd", "KILL ddp-keeper"], 113, 5 + 1),
            # The master waits 2 s for the keeper, which may need longer.
            ("a killed agent of a stopped keeper", ["STOP ddp-keeper", "KILL ddplaunchd"], 113, 5 + 1),
            # The master's own machine has no lease. The master gives the agent up, and the end of the keeper wakes the agent.
            ("a stopped agent", ["STOP ddplaunchd"], 113, 5 + 1),
            ("a stopped agent of a killed master", ["STOP ddplaunchd", "KILL ddplaunch"], -signal.SIGKILL, 5 + 1),
            ("a stopped agent and keeper of a killed master", ["STOP ddp-keeper", "STOP ddplaunchd", "KILL ddplaunch"], -signal.SIGKILL, 5 + 1.5))

    def test_a_successful_worker_that_leaves_a_daemon(self):
        job = self.start("plain+daemon+session+pipes", worker=("0", "exit:0", "50"), ranks=1)
        code, err = job.finish()
        self.assertEqual(code, 0, err)
        self.assert_all_gone(job, within=0.05)

    def test_killed_agent_while_the_workers_are_being_stopped(self):
        job = self.start(FAMILY, "--stop-grace", "20s").wait_up()  # of two graces the last counts; the killed agent ends it
        job.process.send_signal(signal.SIGTERM)
        while "stopping the workers" not in job.process.stderr.readline():
            self.assertIsNone(job.process.poll())
        job.find("ddplaunchd").hit("KILL")
        code, err = job.finish()
        self.assertEqual(code, 143, err)
        self.assert_all_gone(job, within=0.05)

    def test_many_stubborn_workers_are_killed_at_once(self):
        job = self.start("stubborn", ranks=32).wait_up()
        leaders = [Victim(int(up[2]), "localhost") for up in job.ups()]
        began = time.monotonic()
        job.process.send_signal(signal.SIGINT)
        self.assertTrue(leaders[0].ended(10))
        self.assertGreater(time.monotonic() - began, GRACE * 0.9)
        for leader in leaders:
            self.assertTrue(leader.ended(10))
        took = time.monotonic() - began - GRACE
        code, err = job.finish()
        self.assertEqual(code, 130, err)
        print(f"32 stubborn workers gone {took * 1e3:.0f} ms after the grace", file=sys.stderr)
        self.assertLess(took, 1.0 * SLACK)  # one after another would take 32 times 50 ms
        self.assert_all_gone(job, within=0.05)


@unittest.skipUnless(UNRULY_WORKER.exists() and os.geteuid() == 0 and shutil.which("setpriv"), f"needs {UNRULY_WORKER}, root and setpriv")
class KillAsNobody(Ends, unittest.TestCase):
    """Tests as a user who cannot make control groups: the agent finds processes by the process tree alone."""

    prefix = NOBODY

    def test_a_job_without_a_control_group_runs(self):
        job = self.start("plain", "--verbose", worker=("0", "exit:0", "0"), ranks=1)
        code, err = job.finish()
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"ddplaunch: localhost: no control group for the workers; they are found by the process tree \(.*"
                              r"(Permission denied|Operation not permitted|Read-only file system|No such file or directory|"
                              r"mounted here|is not this process's control group)")
        job = self.start("plain", worker=("0", "exit:0", "0"), ranks=1)
        code, err = job.finish()
        self.assertEqual((code, err), (0, ""))

    def test_a_leftover_process_of_another_user_is_named(self):
        # As below sudo, all uids of the process are root's, so its user may not signal it.
        sudo = self.dir / "sudo"
        shutil.copy(shutil.which("setpriv"), sudo)
        os.chown(sudo, 0, 0)
        sudo.chmod(0o4755)
        if os.statvfs(self.dir).f_flag & os.ST_NOSUID:
            self.skipTest(f"{self.dir} is mounted nosuid")
        script = self.dir / "worker.sh"
        script.write_text(f'#!/bin/sh\n{sudo} --reuid=0 sleep 60 &\necho "up 0 $$ 0" >> $1/events\nwait\n')
        script.chmod(0o755)
        (self.bin / "unruly_worker").unlink()
        shutil.copy(script, self.bin / "unruly_worker")
        job = self.start("plain", ranks=1).wait_up()
        self.assertTrue(wait_until(lambda: any(stat[1] == "sleep" for stat in below(job.process.pid).values())))
        job.process.send_signal(signal.SIGINT)
        code, err = job.finish()
        self.assertEqual(code, 130, err)
        self.assertRegex(err, r"ddplaunch: warning: 1 process is left on localhost: \d+ \(sleep, state S, uid 0\), no permission "
                              r"to signal it\n")
        pid = int(re.search(r"localhost: (\d+) \(sleep", err)[1])
        self.assertEqual({left: stat[1] for left, stat in alive_below((), [job.process.pid]).items()}, {pid: "sleep"})
        os.kill(pid, signal.SIGKILL)
        self.assert_all_gone(job)


@unittest.skipUnless(UNRULY_WORKER.exists() and os.geteuid() == 0 and shutil.which("setpriv"), f"needs {UNRULY_WORKER}, root and setpriv")
@unittest.skipUnless(IS_KNOWN, "the filter of system calls knows x86-64 and aarch64")
class KillOnOldKernel(Ends, unittest.TestCase):
    """Tests without pidfds, clone3 and close_range."""

    prefix = [sys.executable, pathlib.Path(__file__).resolve().parents[1] / "support/old_kernel.py", *NOBODY]


if __name__ == "__main__":
    become_subreaper()
    main()
