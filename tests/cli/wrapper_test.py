#!/usr/bin/env python3
"""Tests agent and workers inside a container that a wrapper enters: the guarantees are the same as outside.

The container contains no program of ddplaunch, so each job also copies its agent. Its first process never reaps."""

import contextlib
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import census
from tests.support.container import Container
from tests.support.launch import BIN, LaunchTest, Nodes, live_processes_with, main, wait_until

STAY = ["sh", "-c", 'echo "at work"; setsid sh -c "trap : TERM; sleep 600; sleep 600" & exec sleep 600']


class Wrapper(LaunchTest):
    def setUp(self):
        super().setUp()
        self.box = Container(self, "my box")
        self.wrapper = f"{self.box.client} 'my box'"

    def assert_nothing_left(self):
        """Also checks agent and keeper, which have no job mark. Zombies are left to the container."""
        mark = f"DDPLAUNCH_JOB_ID={self.job}\0"
        self.assertEqual(wait_until(lambda: not live_processes_with(mark)) or live_processes_with(mark), True)
        self.assertEqual(wait_until(lambda: not self.inside()) or self.inside(), True)

    def inside(self, name=None):
        """Returns (pid, name) of the live processes in the container except its first one, with the host's pids."""
        try:
            home = os.readlink(f"/proc/{self.box.init}/ns/pid")
        except OSError:  # the first process was killed, and the kernel killed all others with it
            return []
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or int(entry.name) == self.box.init:
                    continue
                stat = (entry / "stat").read_text()
                comm = stat[stat.index("(") + 1:stat.rindex(")")]
                if os.readlink(entry / "ns/pid") == home and stat.rpartition(")")[2].split()[0] != "Z":
                    if name in (None, comm):
                        found.append((int(entry.name), comm))
            except OSError:
                continue
        return found

    def kill_inside(self):
        """Kills each process that `inside` returns. Returns whether there was none."""
        rest = self.inside()
        for pid, _ in rest:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not rest

    def local(self, *args):
        return ["--host", "localhost", "--wrapper", self.wrapper, "--chdir", "/", "--label", "none", *args]

    def at_work(self, *args, ranks=2):
        process = self.start(*self.local("--nproc-per-node", ranks, *args, *STAY))
        for _ in range(ranks):
            self.assertEqual(process.stdout.readline(), "at work\n")
        self.assertTrue(wait_until(lambda: len(self.inside("sleep")) == 2 * ranks), self.inside())
        return process


class Local(Wrapper):
    def test_workers_run_inside_the_container(self):
        outcome = self.run_job(*self.local("--nproc-per-node", 2, "sh", "-c",
                                           "echo $(cat /etc/where) $RANK $WORLD_SIZE $(readlink /proc/self/ns/pid)"))
        self.assert_code(outcome, 0)
        where = os.readlink(f"/proc/{self.box.init}/ns/pid")
        self.assertEqual(sorted(outcome.out.splitlines()), [f"inside 0 2 {where}", f"inside 1 2 {where}"], repr(outcome))
        self.assertTrue(list((self.box.root / "..").resolve().iterdir()))

    def test_exit_code_arguments_and_input(self):
        self.assert_code(self.run_job(*self.local("sh", "-c", "exit 7")), 7)
        unusual = ["a b", "'", '"', "$HOME", "\\", "!", "*", "", "ü"]
        outcome = self.run_job(*self.local("printf", "<%s>", *unusual))
        self.assertEqual(outcome.out.rstrip("\n"), "".join(f"<{word}>" for word in unusual), repr(outcome))
        outcome = self.run_job(*self.local("cat"), stdin="to rank 0\n")
        self.assertEqual(outcome.out, "to rank 0\n", repr(outcome))

    def test_each_process_is_killed(self):
        for name, victim, code, says in (
                ("worker", lambda _: next(pid for pid, _ in self.inside("sleep") if census.environment(pid, "RANK") == "1"), 137, "rank 1"),
                ("client", self.client_pid, 113, "localhost"),
                ("agent", lambda _: self.inside("ddplaunchd")[0][0], 113, "the agent was killed by SIGKILL"),
                ("keeper", lambda _: self.inside("ddp-keeper")[0][0], 113, None),
                ("master", lambda process: process.pid, -signal.SIGKILL, None),
                ("container", lambda _: self.box.init, 113, None)):
            with self.subTest(name):
                self.job = f"t{os.getpid()}-killed-{name}"
                try:
                    process = self.at_work()
                    os.kill(victim(process), signal.SIGKILL)
                    outcome = self.finish(process)
                    self.assert_code(outcome, code)
                    if says:
                        self.assertIn(says, outcome.err)
                finally:  # after a failed case, for the next one
                    self.assertTrue(wait_until(self.kill_inside))

    def client_pid(self, master):
        text = pathlib.Path(f"/proc/{master.pid}/task/{master.pid}/children").read_text()
        clients = [int(pid) for pid in text.split() if b"my box" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        self.assertEqual(len(clients), 1)
        return clients[0]

    def test_ctrl_c(self):
        process = self.at_work("--stop-grace", "1s")
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process), 130)

    def test_no_such_container(self):
        self.wrapper = f"{self.box.client} other"
        outcome = self.run_job(*self.local("true"))
        self.assert_code(outcome, 111)
        self.assertIn(f"node localhost: the wrapper ({self.box.client} other) ended with exit status 1 before the search for "
                      f"ddplaunchd began; its last lines:\n", outcome.err)
        self.assertRegex(outcome.err, "\n +Error: No such container: other\n")

    def test_no_such_program(self):
        self.wrapper = "no-such-engine exec -i box"
        outcome = self.run_job(*self.local("true"))
        self.assert_code(outcome, 111)
        self.assertIn("node localhost: cannot find program 'no-such-engine' in PATH (", outcome.err)
        self.assertIn("; it is the program of the wrapper", outcome.err)

    def test_a_wrapper_that_makes_its_own_namespaces(self):
        """The wrapper has no client in between: unshare becomes its command, whose process 1 is the keeper."""
        root = self.box.root
        self.wrapper = (f"nsenter --target {self.box.init} --mount unshare --mount --pid --fork '--mount-proc={root}/proc' "
                        f"chroot '{root}'")
        outcome = self.run_job(*self.local("--env", "PATH=/usr/bin:/bin", "sh", "-c", "cat /etc/where; exit 5"))
        self.assert_code(outcome, 5)
        self.assertEqual(outcome.out, "inside\n", repr(outcome))

    def test_a_proc_of_another_pid_namespace_is_reported(self):
        """The agent needs the /proc of its own namespace."""
        home = self.env["HOME"] = "/home/of-the-container"
        self.env.pop("XDG_CACHE_HOME", None)
        self.wrapper = (f"nsenter --target {self.box.init} --mount unshare --mount --pid --fork chroot '{self.box.root}'")
        outcome = self.run_job(*self.local("true"))
        self.assert_code(outcome, 114)
        # An agent built with a sanitizer fails earlier, in the sanitizer's run time, and never reports this.
        sanitized = b"__asan_init" in (BIN / "ddplaunchd").read_bytes()
        why = "reading executable name failed" if sanitized else "/proc of this PID namespace is not mounted"
        self.assertIn(f"{home}/.cache/ddplaunch: {why}", outcome.err)


class OverSsh(Wrapper):
    def hostfile(self, nodes):
        path = self.dir / "hostfile"
        quoted = self.wrapper.replace("\\", "\\\\").replace('"', '\\"')
        path.write_text("".join(f'{host} slots=1 wrapper="{quoted}"\n' for host in nodes.hosts))
        return ["--ssh-config", nodes.ssh_config, "--hostfile", path, "--chdir", "/", "--label", "none"]

    def test_two_nodes(self):
        """Two agents run in one container. Each enters it from a separate login."""
        nodes = Nodes(self, 2)
        for transport in ([], ["--ssh-command", "ssh"]):
            outcome = self.run_job(*self.hostfile(nodes), *transport, "sh", "-c", "echo $(cat /etc/where) $RANK")
            self.assert_code(outcome, 0)
            self.assertEqual(sorted(outcome.out.split("\n")), ["", "inside 0", "inside 1"], repr(outcome))

    def test_the_master_is_killed(self):
        nodes = Nodes(self, 2)
        process = self.start(*self.hostfile(nodes), *STAY)
        for _ in range(2):
            self.assertEqual(process.stdout.readline(), "at work\n")
        process.kill()
        process.communicate()
        self.assert_nothing_left()


if __name__ == "__main__":
    main()
