#!/usr/bin/env python3
"""Tests wrong input: the user gets one clear error with the exact text and the documented exit code, and no worker starts."""

import os
import pathlib
import re
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, LaunchTest, Nodes, main


class WrongOptions(LaunchTest):
    """Errors that are found before anything is started."""

    def assert_refused(self, done, *lines):
        self.assert_code(done, 2)
        self.assertEqual(done.out, "")
        self.assertEqual(done.err.splitlines(), ["ddplaunch: " + line for line in lines])
        self.assertFalse(self.job_dir.exists(), "a job directory was made")

    def hosts(self, text):
        (self.dir / "hosts").write_text(text)
        return "--hostfile", "hosts"

    def test_a_result_that_cannot_be_written(self):
        full = "cannot write the result to standard output: No space left on device"
        closed = "cannot write the result: standard output is closed"
        for args in (["--version"], ["--help"], ["--dry-run", "true"]):
            for target, why in ((">/dev/full", full), (">&-", closed)):
                done = subprocess.run(["sh", "-c", f'exec "$@" {target}', "-", *self.command(*args)], capture_output=True,
                                      text=True, env=self.env, stdin=subprocess.DEVNULL)
                self.assertEqual((done.returncode, done.stderr), (116, f"ddplaunch: exit 116: {why}\n"), args)

    def test_line_feeds_in_user_input_are_escaped(self):
        done = self.run_job("--chdir", "/no\nddplaunch: exit 0: \x1b[2J", "true")
        self.assert_code(done, 115)
        self.assertEqual(done.err.splitlines()[-1], "ddplaunch: exit 115: node localhost: the working directory "
                         r"/no\nddplaunch: exit 0: \x1b[2J: No such file or directory; create it there, or name another with "
                         "--chdir or chdir= in the hostfile")
        done = self.run_job("/no\n\x1b[31mprogram")
        self.assert_code(done, 127)
        self.assertNotRegex(done.err, r"\x1b|\n\[31m")
        self.assertIn(r"/no\n\x1b[31mprogram", done.err.splitlines()[-1])

    def test_directories_that_cannot_be_created(self):
        for option in ("--job-dir", "--log-dir"):
            done = self.run_job(option, "/proc/none", "true")
            self.assert_code(done, 2)
            self.assertRegex(done.err.splitlines()[-1], rf"^ddplaunch: exit 2: the (job|log) directory /proc/none.*: (No such file or "
                             rf"directory|Permission denied); choose another with {option}$")

    def test_an_unusable_state_directory_is_replaced(self):
        temporary = f"{self.dir}/ddplaunch-{os.geteuid()}"
        for place, why in (("/proc", "no directory can be created in /proc"), ("/dev/null", "/dev/null is not a directory")):
            done = self.run_in_state(place, "sh", "-c", "echo here")
            self.assertEqual(done.returncode, 0, done.stderr)
            note = re.fullmatch(rf"ddplaunch: {why}; the job's files are in ({temporary}/jobs/{self.job}\.[0-9a-f-]+)\n", done.stderr)
            self.assertIsNotNone(note, done.stderr)
            self.assertEqual(pathlib.Path(note[1], "attempt_0/rank_00000.stdout").read_text(), "here\n")
            self.assertEqual([os.stat(path).st_mode & 0o777 for path in (temporary, f"{temporary}/jobs", note[1])], [0o700] * 3)
        # A directory that another user could have prepared is not used.
        os.rename(temporary, f"{self.dir}/elsewhere")
        os.symlink(f"{self.dir}/elsewhere", temporary)
        done = self.run_in_state("/dev/null", "true")
        self.assertEqual((done.returncode, done.stderr),
                         (2, "ddplaunch: exit 2: /dev/null is not a directory: the directory for the job's files "
                             f"{temporary} is a symbolic link; choose another with --job-dir\n"))

    def run_in_state(self, place, *worker):
        return subprocess.run([DDPLAUNCH, "--job-id", self.job, *worker], capture_output=True, text=True,
                              env=dict(self.env, XDG_STATE_HOME=place, TMPDIR=str(self.dir)), stdin=subprocess.DEVNULL)

    def test_words_and_characters_of_other_places_are_named(self):
        for line, said in (("a np=4", "hosts:1:3: unknown key np; did you mean slots?"),
                           ("a slots\u20134", 'hosts:1:3: unexpected word "slots\u20134"; write pairs like slots=8 after the host; the line has '
                                              "\u2013 (U+2013), type - instead"),
                           ("node\u20131 slots=4", "hosts:1:5: byte 0xe2 is not allowed in a host name; the line has \u2013 (U+2013), type - instead"),
                           ("a chdir=\u201c/x\u201d", 'hosts:1:9: chdir=\u201c/x\u201d: a path on the node must begin with /; the line has '
                                                      '\u201c (U+201C), type " instead')):
            self.assert_refused(self.run_job(*self.hosts(line + "\n"), "true"), said)

    def test_all_errors_at_once(self):
        done = self.run_job(*self.hosts("a slots=0\nb slots=4x\nc what=1\n"), "--master-port", "99999", "true")
        self.assert_code(done, 2)
        for place in ("hosts:1:9: ", "hosts:2:9: ", "hosts:3:3: ", "--master-port 99999"):
            self.assertIn("ddplaunch: " + place, done.err)

    def test_no_arguments(self):
        done = subprocess.run([DDPLAUNCH], capture_output=True, text=True, env=self.env, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertTrue(done.stderr.startswith("ddplaunch: no worker given; usage: ddplaunch "), done)

    def test_a_note_under_dry_run(self):
        done = self.run_job("--dry-run", "--tag-output", "true")
        self.assert_code(done, 0)
        self.assertRegex(done.err, "^ddplaunch: --tag-output has no effect: ")


class WrongCluster(LaunchTest):
    """Errors that are found while the nodes are reached. No worker runs on any node."""

    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes.of_class(cls, 1)

    def assert_refused(self, done, code, cause):
        """Checks that the last line has `cause` after the exit code, and that no worker started."""
        self.assert_code(done, code)
        self.assertEqual(done.err.splitlines()[-1], f"ddplaunch: exit {code}: {cause}")
        self.assertNotIn("started-anyway", done.out)
        self.assertLess(done.seconds, 20)

    def launch_on(self, hosts, *options, program=("echo", "started-anyway")):
        (self.dir / "hosts").write_text(hosts)
        return self.run_job("--hostfile", "hosts", "--ssh-config", self.nodes.ssh_config, *options, *program)

    def test_refused_connection(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.9", 0))  # bound, not listening: connections to it are refused
            port = taken.getsockname()[1]
            done = self.launch_on(f"127.0.0.2\n127.0.0.9 port={port}\n")
        self.assert_refused(done, 111, f"node 127.0.0.9: cannot connect to 127.0.0.9:{port}: Connection refused; check that sshd "
                                       f"runs there, and on this port")

    def test_two_broken_hosts_are_both_named(self):
        done = self.launch_on("127.0.0.2\nno-such-host-a.invalid\nno-such-host-b.invalid\n")
        self.assert_code(done, 111)
        self.assertIn("nodes no-such-host-a.invalid,no-such-host-b.invalid: cannot resolve no-such-host-….invalid: Name or service "
                      "not known", done.err)

    def test_garbage_instead_of_the_greeting(self):
        fake = self.script("garbage", "#!/bin/sh\necho this is not an agent\necho nor this >&2\n")
        done = self.launch_on("127.0.0.2\n", "--agent", fake)
        self.assert_refused(done, 114, f"node 127.0.0.2: {fake} ended with exit status 0 before its greeting")
        for line in ("this is not an agent", "nor this"):
            self.assertIn("      " + line, done.err.splitlines())


if __name__ == "__main__":
    main()
