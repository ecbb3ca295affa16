#!/usr/bin/env python3
"""Tests docs/users/exit_codes.md row by row: real jobs on one node and on several nodes produce each code."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, SOURCE, LaunchTest, Nodes, main

# For each row of the document, by its cells before the meaning: the case in Cases, or why it has none.
OURS = "only a mistake of ours makes it: tests/unit/launcher/report/exit_report_test.cc"
ROWS = {
    ("0",): "success", ("1 … 255",): "codes", ("1",): "watched", ("128 + n",): "signals", ("126, 127",): "not_executed",
    ("129, 130, 143",): "user_signals", ("2",): "usage", ("110 … 117",): "codes", ("2", "Usage"): "usage", ("110", "Internal"): OURS,
    ("110", "Protocol"): "protocol", ("111", "Unreachable"): "unreachable", ("112", "Timeout"): "start_timeout", ("113", "LinkLost"): "lost",
    ("114", "AgentMissing"): "agent_missing", ("114", "AgentMismatch"): "agent_mismatch", ("115", "Refused"): "refused", ("116", "System"): "system",
    ("117", "Hung"): "hung", ("126", "Exec"): "not_executed", ("143", "Cancelled"): "user_signals",
}


def documented_rows():
    """Returns the cells before the meaning of each row of both tables of codes."""
    rows = []
    sections = re.split("(?m)^## ", (SOURCE / "docs/users/exit_codes.md").read_text(encoding="utf-8"))
    for line in "".join(text for text in sections if "| code |" in text).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "code" and len(cells) in (2, 3):
            rows.append(tuple(cells[:-1]))
    return rows


class Document(unittest.TestCase):
    def test_every_row_has_its_case(self):
        rows = documented_rows()
        self.assertEqual(len(rows), len(set(rows)), "a duplicate row")
        self.assertEqual(set(rows), set(ROWS))
        for case in ROWS.values():
            for kind in (OneNode, TwoNodes):
                self.assertTrue(case == OURS or callable(getattr(kind, f"test_{case}", None)), case)


class Cases:
    """The cases that are the same on one node and on several. A class has the options of its nodes, the numbers of the last rank and the
    names of the first and the last host."""

    def ends(self, code, why, *args, **popen):
        """Runs a job, and checks its exit code and the reason in its last line."""
        done = self.run_job(*args, **popen)
        self.assert_code(done, code)
        if why is None:
            self.assertNotIn("ddplaunch: exit", done.err)
        else:
            self.assertRegex(done.err.splitlines()[-1], f"^ddplaunch: exit {code}: {why}", repr(done))
        return done

    def last_rank(self, what):
        """Options and worker of a job in which the last rank does something, and the others wait."""
        return [*self.options, "sh", "-c", f"ulimit -c 0; if [ $RANK = {self.last} ]; then {what}; fi; sleep 60"]

    def fake_agent(self, hello, then):
        """Makes a program that sends an agent's hello line, and then does something else."""
        return self.script("fake_agent", f"#!/bin/sh\nprintf '{hello}'\n{then}\n")

    def hosts(self, text):
        path = self.dir / "hosts"
        path.write_text(text)
        return ["--hostfile", path, "--ssh-config", self.nodes.ssh_config]

    def test_success(self):
        self.ends(0, None, *self.options, "true")

    def test_codes(self):
        for code in self.codes:
            self.ends(code, f"rank {self.last} on {self.host} exited {code}$", *self.last_rank(f"exit {code}"))

    def test_signals(self):
        for name in ("KILL", "SEGV", "TERM", "PIPE"):
            self.ends(128 + getattr(signal, f"SIG{name}"), f"rank {self.last} on {self.host} killed by SIG{name}", *self.last_rank(f"kill -{name} $$"))

    def test_user_signals(self):
        for name, why in (("HUP", "stopped by SIGHUP"), ("INT", "stopped by SIGINT from "), ("TERM", "stopped by SIG")):
            number = getattr(signal, f"SIG{name}")
            process = self.start(*self.options, "sh", "-c", "echo up; exec sleep 60")
            self.assertTrue(process.stdout.readline())
            process.send_signal(number)
            done = self.finish(process)
            self.assert_code(done, 128 + number)
            self.assertRegex(done.err.splitlines()[-1], f"^ddplaunch: exit {128 + number}: {why}")

    def test_usage(self):
        for bad in (["--no-such-option"], ["--nproc-per-node", "0"], ["--hostfile", self.dir / "none"]):
            with self.subTest(bad=bad[0]):
                done = self.run_job(*self.options, *bad, "true")
                self.assert_code(done, 2)
                self.assertRegex(done.err, "^ddplaunch: |none")

    def test_protocol(self):
        done = subprocess.run([BIN / "ddplaunchd", "--stdio"], input=b"", capture_output=True, check=False)
        hello = done.stdout.split(b"\n")[0].decode()
        self.assertTrue(hello.startswith("ddplaunchd-hello "), hello)
        agent = self.fake_agent(hello + r"\n", r"printf '\377\377\377\377\377\377'; exec cat >/dev/null")
        self.ends(110, "nodes? [^ ]+: ", *self.options, "--agent", agent, "true")

    def test_lost(self):
        # $PPID is the agent. Its keeper kills what the agent leaves.
        self.ends(113, "nodes? [^ ]+: the agent was killed by SIGKILL$", *self.last_rank("kill -KILL $PPID"))

    def test_agent_missing(self):
        self.ends(114, "nodes? [^ ]+: .*/no/such/ddplaunchd", *self.options, "--agent", "/no/such/ddplaunchd", "true")

    def test_agent_mismatch(self):
        agent = self.fake_agent(r"ddplaunchd-hello 9999 9.9.9\n", "exec cat >/dev/null")
        self.ends(114, "nodes? [^ ]+: .*9.9.9", *self.options, "--agent", agent, "true")

    def test_system(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.ends(116, f"node {self.first_host}: store: cannot listen on port {port}: Address already in use; choose another --master-port, or omit "
                           "it to use a free port$", *self.options, "--master-port", port, "true")

    def test_hung(self):
        self.ends(117, "the job hung: no worker printed anything or used CPU time for ", *self.options, "--hang-timeout", "1s", "sh", "-c", "sleep 600")

    def test_watched(self):
        self.ends(1, rf"""rank {self.last} on \S+ printed "loss nan" \(--watch 'nan=fail'\)$""", "--watch", "nan=fail", *self.last_rank("echo loss nan"))


class OneNode(Cases, LaunchTest):
    options, last, host, first_host = ["--nproc-per-node", 2], 1, "localhost", "localhost"
    codes = (1, 2, 3, 77, 110, 111, 112, 113, 114, 115, 116, 117, 126, 127, 128, 130, 137, 143, 255)

    def test_not_executed(self):
        self.ends(127, "node localhost: .*no-such-program-here", "--nproc-per-node", 2, "no-such-program-here")
        self.ends(126, "node localhost: .*/plain", self.script("plain", "#!/bin/sh\n", mode=0o644))
        self.ends(126, "node localhost: .* is a directory", self.dir)
        self.ends(127, "rank 0 on localhost could not be started: .*/no/such/interpreter",
                  self.script("broken", "#!/no/such/interpreter\n"))
        self.ends(126, "rank 0 on localhost could not be started: .*Exec format error", self.script("garbage", "\0\1\2\3"))

    def test_an_agent_names_what_it_lacks(self):
        for start, words in (("exec \"$0\" --stdio </dev/null", "its standard input is closed; "),
                             ("ulimit -n 10; exec \"$0\" --stdio", "too few open files are allowed there (ulimit -n 10)")):
            done = subprocess.run(["sh", "-c", start, BIN / "ddplaunchd"], input="", capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 110, repr(done))
            self.assertIn("ddplaunchd: " + words, done.stderr)

    def test_unreachable(self):
        self.ends(111, "node 127.0.0.77: ", "--host", "127.0.0.77", "--ssh-config", Nodes(self, 1).ssh_config, "true")

    def test_start_timeout(self):
        agent = self.script("mute_agent", "#!/bin/sh\nexec cat >/dev/null\n")
        # Usually the node's limit ends first. On a busy machine the job's limit may have ended too.
        why = r"nodes? [^ ]+: (no greeting of \S+ before the start limit; |it was still waiting for the agent's hello when the start limit)"
        self.ends(112, why, "--agent", agent, "--start-timeout", "1s", "true")

    def test_refused(self):
        self.ends(115, "node localhost: the working directory /no/such/dir", "--chdir", "/no/such/dir", "true")


class TwoNodes(Cases, LaunchTest):
    """Over SSH. If possible, the second node is the faulty one."""
    last, host, first_host, codes = 3, "127.0.0.3", "127.0.0.2", (1, 113, 255)

    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes.of_class(cls, 2)
        cls.options = ["--hostfile", cls.nodes.hostfile, "--ssh-config", cls.nodes.ssh_config]

    def test_not_executed(self):
        for name in ("one", "two"):
            (self.dir / name).mkdir()
        self.script("one/prog", "#!/bin/sh\nsleep 60\n")
        hosts = self.hosts(f"127.0.0.2 slots=1 chdir={self.dir}/one\n127.0.0.3 slots=1 chdir={self.dir}/two\n")
        done = self.ends(127, "node 127.0.0.3: ", *hosts, "./prog")
        self.assertIn(f"{self.dir}/two", done.err)
        report = json.loads((self.job_dir / "report.json").read_text())
        cause = report["root_cause"]
        self.assertEqual((report["outcome"], cause["host"], cause["error"]["kind"], cause["error"]["errno"]), ("not_started", "127.0.0.3", "Exec", 2))
        self.script("two/prog", "#!/bin/sh\n", mode=0o644)
        self.ends(126, "node 127.0.0.3: ", *hosts, "./prog")
        self.script("two/prog", "#!/no/such/interpreter\n")
        done = self.ends(127, "rank 1 on 127.0.0.3 could not be started: ", *hosts, "./prog")
        self.assertIn("/no/such/interpreter", done.err)
        report = json.loads((self.job_dir / "report.json").read_text())
        cause = report["root_cause"]
        self.assertEqual((cause["what"], cause["host"], cause["rank"], cause["pid"], cause["error"]["kind"]), ("not_executed", "127.0.0.3", 1, None, "Exec"))
        # The other node may not have started its worker yet.
        self.assertLessEqual({(f["rank"], f["stopped_by_ddplaunch"]) for f in report["other_failures"]}, {(0, True)})

    def test_unreachable(self):
        self.ends(111, "node 127.0.0.77: ", *self.hosts("127.0.0.2 slots=1\n127.0.0.77 slots=1\n"), "true")

    def test_start_timeout(self):
        setup = "case $SSH_CONNECTION in *127.0.0.3*) sleep 100;; esac"
        done = self.ends(112, r"node 127\.0\.0\.3: it was still running --setup when the start limit of 5 s ran out \(--start-timeout\)$",
                         *self.options, "--start-timeout", "5s", "--setup", setup, "true")
        self.assertNotIn("127.0.0.2: it", done.err)

    def test_refused(self):
        self.ends(115, "node 127.0.0.3: the working directory /no/such/dir",
                  *self.hosts("127.0.0.2 slots=1\n127.0.0.3 slots=1 chdir=/no/such/dir\n"), "true")

    def test_usage(self):
        super().test_usage()
        self.assert_code(self.run_job(*self.hosts("127.0.0.2 slots=4x\n"), "true"), 2)
        self.assert_code(self.run_job(*self.options, "--nproc-per-node", 3, "true"), 2)


if __name__ == "__main__":
    main()
