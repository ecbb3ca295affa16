#!/usr/bin/env python3
"""Tests that leftovers.py finds each kind of thing that a test may leave, and waits for those that end."""

import contextlib
import fcntl
import io
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import leftovers

NAME = f"ddp-left-{os.getpid()}"
NOWHERE = "/nonexistent"


class Leftovers(unittest.TestCase):
    def ours(self, name=NAME):
        """Returns the lines about the things that this test has made; other tests may run beside it."""
        return [line for line in leftovers.look(NOWHERE) if name in line]

    def process(self, *command, **environment):
        process = subprocess.Popen(command, env={**os.environ, **environment})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_nothing_is_left(self):
        self.assertEqual(self.ours(), [])

    def test_a_process_with_a_job_mark(self):
        process = self.process("sleep", "1000", DDPLAUNCH_JOB_ID=NAME)
        [line] = self.ours(f"process {process.pid} ")
        self.assertRegex(line, r"\(started \d+\): sleep 1000$")

    def test_a_process_of_the_build(self):
        folder = tempfile.mkdtemp(prefix=NAME)
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(shutil.which("sleep"), f"{folder}/agent")
        process = self.process(f"{folder}/agent", "1000")
        self.assertEqual(self.ours(f"process {process.pid} "), [])
        self.assertEqual(len([line for line in leftovers.processes(folder) if f"process {process.pid} " in line]), 1)

    def test_a_dead_process_is_no_leftover(self):
        process = self.process("true", DDPLAUNCH_JOB_ID=NAME)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
        self.assertEqual(self.ours(f"process {process.pid} "), [])

    def test_sockets_of_killed_jobs_are_no_leftover(self):
        place = tempfile.mkdtemp(prefix=NAME)
        self.addCleanup(shutil.rmtree, place)
        run = pathlib.Path(place, "ddplaunch-61234/run")
        run.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{run}/job.sock")
            self.assertEqual(leftovers.directories([place]), [])
            listener.listen()
            self.assertEqual(leftovers.directories([place]), [f"file {run.parent}"])
        self.assertEqual(leftovers.directories([place]), [])
        (run / "file").touch()
        self.assertEqual(leftovers.directories([place]), [f"file {run.parent}"])

    def test_directories(self):
        for place in ("/tmp", "/dev/shm"):
            folder = tempfile.mkdtemp(prefix=f"{NAME}-", dir=place)
            self.addCleanup(shutil.rmtree, folder)
            self.assertIn(f"file {folder}", self.ours())
        leak = pathlib.Path(f"/dev/shm/torch_{NAME}")
        leak.touch()
        self.addCleanup(leak.unlink)
        self.assertIn(f"file {leak}", self.ours())
        folder = tempfile.mkdtemp(prefix=f"job-{NAME}", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        self.assertIn(f"file {folder}", self.ours())

    def test_sockets_of_a_killed_agent_are_removed_by_the_next_one(self):
        long_ago = time.time() - 60

        def sockets():
            folder = pathlib.Path(f"/tmp/ddplaunch-{os.urandom(3).hex()}")
            folder.mkdir()
            self.addCleanup(shutil.rmtree, folder, ignore_errors=True)  # an agent of another test may remove it as soon as it is old
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(folder / "0"))
            return folder
        folder = sockets()
        self.assertEqual(self.ours(folder.name), [f"file {folder}"])  # just made
        os.utime(folder, (long_ago, long_ago))
        self.assertEqual(self.ours(folder.name), [])
        folder = sockets()
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        os.utime(folder, (long_ago, long_ago))
        self.assertEqual(self.ours(folder.name), [f"file {folder}"])  # its agent runs
        (folder / "more").touch()
        os.close(held)
        os.utime(folder, (long_ago, long_ago))
        self.assertEqual(self.ours(folder.name), [f"file {folder}"])

    def test_an_abstract_socket(self):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{NAME}")
            self.assertEqual(self.ours(), [f"abstract socket @{NAME}"])
        self.assertEqual(self.ours(), [])

    def test_a_control_group(self):
        folder = next((folder for folder, _, files in os.walk(leftovers.GROUPS) if "cgroup.procs" in files), None)
        group = pathlib.Path(folder or NOWHERE) / f"ddplaunch.{NAME}"
        try:
            group.mkdir()
        except OSError as error:
            self.skipTest(f"no control group can be made: {error}")
        self.addCleanup(group.rmdir)
        self.assertEqual(self.ours(), [f"control group {group}"])

    def test_a_network_namespace(self):
        if os.geteuid() != 0 or not shutil.which("ip") or subprocess.run(["ip", "netns", "add", NAME], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no network namespace can be made")
        self.addCleanup(subprocess.run, ["ip", "netns", "del", NAME], check=True)
        self.assertEqual(self.ours(), [f"network namespace {NAME}"])

    def test_what_ends_in_time_is_waited_for(self):
        looks = iter([["old", "ends"], ["old", "ends"], ["old"]])
        self.assertEqual(leftovers.new_things({"old"}, lambda: next(looks), 10), [])
        self.assertEqual(leftovers.new_things({"old"}, lambda: ["old", "stays"], 0.3), ["stays"])

    def test_a_run_fails_with_the_names_of_what_is_left(self):
        with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as folder, contextlib.ExitStack() as things:
            file = pathlib.Path(folder) / "before.json"
            program = [sys.executable, leftovers.__file__]
            subprocess.run([*program, "snapshot", file, NOWHERE], check=True)
            listener = things.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(f"\0{NAME}")
            things.enter_context(unittest.mock.patch.object(leftovers, "PATIENCE_S", 0.3))
            things.enter_context(unittest.mock.patch.object(leftovers, "other_runs", lambda: []))
            said = things.enter_context(contextlib.redirect_stdout(io.StringIO()))
            self.assertEqual(leftovers.compare(file, NOWHERE), 1)
            self.assertIn(f"  abstract socket @{NAME}\n", said.getvalue())
            leftovers.other_runs = lambda: [1]
            self.assertEqual(leftovers.compare(file, NOWHERE), 77)


if __name__ == "__main__":
    unittest.main(verbosity=2)
