#!/usr/bin/env python3
"""Tests job files (ddplaunch run) and the user's settings (config.yaml) as a user has them."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, SOURCE, LaunchTest, main

SCHEMAS = SOURCE / "configs/schema"


class JobFile(LaunchTest):
    def setUp(self):
        super().setUp()
        # The settings are found in HOME, where the test has its own.
        del self.env["XDG_CONFIG_HOME"]
        self.env["HOME"] = str(self.dir)
        self.settings = self.dir / ".config/ddplaunch/config.yaml"
        self.settings.parent.mkdir(parents=True)

    def run_file(self, text, *options):
        (self.dir / "job.yaml").write_text(text)
        # The options of the harness stand behind the file.
        return self.run_job("--job-file", "job.yaml", *options)

    def test_a_job_file_starts_its_worker(self):
        done = self.run_file("nproc-per-node: 2\nlabel: ''\nenv: {WORD: 'a b'}\nworker: [sh, -c, 'echo $RANK $WORD $0', 'last one']\n")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 a b last one", "1 a b last one"])

    def test_the_command_line_replaces_options_and_worker(self):
        done = self.run_file("nproc-per-node: 2\nlabel: ''\nworker: [\"false\"]\n", "--nproc-per-node", 1, "echo", "hello")
        self.assert_code(done, 0)
        self.assertEqual(done.out, "hello\n")

    def test_settings_hold_for_each_job(self):
        self.settings.write_text("label: ''\nquiet: true\n")
        done = self.run_job("echo", "hello")
        self.assert_code(done, 0)
        self.assertEqual((done.out, done.err), ("hello\n", ""))
        done = self.run_job("--label", "x ", "echo", "hello")
        self.assertEqual(done.out, "x hello\n")

    def test_errors_have_their_places(self):
        self.settings.write_text("nnodes: 2\n")
        done = self.run_file("nproc-per-nod: 2\nstore: disk\n", "true")
        self.assert_code(done, 2)
        self.assertEqual(done.err.splitlines(), [
            'ddplaunch: job.yaml:1:1: unknown option "nproc-per-nod"; did you mean nproc-per-node?',
            'ddplaunch: job.yaml:2:8: unknown --store "disk" (agent, worker)',
            f"ddplaunch: {self.settings}:1:1: nnodes is an option of one job; give it on the command line or in a job file"])

    def test_settings_that_others_can_write_are_ignored(self):
        self.settings.write_text("label: 'x '\n")
        self.settings.chmod(0o666)
        done = self.run_job("--label", "", "echo", "hello")
        self.assert_code(done, 0)
        self.assertEqual(done.out, "hello\n")
        self.assertEqual(done.err.splitlines()[0], f"ddplaunch: settings ignored: {self.settings}: it is writable by everybody")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv, to run as another user")
    def test_a_directory_that_cannot_be_searched_has_no_settings(self):
        self.settings.write_text("nproc-per-node: 3\n")
        self.dir.chmod(0o755)
        self.settings.parent.chmod(0o700)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", DDPLAUNCH, "--dry-run", "true"],
                              env=self.env, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.endswith("all options have their defaults\n"), done.stdout)

    @unittest.skipUnless(os.geteuid() == 0, "only root can give files to another user")
    def test_settings_of_another_user_are_ignored(self):
        self.settings.write_text("label: 'x '\n")
        os.chown(self.settings, 12345, 12345)
        done = self.run_job("echo", "hello")
        self.assert_code(done, 0)
        self.assertIn(f"settings ignored: {self.settings}: it belongs to uid 12345 and not to you (uid 0)", done.err)
        self.assertNotIn("x hello", done.out)
        # A link of another user is not followed either.
        os.chown(self.settings, 0, 0)
        link = self.dir / "linked"
        link.mkdir()
        (link / "ddplaunch").mkdir()
        (link / "ddplaunch/config.yaml").symlink_to(self.settings)
        os.lchown(link / "ddplaunch/config.yaml", 12345, 12345)
        done = self.run_job("echo", "hello", env={**self.env, "XDG_CONFIG_HOME": str(link)})
        self.assertIn("is a symbolic link of another user (uid 12345)", done.err)

    def test_settings_through_links_of_the_user(self):
        target = self.dir / "dotfiles.yaml"
        target.write_text("label: 'x '\n")
        self.settings.symlink_to(target)
        self.assertEqual(self.run_job("echo", "hello").out, "x hello\n")

    def test_each_name_of_the_schemas_is_known(self):
        """A list in place of a value is wrong for most options, which shows that the name was read."""
        for name, path in (("job", self.dir / "job.yaml"), ("config", self.settings)):
            schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
            self.assertGreater(len(schema["properties"]), 20)
            path.write_text("".join(f"{each}: [[]]\n" for each in schema["properties"]))
            done = self.run_job(*(["--job-file", path] if name == "job" else []), "true")
            self.assert_code(done, 2)
            errors = [line for line in done.err.splitlines() if line.startswith(f"ddplaunch: {path}:")]
            self.assertEqual(len(errors), len(schema["properties"]), done.err)
            self.assertNotIn("unknown option", done.err)
            self.assertNotIn("cannot be given", done.err)
            path.unlink()


if __name__ == "__main__":
    main()
