#!/usr/bin/env python3
"""Tests ./dev: its help, and the refusal of wrong arguments. Installs and builds nothing."""
import pathlib
import re
import shutil
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
        self.assertEqual(sorted(commands), ["bench", "build", "check", "clients", "demo", "docs", "format", "fuzz", "gpu", "mutate", "package", "platforms", "setup", "test"])
        for command in commands:
            self.assertRegex(done.stdout, rf"(?m)^  {command}\b")

    def test_unknown_command(self):
        done = dev("tset")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.splitlines()[-1], './dev: unknown command "tset"')

    def test_unknown_group(self):
        done = dev("setup", "everything")
        self.assertEqual((done.returncode, done.stderr),
                         (1, './dev: setup: unknown group "everything"; the groups are build demo test fuzz check package all\n'))

    def test_unknown_preset(self):
        done = dev("build", "fast")
        self.assertEqual((done.returncode, done.stderr),
                         (1, './dev: build: unknown preset "fast"; the presets are release dev asan-ubsan tsan fuzz\n'))

    def test_build_makes_every_program(self):
        lists = [path.read_text() for path in sorted((ROOT / "apps").rglob("CMakeLists.txt"))]
        programs = re.search(r"add_custom_target\(programs DEPENDS (.*)\)", "\n".join(lists)).group(1).split()
        made = re.findall(r"(?m)^ *add_executable\(([\w-]+)", "\n".join(lists))
        self.assertIn("ddplaunch", made)
        self.assertEqual(sorted(made), sorted(programs), "`programs` in apps/CMakeLists.txt must depend on each program that apps/ makes")
        self.assertIn("\nbuild_programs() { build release programs check_arrows; }\n", (ROOT / "dev").read_text())

    def test_unknown_platform(self):
        done = dev("platforms", "lenny")
        self.assertEqual((done.returncode, done.stderr),
                         (1, './dev: platforms: unknown platform "lenny"; the platforms are bookworm trixie noble\n'))
        done = dev("platforms", "--packages", "lenny")
        self.assertEqual((done.returncode, done.stderr),
                         (1, './dev: platforms: unknown system "lenny"; the systems are bullseye bookworm trixie busybox\n'))

    def test_fuzz_time(self):
        done = dev("fuzz", "long")
        self.assertEqual((done.returncode, done.stderr), (1, './dev: fuzz: "long" is not a number of seconds\n'))

    def test_subjects_have_at_most_72_characters(self):
        """check_subjects reads the commits after the one from which the rule holds, if the clone has it."""
        with tempfile.TemporaryDirectory() as repository:
            root = pathlib.Path(repository)
            shutil.copy(ROOT / "dev", root)
            identity = ["-c", "user.name=dev_test", "-c", "user.email=dev_test@localhost", "-c", "commit.gpgsign=false"]

            def commit(subject, *options):
                subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", subject, *options], cwd=root, check=True)

            def check(rule):
                done = subprocess.run(["bash", "-c", 'source ./dev help >/dev/null; check_subjects "$0"', rule], cwd=root, text=True,
                                      stderr=subprocess.PIPE)
                return done.returncode, re.sub(r"^[0-9a-f]{7,} ", "", done.stderr, flags=re.M)

            subprocess.run(["git", "init", "-q"], cwd=root, check=True)
            commit("o" * 100)
            self.assertEqual(check("0" * 40), (0, ""))
            commit("Add the rule")
            rule = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, text=True, stdout=subprocess.PIPE, check=True).stdout.strip()
            commit("a" * 72, "-m", "b" * 90)
            self.assertEqual(check(rule), (0, ""))
            commit("c" * 73)
            self.assertEqual(check(rule), (1, f"./dev: commit subjects longer than 72 characters:\n{'c' * 73}\n"))

    def test_check_reads_new_sources_and_those_of_changed_headers(self):
        with tempfile.TemporaryDirectory() as repository:
            root = pathlib.Path(repository)
            shutil.copy(ROOT / "dev", root)
            files = {"base/low.h": "", "base/high.h": '#include "base/low.h"\n', "base/high.cc": '#include "base/high.h"\n', "base/other.cc": ""}
            (root / "base").mkdir()
            for name, text in files.items():
                (root / name).write_text(text)
            git = ["git", "-c", "user.name=dev_test", "-c", "user.email=dev_test@localhost", "-c", "commit.gpgsign=false"]
            for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
                subprocess.run([*git, *command], cwd=root, check=True)

            def changed():
                done = subprocess.run(["bash", "-c", "source ./dev help >/dev/null; changed_sources HEAD"], cwd=root, text=True,
                                      stdout=subprocess.PIPE, check=True)
                return done.stdout.split()

            self.assertEqual(changed(), [])
            (root / "base/low.h").write_text("// changed\n")
            (root / "base/new.cc").touch()
            self.assertEqual(changed(), ["base/high.cc", "base/new.cc"])
            (root / "base/low.h").unlink()
            self.assertEqual(changed(), ["base/new.cc"])


if __name__ == "__main__":
    unittest.main()
