#!/usr/bin/env python3
"""./dev: what it says of itself, and how it refuses what it does not know. Installs and builds nothing."""
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def dev(*words, cwd=ROOT):
    return subprocess.run([ROOT / "dev", *words], cwd=cwd, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Dev(unittest.TestCase):
    def test_help_names_every_command(self):
        with tempfile.TemporaryDirectory() as elsewhere:
            done = dev("help", cwd=elsewhere)
        self.assertEqual(done.returncode, 0)
        commands = re.search(r"^  (setup \|.*)\)$", (ROOT / "dev").read_text(), re.M).group(1).split(" | ")
        self.assertEqual(sorted(commands), ["bench", "build", "check", "clients", "demo", "format", "fuzz", "gpu", "setup", "test"])
        for command in commands:
            self.assertRegex(done.stdout, rf"(?m)^  {command}\b")

    def test_unknown_command(self):
        done = dev("tset")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.splitlines()[-1], './dev: no command "tset"')

    def test_unknown_group(self):
        done = dev("setup", "everything")
        self.assertEqual((done.returncode, done.stderr),
                         (1, './dev: setup: no group "everything"; the groups are build demo test check all\n'))

    def test_unknown_preset(self):
        done = dev("build", "fast")
        self.assertEqual((done.returncode, done.stderr),
                         (1, './dev: build: no preset "fast"; the presets are release dev asan-ubsan tsan fuzz\n'))

    def test_fuzz_time(self):
        done = dev("fuzz", "long")
        self.assertEqual((done.returncode, done.stderr), (1, './dev: fuzz: "long" is no number of seconds\n'))


if __name__ == "__main__":
    unittest.main()
