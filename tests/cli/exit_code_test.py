#!/usr/bin/env python3
"""Tests docs/users/exit_codes.md row by row: real jobs on one node and on several nodes produce each code."""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, SOURCE, LaunchTest, Nodes, main

# For each row of the document, by its cells before the meaning: the cases for one node and for several, or why it has none.
OURS = "only a mistake of ours makes it: tests/unit/launcher/report/exit_report_test.cc"
ROWS = {
    ("0",): ("success", "success_of_nodes"),
    ("1 … 255",): ("codes", "codes_of_nodes"),
    ("1",): ("watched", "watched_of_nodes"),
    ("128 + n",): ("signals", "signals_of_nodes"),
    ("126, 127",): ("not_executed", "not_executed_of_nodes"),
    ("129, 130, 143",): ("user_signals", "user_signals_of_nodes"),
    ("2",): ("usage", "usage_of_nodes"),
    ("110 … 117",): ("reserved_codes_may_be_a_workers", "reserved_codes_may_be_a_workers_of_nodes"),
    ("2", "Usage"): ("usage", "usage_of_nodes"),
    ("110", "Internal"): (OURS, OURS),
    ("110", "Protocol"): ("protocol", "protocol_of_nodes"),
    ("111", "Unreachable"): ("unreachable", "unreachable_of_nodes"),
    ("112", "Timeout"): ("start_timeout", "start_timeout_of_nodes"),
    ("113", "LinkLost"): ("lost", "lost_of_nodes"),
    ("114", "AgentMissing"): ("agent_missing", "agent_missing_of_nodes"),
    ("114", "AgentMismatch"): ("agent_mismatch", "agent_mismatch_of_nodes"),
    ("115", "Refused"): ("refused", "refused_of_nodes"),
    ("116", "System"): ("system", "system_of_nodes"),
    ("117", "Hung"): ("hung", "hung_of_nodes"),
    ("126", "Exec"): ("not_executed", "not_executed_of_nodes"),
    ("143", "Cancelled"): ("user_signals", "user_signals_of_nodes"),
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
    def test_every_row_has_its_cases_and_every_case_a_row(self):
        rows = documented_rows()
        self.assertEqual(len(rows), len(set(rows)), "a duplicate row")
        self.assertEqual(set(rows), set(ROWS))
        for cases in ROWS.values():
            for case, kind in zip(cases, (OneNode, Nodes2)):
                self.assertTrue(case == OURS or callable(getattr(kind, f"test_{case}", None)), case)


class ExitCodes(LaunchTest):
    def ends(self, code, why, *args, **popen):
        """Runs a job, and checks its exit code and the reason in its last line."""
        done = self.run_job(*args, **popen)
        self.assert_code(done, code)
        if why is None:
            self.assertNotIn("ddplaunch: exit", done.err)
        else:
            self.assertRegex(done.err.splitlines()[-1], f"^ddplaunch: exit {code}: {why}", repr(done))
        return done

    def try_system(self, node, *hosts):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.ends(116, f"node {node}: store: cannot listen on port {taken.getsockname()[1]}: Address already in use; choose "
                           f"another --master-port, or omit it to use a free port$",
                      *hosts, "--master-port", taken.getsockname()[1], "true")

    def stopped_by(self, number, *args):
        """Waits for the job's first line of output, and sends the signal to ddplaunch."""
        process = self.start(*args)
        self.assertTrue(process.stdout.readline())
        process.send_signal(number)
        return self.finish(process, timeout=40)

    def fake_agent(self, hello, then):
        """Makes a program that sends an agent's hello line, and then does something else."""
        return self.script("fake_agent", f"#!/bin/sh\nprintf '{hello}'\n{then}\n")

    def real_hello(self):
        done = subprocess.run([BIN / "ddplaunchd", "--stdio"], input=b"", capture_output=True, check=False)
        hello = done.stdout.split(b"\n")[0].decode()
        self.assertTrue(hello.startswith("ddplaunchd-hello "), hello)
        return hello

    def try_usage(self, *args):
        for bad in (["--no-such-option"], ["--nproc-per-node", "0"], ["--hostfile", self.dir / "none"]):
            with self.subTest(bad=bad[0]):
                done = self.run_job(*args, *bad, "true")
                self.assert_code(done, 2)
                self.assertRegex(done.err, "^ddplaunch: |none")

    def try_protocol(self, *args):
        for start, words in (("exec \"$0\" --stdio </dev/null", "its standard input is closed; "),
                             ("ulimit -n 10; exec \"$0\" --stdio", "too few open files are allowed there (ulimit -n 10)")):
            done = subprocess.run(["sh", "-c", start, BIN / "ddplaunchd"], input="", capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 110, repr(done))
            self.assertIn("ddplaunchd: " + words, done.stderr)
        agent = self.fake_agent(self.real_hello() + r"\n", r"printf '\377\377\377\377\377\377'; exec cat >/dev/null")
        self.ends(110, "nodes? [^ ]+: ", *args, "--agent", agent, "true")

    def try_start_timeout(self, *args):
        agent = self.script("mute_agent", "#!/bin/sh\nexec cat >/dev/null\n")
        # Usually the node's limit ends first. On a busy machine the job's limit may have ended too. Over SSH it includes the logins.
        why = r"nodes? [^ ]+: (no greeting of \S+ before the start limit; |it was still waiting for the agent's hello when the start limit)"
        self.ends(112, why, *args, "--agent", agent, "--start-timeout", "10s" if args else "1s", "true")

    def try_lost(self, *args):
        # $PPID is the agent. Its keeper kills what the agent leaves.
        last = "$((WORLD_SIZE - 1))"
        self.ends(113, "nodes? [^ ]+: the agent was killed by SIGKILL$", *args, "sh", "-c",
                  f"if [ $RANK = {last} ]; then kill -KILL $PPID; fi; sleep 60")

    def try_agent_missing(self, *args):
        self.ends(114, "nodes? [^ ]+: .*/no/such/ddplaunchd", *args, "--agent", "/no/such/ddplaunchd", "true")

    def try_agent_mismatch(self, *args):
        agent = self.fake_agent(r"ddplaunchd-hello 9999 9.9.9\n", "exec cat >/dev/null")
        self.ends(114, "nodes? [^ ]+: .*9.9.9", *args, "--agent", agent, "true")

    def try_hung(self, *args):
        self.ends(117, "the job hung: no worker printed anything or used CPU time for ", *args, "--hang-timeout", "1s", "sh", "-c", "sleep 600")

    def try_watched(self, *args):
        self.ends(1, r"""rank 1 on \S+ printed "loss nan" \(--watch 'nan=fail'\)$""", *args, "--watch", "nan=fail", "sh", "-c",
                  "[ $RANK = 1 ] && echo loss nan; sleep 60")


class OneNode(ExitCodes):
    def test_success(self):
        self.ends(0, None, "--nproc-per-node", 2, "true")

    def test_codes(self):
        for code in (1, 2, 3, 64, 77, 99, 120, 125, 126, 127, 128, 130, 137, 143, 254, 255):
            with self.subTest(code=code):
                self.ends(code, f"rank 1 on localhost exited {code}$", "--nproc-per-node", 2, "sh", "-c",
                          f"if [ $RANK = 1 ]; then exit {code}; fi; sleep 60")

    def test_signals(self):
        for name in ("ABRT", "KILL", "SEGV", "TERM", "BUS", "FPE", "ILL", "USR1", "PIPE"):
            with self.subTest(signal=name):
                number = getattr(signal, f"SIG{name}")
                self.ends(128 + number, f"rank 0 on localhost killed by SIG{name}", "--nproc-per-node", 2, "sh", "-c",
                          f"ulimit -c 0; if [ $RANK = 0 ]; then kill -{name} $$; fi; sleep 60")

    def test_not_executed(self):
        self.ends(127, "node localhost: .*no-such-program-here", "--nproc-per-node", 2, "no-such-program-here")
        self.ends(126, "node localhost: .*/plain", self.script("plain", "#!/bin/sh\n", mode=0o644))
        self.ends(126, "node localhost: .* is a directory", self.dir)
        self.ends(127, "rank 0 on localhost could not be started: .*/no/such/interpreter",
                  self.script("broken", "#!/no/such/interpreter\n"))
        self.ends(126, "rank 0 on localhost could not be started: .*Exec format error", self.script("garbage", "\0\1\2\3"))

    def test_user_signals(self):
        for name, why in (("HUP", "stopped by SIGHUP"), ("INT", "stopped by SIGINT from "), ("TERM", "stopped by SIG")):
            for worker in ("exec sleep 60", 'trap "exit 0" TERM; while :; do sleep 0.05; done'):
                with self.subTest(signal=name, worker=worker):
                    number = getattr(signal, f"SIG{name}")
                    done = self.stopped_by(number, "sh", "-c", f"echo up; {worker}")
                    self.assert_code(done, 128 + number)
                    self.assertRegex(done.err.splitlines()[-1], f"^ddplaunch: exit {128 + number}: {why}")

    def test_usage(self):
        self.try_usage()

    def test_reserved_codes_may_be_a_workers(self):
        for code in range(110, 120):
            self.ends(code, f"rank 0 on localhost exited {code}$", "sh", "-c", f"exit {code}")

    def test_protocol(self):
        self.try_protocol()

    def test_unreachable(self):
        nodes = Nodes(self, 1)
        self.ends(111, "node 127.0.0.77: ", "--host", "127.0.0.77", "--ssh-config", nodes.ssh_config, "true")

    def test_start_timeout(self):
        self.try_start_timeout()

    def test_lost(self):
        self.try_lost()

    def test_agent_missing(self):
        self.try_agent_missing()

    def test_agent_mismatch(self):
        self.try_agent_mismatch()

    def test_refused(self):
        self.ends(115, "node localhost: the working directory /no/such/dir", "--chdir", "/no/such/dir", "true")

    def test_system(self):
        self.try_system("localhost")

    def test_hung(self):
        self.try_hung()

    def test_watched(self):
        self.try_watched("--nproc-per-node", 2)


class Nodes2(ExitCodes):
    """The same tests over SSH. If possible, the second node is the faulty one."""

    def setUp(self):
        super().setUp()
        self.nodes = Nodes(self, 2)
        self.ssh = ["--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config]

    def worker(self, what):
        """Returns a worker command: rank 3, the last one on the second node, runs `what`; the others wait."""
        return ["sh", "-c", f"ulimit -c 0; if [ $RANK = 3 ]; then {what}; fi; sleep 60"]

    def hosts(self, text):
        path = self.dir / "hosts"
        path.write_text(text)
        return ["--hostfile", path, "--ssh-config", self.nodes.ssh_config]

    def test_success_of_nodes(self):
        self.ends(0, None, *self.ssh, "true")

    def test_codes_of_nodes(self):
        for code in (1, 3, 255):
            self.ends(code, f"rank 3 on 127.0.0.3 exited {code}$", *self.ssh, *self.worker(f"exit {code}"))

    def test_signals_of_nodes(self):
        for name in ("KILL", "SEGV", "TERM"):
            self.ends(128 + getattr(signal, f"SIG{name}"), f"rank 3 on 127.0.0.3 killed by SIG{name}", *self.ssh,
                      *self.worker(f"kill -{name} $$"))

    def test_not_executed_of_nodes(self):
        for name in ("one", "two"):
            (self.dir / name).mkdir()
        self.script("one/prog", "#!/bin/sh\nsleep 60\n")
        hosts = self.hosts(f"127.0.0.2 slots=1 chdir={self.dir}/one\n127.0.0.3 slots=1 chdir={self.dir}/two\n")
        self.ends(127, "node 127.0.0.3: ", *hosts, "./prog")
        self.script("two/prog", "#!/bin/sh\n", mode=0o644)
        self.ends(126, "node 127.0.0.3: ", *hosts, "./prog")
        self.script("two/prog", "#!/no/such/interpreter\n")
        self.ends(127, "rank 1 on 127.0.0.3 could not be started: ", *hosts, "./prog")

    def test_user_signals_of_nodes(self):
        for name in ("HUP", "INT", "TERM"):
            number = getattr(signal, f"SIG{name}")
            done = self.stopped_by(number, *self.ssh, "sh", "-c", 'trap "exit 0" TERM; echo up; while :; do sleep 0.05; done')
            self.assert_code(done, 128 + number)

    def test_usage_of_nodes(self):
        self.try_usage(*self.ssh)
        done = self.run_job(*self.hosts("127.0.0.2 slots=4x\n"), "true")
        self.assert_code(done, 2)
        done = self.run_job(*self.ssh, "--nproc-per-node", 3, "true")
        self.assert_code(done, 2)

    def test_reserved_codes_may_be_a_workers_of_nodes(self):
        self.ends(113, "rank 3 on 127.0.0.3 exited 113$", *self.ssh, *self.worker("exit 113"))

    def test_protocol_of_nodes(self):
        self.try_protocol(*self.ssh)

    def test_unreachable_of_nodes(self):
        self.ends(111, "node 127.0.0.77: ", *self.hosts("127.0.0.2 slots=1\n127.0.0.77 slots=1\n"), "true")

    def test_start_timeout_of_nodes(self):
        self.try_start_timeout(*self.ssh)

    def test_lost_of_nodes(self):
        self.try_lost(*self.ssh)

    def test_agent_missing_of_nodes(self):
        self.try_agent_missing(*self.ssh)

    def test_agent_mismatch_of_nodes(self):
        self.try_agent_mismatch(*self.ssh)

    def test_refused_of_nodes(self):
        self.ends(115, "node 127.0.0.3: the working directory /no/such/dir",
                  *self.hosts("127.0.0.2 slots=1\n127.0.0.3 slots=1 chdir=/no/such/dir\n"), "true")

    def test_system_of_nodes(self):
        self.try_system("127.0.0.2", *self.ssh)

    def test_hung_of_nodes(self):
        self.try_hung(*self.ssh)

    def test_watched_of_nodes(self):
        self.try_watched(*self.ssh)


if __name__ == "__main__":
    main()
