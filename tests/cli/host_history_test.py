#!/usr/bin/env python3
"""Tests the history of hosts that fail (docs/users/host_history.md). Nodes are sshds on 127.0.0.x."""

import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, LaunchTest, Nodes, live_processes_with, main, wait_until, without_waits
from tests.support.rejoin import worker_of


class HostHistory(LaunchTest):
    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes.of_class(cls, 3)

    def setUp(self):
        super().setUp()
        self.history = self.dir / "state/ddplaunch/hosts"

    def hosts(self, *args):
        return ["--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config, "--label", "none", *args]

    def agents(self):
        """Returns the agents of the job's nodes that have workers, by the node's number."""
        workers = [worker_of(pid) for pid, _ in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")]
        return {worker.node: worker.agent for worker in workers if worker}

    def lose(self, node, *args):
        """Runs a job that ends by the loss of a node."""
        process = self.start(*args, "sleep", 1000)
        self.assertTrue(wait_until(lambda: node in self.agents()))
        os.kill(self.agents()[node], signal.SIGKILL)
        done = self.finish(process)
        self.assert_code(done, 113)
        return done

    def verb(self, *args):
        return subprocess.run([DDPLAUNCH, *map(str, args)], capture_output=True, text=True, timeout=120, env=self.env,
                              cwd=self.dir, stdin=subprocess.DEVNULL, check=False)

    def test_a_host_that_fails_twice_becomes_a_spare(self):
        self.assertNotIn("days", self.lose(1, *self.hosts()).err)
        lines = [path.read_text() for path in self.history.iterdir()]
        self.assertEqual(len(lines), 1)
        self.assertEqual({key: json.loads(lines[0])[key] for key in ("host", "cause", "hardware", "job")},
                         {"host": "127.0.0.3", "cause": "lost", "hardware": False, "job": self.job})
        note = "ddplaunch: 127.0.0.3: 1 failure in 7 days (lost)\n"
        self.assertTrue(self.lose(1, *self.hosts()).err.startswith(note))

        done = self.run_job(*self.hosts("--nnodes", 2, "--spares", 1, "--nproc-per-node", 1, "--avoid-bad-hosts", "sh",
                                        "-c", "echo $RANK $SSH_CONNECTION"))
        self.assert_code(done, 0)
        self.assertIn("ddplaunch: 127.0.0.3: 2 failures in 7 days (lost); it is a spare\n", done.err)
        self.assertEqual([line.split()[0::3] for line in sorted(done.out.splitlines())], [["0", "127.0.0.2"], ["1", "127.0.0.4"]])

        done = self.verb("check", *self.hosts())
        self.assertIn("warning: 127.0.0.3: 2 failures in 7 days (lost); leave it to the spares with --avoid-bad-hosts, or "
                      "after a repair forget them (ddplaunch hosts --forget)\n", done.stdout, done)
        self.assertEqual((done.returncode, without_waits(done.stderr)), (0, ""))
        findings = json.loads(self.verb("check", "--json", *self.hosts()).stdout)["findings"]
        self.assertEqual([(f["item"], f["hosts"]) for f in findings], [("history", ["127.0.0.3"])])

        done = self.verb("hosts", "--history")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\Ahost +7 days +90 days +causes +last +state\n127\.0\.0\.3 +2 +2 +lost +20\S+Z +bad\n\Z")
        done = self.verb("hosts", "--forget", "gpu99")
        self.assertEqual((done.returncode, done.stderr), (2, f"ddplaunch: exit 2: no failures of gpu99 in {self.history}; "
                                                             "ddplaunch hosts --history lists them\n"))
        done = self.verb("hosts", "--forget", "127.0.0.3", "--history")
        self.assertEqual((done.returncode, done.stdout), (0, f"no failures of hosts in {self.history}\n"))
        done = self.verb("hosts", "--history", "--json")
        self.assertEqual(json.loads(done.stdout)["hosts"], [])

    def test_a_history_that_cannot_be_written_changes_no_exit_code(self):
        self.history.parent.mkdir(parents=True)
        self.history.symlink_to(self.dir / "gone/hosts")
        done = self.lose(1, *self.hosts())
        self.assertIn("ddplaunch: warning: the host history was not written: ", done.err)
        self.assertRegex(done.err.splitlines()[-1], "^ddplaunch: exit 113: ")

    def test_the_local_machine_cannot_be_lost(self):
        self.lose(0)
        self.assertFalse(self.history.exists())


if __name__ == "__main__":
    main()
