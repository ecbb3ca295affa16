#!/usr/bin/env python3
"""Tests who can read the token and control the job: children, core dumps, a hostile master and a hostile node."""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import census
from tests.support.launch import BIN, DDPLAUNCH, main, wait_until
from tests.support.per_node import PerNodeTest

TOKEN = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
LINK_PEER = BIN.parent / "tests/link_peer"


def copies_in_memory(pid, secret):
    """Counts copies of `secret` in the memory that a core dump contains, and in the memory that it leaves out."""
    dumped = kept = 0
    first = last = None
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/mem", "rb") as memory:
        for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line):
                first, last = (int(one, 16) for one in found.groups())
            elif line.startswith("VmFlags:") and first is not None:
                if last - first < 1 << 30:  # a sanitizer's shadow is larger
                    memory.seek(first)
                    with contextlib.suppress(OSError):  # [vvar] cannot be read
                        count = memory.read(last - first).count(secret)
                        dumped, kept = (dumped, kept + count) if "dd" in line.split() else (dumped + count, kept)
                first = None
    return dumped, kept


class Token(PerNodeTest):
    """Tests where DDPLAUNCH_TOKEN may be visible."""

    def setUp(self):
        super().setUp()
        self.env["DDPLAUNCH_TOKEN"] = TOKEN
        # A stand-in for ssh records its environment, and sets the variable on the "node" as a profile would.
        self.ssh = self.script("ssh", '#!/bin/sh\nenv >>"$SEEN"\nwhile [ $# -gt 2 ]; do shift; done\n'
                                      f'export DDPLAUNCH_TOKEN={TOKEN[::-1]}\nexec sh -c "$2"\n')
        self.env["SEEN"] = str(self.dir / "seen")

    def test_no_child_of_any_command_inherits_the_token(self):
        show = f"tr '\\0' '\\n' </proc/$PPID/environ >>{self.dir}/agent; env >>{self.dir}/setup"
        hosts = ["--host", "gpu1", "--ssh-command", self.ssh, "--agent", BIN / "ddplaunchd"]
        for verb in (["check", "--setup", show], ["hosts"], ["--label", "", "--setup", show]):
            worker = ["sh", "-c", "env"] if verb[0] == "--label" else []
            done = subprocess.run([DDPLAUNCH, *map(str, verb), *map(str, hosts), *worker], env=self.env, cwd=self.dir, timeout=60,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            with self.subTest(verb=verb[0]):
                self.assertTrue((self.dir / "seen").exists(), done.stderr)
                shown = {name: (self.dir / name).read_text() for name in ("seen", "agent", "setup") if (self.dir / name).exists()}
                shown["stdout"] = done.stdout
                self.assertEqual([name for name, text in shown.items() if TOKEN in text or TOKEN[::-1] in text], [])
            (self.dir / "seen").unlink()
        self.assertTrue((self.dir / "agent").exists(), "no setup script has run")

    def check_memory(self, *options):
        """Counts the token's copies in the memory of two nodes that run a job, and of their descendants."""
        wait = ["sh", "-c", "touch here.$RANK; while [ ! -e go ]; do sleep 0.05; done"]
        env = {name: value for name, value in self.env.items() if name != "DDPLAUNCH_TOKEN" or not options}
        nodes = [self.start(*self.node_options(rank), *options, *wait, env=env) for rank in (0, 1)]
        self.assertTrue(wait_until(lambda: len(list(self.dir.glob("here.*"))) == 2))
        seen = {pid: copies_in_memory(pid, TOKEN.encode()) for node in nodes for pid in (node.pid, *census.below(node.pid))}
        (self.dir / "go").touch()
        self.assertEqual([self.end_of(node).code for node in nodes], [0, 0])
        self.assertEqual({pid: dumped for pid, (dumped, _) in seen.items() if dumped != 0}, {})
        self.assertGreater(seen[nodes[0].pid][1], 0, "the test finds no token in the memory of the master")
        self.assertEqual(seen[nodes[1].pid], (0, 0), "the keeper of a joined node has the token")

    def test_no_core_dump_and_no_keeper_contains_the_token(self):
        self.check_memory()

    def test_no_core_dump_contains_the_token_of_a_file(self):
        (self.dir / "token").write_text(TOKEN)
        (self.dir / "token").chmod(0o600)
        self.check_memory("--token-file", self.dir / "token")

    def test_both_jobs_of_a_deep_check_have_the_token(self):
        """The check starts two jobs, and the variable is erased before the first."""
        listener = subprocess.Popen([BIN / "ddplaunchd", "--listen", "127.0.0.1:0"], env=self.env, stdin=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True)
        self.addCleanup(listener.stderr.close)
        self.addCleanup(listener.wait)
        self.addCleanup(listener.kill)
        port = re.search(r"listening at 127\.0\.0\.1:(\d+)", listener.stderr.readline())[1]
        done = subprocess.run([DDPLAUNCH, "check", "--deep", "--launcher", "daemon", "--host", "127.0.0.1", "--daemon-port", port],
                              env=self.env, cwd=self.dir, timeout=120, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
        self.assertIn("train health", done.stderr)
        self.assertNotIn("token", done.stdout + done.stderr)


class UntrustedPeers(PerNodeTest):
    """Tests peers that have the token but are not ddplaunch."""

    def peer(self, *args):
        return subprocess.Popen([LINK_PEER, *map(str, args)], env=dict(self.env, DDPLAUNCH_TOKEN=TOKEN), stdout=subprocess.PIPE, text=True)

    def test_a_master_cannot_make_a_node_run_what_it_sends(self):
        answers = {"check": "refused its master asked for a check, which a node that joins by itself refuses\n",
                   "job": f"accepted {shutil.which('true')}\n"}
        for what, answer in answers.items():
            with self.subTest(what):
                peer = self.peer("master", self.port, self.job, f"touch {self.dir}/run-by-the-master", what)
                node = self.start(*self.node_options(1), shutil.which("true"), env=dict(self.env, DDPLAUNCH_TOKEN=TOKEN))
                self.assertEqual(self.end_of(peer).out, answer)
                self.assert_code(self.end_of(node), 113)
                self.assertFalse((self.dir / "run-by-the-master").exists())

    def test_text_of_a_master_is_one_line_without_escape_sequences(self):
        peer = self.peer("master", self.port, self.job, "\x1b[2Jddplaunch: exit 0: fine", "leave")
        node = self.end_of(self.start(*self.node_options(1), shutil.which("true"), env=dict(self.env, DDPLAUNCH_TOKEN=TOKEN)))
        self.end_of(peer)
        shown = "\\x1b[2Jddplaunch: exit 0: fine"
        self.assert_code(node, 3)
        self.assertEqual(node.err.splitlines(), [
            f"ddplaunch: joined job {shown} at 127.0.0.1 port {self.port} as node 1; its output is shown there",
            f"ddplaunch: exit 3: {shown}\\n{shown}"])

    def test_a_node_does_not_get_the_command_of_node_0(self):
        given = ["--env", "WANDB_API_KEY=of-node-0", "--setup", "A=of-node-0", "--chdir", self.dir, "--start-timeout", "20s"]
        master = self.start(*self.node_options(0), *given, "sh", "-c", "echo of-node-0",
                            env=dict(self.env, DDPLAUNCH_TOKEN=TOKEN, ONLY_HERE="of-node-0"))
        self.assertEqual(self.end_of(self.peer("node", self.port, self.job)).out, f"job {self.job}\nend \n")
        self.assert_code(self.end_of(master), 113)


if __name__ == "__main__":
    main()
