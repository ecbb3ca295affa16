#!/usr/bin/env python3
"""Runs the agent for aarch64 by qemu-aarch64: on this machine, and pushed to nodes whose `uname -m` is aarch64.

`./dev test` and `./dev package` build the agent (the preset "aarch64"). On a node, tests/support/aarch64_exec.cc lets shells execute
it. Workers are programs of this machine."""

import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "cli")]
import census  # noqa: E402
from launch import BIN, SOURCE, LaunchTest, main, wait_until  # noqa: E402
from push_test import Push, build_id, can_unshare, sum_of  # noqa: E402

AGENT = SOURCE / "build/aarch64/bin/ddplaunchd"
EXEC = BIN.parent / "aarch64_exec/libaarch64_exec.so"
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
RUN_AGENT = f'#!/bin/sh\nexec {QEMU} {AGENT} "$@"\n'


def processes_with(text):
    """Returns the command lines that contain `text`, without those of zombies, which are empty."""
    return [line for line in map(census.command_line, census.all_processes()) if text in line]


def find_trouble():
    """Returns why this machine cannot run the tests; empty: it can."""
    if not AGENT.exists():
        return f"{AGENT} is not built; ./dev test builds it if g++-aarch64-linux-gnu is installed"
    if QEMU is None:
        return "qemu-aarch64 is not installed; apt-get install qemu-user"
    return ""


TROUBLE = find_trouble()


@unittest.skipIf(TROUBLE, TROUBLE)
class Emulated(LaunchTest):
    """The agent on this machine, as a program that qemu-aarch64 runs."""

    def setUp(self):
        super().setUp()
        self.agent = self.script("agent", RUN_AGENT)

    def emulated(self, *args):
        return self.run_job("--agent", self.agent, "--nproc-per-node", 2, "--label", "none", *args)

    def test_workers_run_and_their_output_comes_back(self):
        done = self.emulated("sh", "-c", "echo $RANK of $WORLD_SIZE; cat /proc/$PPID/cmdline | tr '\\0' ' ' >&2")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 of 2", "1 of 2"])
        self.assertIn(f"{QEMU} {AGENT}", done.err)

    def test_a_worker_that_fails_ends_the_job_with_its_code(self):
        done = self.emulated("sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 1000")
        self.assert_code(done, 7)
        self.assertIn("rank 1 on localhost exited 7", done.err)
        self.assert_code(self.emulated("sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; sleep 1000"), 128 + signal.SIGSEGV)


@unittest.skipIf(TROUBLE, TROUBLE)
@unittest.skipUnless(can_unshare(), "mounting in a namespace of our own is not allowed here")
class Pushed(Push):
    """The nodes say that they are aarch64, and find no ddplaunchd. The master has both agents."""

    def setUp(self):
        super().setUp()
        self.libexec = self.kit / "libexec/ddplaunch"
        self.libexec.mkdir(parents=True)
        shutil.copy2(AGENT, self.libexec / "ddplaunchd-aarch64")
        tools = self.tools(uname='#!/bin/sh\n[ "$1" = -m ] && echo aarch64 || exec /usr/bin/uname "$@"\n')
        self.hosts = self.nodes(2, f"export PATH={tools} LD_PRELOAD={EXEC} DDP_TEST_QEMU={QEMU}\n")
        self.there = self.agent(build_id(AGENT))

    def on_both(self, *args):
        return self.on(self.hosts, "-v", "--env", "PATH=/usr/bin:/bin", *args)

    def assert_nothing_runs(self):
        self.assert_nothing_left()
        self.assertTrue(wait_until(lambda: not processes_with(str(self.home))), processes_with(str(self.home)))

    def test_the_agent_for_aarch64_is_copied_and_kept(self):
        done = self.on_both("sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 of 2", "1 of 2"])
        self.assertGreaterEqual(self.pushes(done), 1)
        self.assertEqual(sum_of(self.there), sum_of(AGENT))
        self.assertFalse(self.agent().exists())
        again = self.on_both("sh", "-c", "cat /proc/$PPID/cmdline | tr '\\0' ' '")
        self.assertEqual(self.pushes(again), 0, repr(again))
        self.assertIn(f"{QEMU} ", again.out)
        self.assertIn(f" {self.there} ", again.out)
        self.assert_nothing_runs()

    def test_nothing_runs_after_a_killed_master(self):
        process = self.start("--ssh-config", self.hosts.ssh_config, "--hostfile", self.hosts.hostfile, "--nproc-per-node", 1,
                             "--chdir", "/", "--env", "PATH=/usr/bin:/bin", "sh", "-c", "echo started; sleep 1000")
        for _ in range(2):
            self.assertIn("started", process.stdout.readline())
        self.assertTrue(processes_with(str(self.there)))
        process.kill()
        process.communicate()
        self.assertTrue(wait_until(lambda: not processes_with(str(self.home))), processes_with(str(self.home)))
        self.assert_nothing_runs()

    def test_check_passes_with_both_agents_and_names_a_missing_one(self):
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"127\.0\.0\.2 .* ok")
        shutil.rmtree(self.cache)
        (self.libexec / "ddplaunchd-aarch64").unlink()
        done = self.check()
        self.assertEqual(done.returncode, 114, done.stdout + done.stderr)
        self.assertIn("it has no ddplaunchd of this build, and there is none here for a machine of type aarch64 "
                      f"({self.here}/bin/../libexec/ddplaunch/ddplaunchd-aarch64: No such file or directory); install the same version "
                      "there or name it with --agent PATH", done.stdout)

    def check(self):
        *namespace, program = self.command()[:self.command().index("--job-id")]
        return subprocess.run([*namespace, program, "check", "--hostfile", self.hosts.hostfile, "--ssh-config", self.hosts.ssh_config],
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, env=self.env, cwd=self.dir, check=False)


if __name__ == "__main__":
    main()
