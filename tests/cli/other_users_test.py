#!/usr/bin/env python3
"""Tests a hostile user on the same machine: per-node mode on loopback, its token file, the job's directory."""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, main, wait_until
from tests.support.per_node import PerNodeTest

TOKEN = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
VICTIM, MALLORY = 61236, 61237  # users that do not exist; not those of machines.py, since limits count processes by user


class OtherUsers(PerNodeTest):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            self.skipTest("only root can run as two other users (with setpriv)")
        self.dir.chmod(0o755)
        (self.dir / "bin").mkdir()
        for name in ("ddplaunch", "ddplaunchd"):
            shutil.copy(BIN / name, self.dir / "bin" / name)
        self.homes = {}
        for uid in (VICTIM, MALLORY):
            self.homes[uid] = self.dir / f"home{uid}"
            self.homes[uid].mkdir(mode=0o700)
            os.chown(self.homes[uid], uid, uid)
        try:
            subprocess.run([*self.as_user(VICTIM), self.dir / "bin/ddplaunch", "--version"], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            self.skipTest(f"another user cannot run the programs here: {error.stderr}")

    def as_user(self, uid):
        return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]

    def launch(self, uid, *args, **env):
        """Starts ddplaunch as that user, in the user's home."""
        home = self.homes[uid]
        env = {**self.env, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config"),
               "XDG_RUNTIME_DIR": str(home), **env}
        process = subprocess.Popen([*self.as_user(uid), self.dir / "bin/ddplaunch", "--job-id", self.job, *map(str, args)], env=env,
                                   cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
            process.communicate()

    def listener(self, uid):
        """Starts a process of that user that only listens at the port."""
        code = f"import socket; s = socket.socket(); s.bind(('127.0.0.1', {self.port})); s.listen(); print(flush=True); s.accept()"
        process = subprocess.Popen([*self.as_user(uid), sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        process.stdout.readline()
        return process

    def test_too_few_processes_are_an_error_with_advice(self):
        home = self.homes[VICTIM]
        done = subprocess.run(["prlimit", "--nproc=1", *self.as_user(VICTIM), self.dir / "bin/ddplaunch", "true"],
                              env={**self.env, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}, cwd=home,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, 116, done.stderr)
        self.assertEqual(done.stderr, "ddplaunch: exit 116: the system refused a thread or memory: Resource temporarily unavailable; "
                                      "check ulimit -u and ulimit -v\n")

    def test_a_node_refuses_the_master_of_another_user(self):
        master = self.launch(MALLORY, *self.node_options(0), "--start-timeout", "15s", "true")
        self.assertTrue(wait_until(self.listens))
        node = self.end_of(self.launch(VICTIM, *self.node_options(1), "true"))
        self.assert_code(node, 111)
        self.assertIn("the token differs", node.err)
        self.assertIn(f"/home{VICTIM}/config/ddplaunch/loopback-token", node.err)
        self.assertIn(f"; a process of uid {MALLORY} listens there", node.err)
        master.kill()
        self.end_of(master)

    def test_a_node_of_another_user_is_refused(self):
        master = self.launch(VICTIM, *self.node_options(0), "--start-timeout", "15s", "true")
        self.assertTrue(wait_until(self.listens))
        self.assert_code(self.end_of(self.launch(MALLORY, *self.node_options(1), "true")), 111)
        self.assert_code(self.end_of(self.launch(MALLORY, *self.node_options(1), "--insecure", "true")), 111)
        done = self.end_of(master)
        self.assert_code(done, 112)
        self.assertIn("its token differs from ours", done.err)

    def test_the_nodes_of_one_user_need_no_token(self):
        nodes = [self.launch(VICTIM, *self.node_options(None), "true") for _ in range(2)]
        self.assertEqual([self.end_of(node).code for node in nodes], [0, 0])
        kept = self.homes[VICTIM] / "config/ddplaunch"
        self.assertEqual([path.name for path in kept.iterdir()], ["loopback-token"])
        self.assertEqual(stat.S_IMODE(kept.stat().st_mode), 0o700)
        self.assertEqual(stat.S_IMODE((kept / "loopback-token").stat().st_mode), 0o600)
        self.assertEqual((kept / "loopback-token").stat().st_uid, VICTIM)

    def test_a_port_of_another_user_is_reported_with_the_user(self):
        other = self.listener(MALLORY)
        for rank in (0, None):
            done = self.end_of(self.launch(VICTIM, *self.node_options(rank), "true"))
            self.assert_code(done, 116)
            self.assertIn(f"port {self.port} is in use on this machine by a process of uid {MALLORY}; give all nodes another "
                          "--master-port", done.err)
        env = dict(self.env, XDG_CONFIG_HOME=str(self.dir / "config"))
        done = self.end_of(self.start(*self.node_options(0), "true", env=env))
        self.assert_code(done, 116)
        self.assertIn(f"by process {other.pid} ({pathlib.Path(f'/proc/{other.pid}/comm').read_text().strip()}) of uid {MALLORY}", done.err)

    def test_a_token_file_of_another_user_is_refused(self):
        kept = self.homes[VICTIM] / "config/ddplaunch"
        kept.mkdir(parents=True)
        (kept / "loopback-token").write_text(TOKEN)
        (kept / "loopback-token").chmod(0o600)
        cases = [(MALLORY, MALLORY, 0o700, f"the directory {kept} belongs to uid {MALLORY} and not to you (uid {VICTIM})"),
                 (VICTIM, MALLORY, 0o700, "loopback-token: Permission denied"),
                 (VICTIM, VICTIM, 0o777, f"the directory {kept} is writable by everybody;")]
        for directory, file, mode, words in cases:
            os.chown(kept, directory, directory)
            os.chown(kept / "loopback-token", file, file)
            kept.chmod(mode | (0o055 if directory == MALLORY else 0))
            done = self.end_of(self.launch(VICTIM, *self.node_options(1), "true"))
            self.assert_code(done, 2)
            self.assertIn(words, done.err)
            self.assertIn("or give all nodes DDPLAUNCH_TOKEN or --token-file FILE", done.err)

    def make_place(self):
        """Makes a directory like /tmp, with directories of both users and a link of Mallory's into the victim's home."""
        place = self.dir / "place"
        place.mkdir()
        place.chmod(0o1777)
        for path, uid, mode in ((place / "theirs", MALLORY, 0o777), (place / "closed", MALLORY, 0o755), (place / "closed/sub", VICTIM, 0o755),
                                (self.homes[VICTIM] / "mine", VICTIM, 0o755)):
            path.mkdir()
            os.chown(path, uid, uid)
            path.chmod(mode)
        (place / "link").symlink_to(self.homes[VICTIM] / "mine")
        os.lchown(place / "link", MALLORY, MALLORY)
        return place

    def test_a_job_directory_of_another_user_or_behind_a_link_is_refused(self):
        place = self.make_place()
        theirs = f"belongs to uid {MALLORY} and not to you (uid {VICTIM})"
        for name, words in (("theirs", f" {theirs}"), ("link", " is a symbolic link"), ("closed/sub", f": the directory {place}/closed {theirs}"),
                            ("theirs/sub", f": the directory {place}/theirs {theirs}"),
                            ("link/sub/sub", f": the directory {place}/link is a symbolic link of another user (uid {MALLORY})")):
            done = self.end_of(self.launch(VICTIM, "--job-dir", place / name, "true"))
            self.assert_code(done, 2)
            self.assertIn(f"the job directory {place}/{name}{words}; choose another with --job-dir", done.err)
        for name in ("theirs", "closed/sub"):
            self.assertEqual(list((place / name).iterdir()), [])
        self.assert_code(self.end_of(self.launch(VICTIM, "--job-dir", place / "new/sub", "true")), 0)

    def test_a_log_directory_of_another_user_or_their_link_is_refused(self):
        place = self.make_place()
        theirs = f"belongs to uid {MALLORY} and not to you (uid {VICTIM})"
        for name, at, words in (("theirs", "theirs", theirs), ("theirs/sub", "theirs", theirs), ("closed/sub", "closed", theirs),
                                ("link", "link", f"is a symbolic link of another user (uid {MALLORY})")):
            done = self.end_of(self.launch(VICTIM, "--log-dir", place / name, "echo", "words"))
            self.assert_code(done, 2)
            self.assertRegex(done.err, rf"the log directory {place}/{name}/{self.job}\.[0-9a-f-]+: " +
                             re.escape(f"the directory {place}/{at} {words}; choose another with --log-dir"))
        for path in (place / "theirs", self.homes[VICTIM] / "mine"):
            self.assertEqual(list(path.iterdir()), [])
        (self.homes[VICTIM] / "own").symlink_to("mine")
        os.lchown(self.homes[VICTIM] / "own", VICTIM, VICTIM)
        for number, path in enumerate((place, self.homes[VICTIM] / "own")):  # a directory like /tmp, and the user's own link
            job = f"{self.job}-{number}"
            self.assert_code(self.end_of(self.launch(VICTIM, "--job-id", job, "--log-dir", path, "echo", "words")), 0)
            [log] = path.glob(f"{job}.*/attempt_0/0/stdout.log")
            self.assertEqual(log.read_text(), "words\n")

    def test_a_report_is_not_written_through_a_link_of_another_user(self):
        place = self.make_place()
        thesis = self.homes[VICTIM] / "mine/thesis.json"
        thesis.write_text("years of work\n")
        os.chown(thesis, VICTIM, VICTIM)
        (place / "r.json").symlink_to(thesis)
        os.lchown(place / "r.json", MALLORY, MALLORY)
        (self.homes[VICTIM] / "r.json").symlink_to(place / "r.json")
        os.lchown(self.homes[VICTIM] / "r.json", VICTIM, VICTIM)
        for path in (place / "r.json", self.homes[VICTIM] / "r.json"):
            done = self.end_of(self.launch(VICTIM, "--report", path, "touch", "started"))
            self.assert_code(done, 2)
            self.assertIn(f"--report {path} cannot be written: {place}/r.json is a symbolic link of another user (uid {MALLORY})", done.err)
        self.assertEqual(thesis.read_text(), "years of work\n")
        self.assertFalse((self.homes[VICTIM] / "started").exists())



if __name__ == "__main__":
    main()
