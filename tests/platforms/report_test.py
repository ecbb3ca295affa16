#!/usr/bin/env python3
"""Tests what ./dev platforms reads in the output of ctest, apt and dpkg, and its table. Makes no root."""

import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import packages  # noqa: E402
import platforms  # noqa: E402
import report  # noqa: E402
import root  # noqa: E402

ENTRIES = {"passes": "echo fine", "fails": "exit 1", "crashes": "kill -SEGV $$", "hangs": "exec sleep 100",
           "skips": "echo 'skipped: no GPU'; exit 77"}


class Report(unittest.TestCase):
    def test_outcomes_of_a_real_run_of_ctest(self):
        with tempfile.TemporaryDirectory(prefix="ddp-platforms-") as folder:
            lines = [f"add_test({name} sh -c [==[{command}]==])\nset_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n"
                     for name, command in ENTRIES.items()]
            lines += ["set_tests_properties(hangs PROPERTIES TIMEOUT 1)\n", "add_test(not_built /no/such/program)\n"]
            pathlib.Path(folder, "CTestTestfile.cmake").write_text("".join(lines))
            file = pathlib.Path(folder, "junit.xml")
            subprocess.run(["ctest", "--output-junit", file], cwd=folder, capture_output=True, check=False)
            passed, failed, skipped = report.outcomes(file.read_text())
        self.assertEqual(passed, ["passes"])
        self.assertEqual(failed, ["fails", "crashes", "hangs", "not_built"])
        self.assertEqual(skipped, ["skips"])

    def test_versions_have_no_epoch_and_no_revision(self):
        for text, version in (("1:9.2p1-2+deb12u7", "9.2p1"), ("4:12.2.0-3", "12.2.0"), ("3.0.17-1~deb12u2", "3.0.17"), ("0.11", "0.11")):
            self.assertEqual(report.upstream_version(text), version)
        self.assertEqual(report.glibc_in("ldd (Debian GLIBC 2.36-9+deb12u13) 2.36\n"), "2.36")
        self.assertEqual(report.glibc_in("sh: ldd: not found\n"), "-")

    def test_columns_are_aligned(self):
        self.assertEqual(report.table(["platform", "failed"], [["bookworm", 0], ["noble", 12]]),
                         ["platform  failed", "bookworm  0", "noble     12"])

    def test_a_system_that_could_not_be_made_has_a_row(self):
        self.assertEqual(report.table(["platform", "g++", "failed"], [["noble", 12, 0], report.not_run("bookworm", "cannot reach example.com")]),
                         ["platform  g++  failed", "noble     12   0", "bookworm  not run: cannot reach example.com"])

    def test_only_a_named_platform_that_is_not_run_fails(self):
        def result(name):
            return (["noble", *"-" * 10], ["a detail"], 0) if name == "noble" else (report.not_run(name, "no mirror"), [], None)
        for names, named, code in ((["noble"], True, 0), (["noble", "trixie"], False, 0), (["noble", "trixie"], True, 1), (["trixie"], False, 1)):
            with unittest.mock.patch.object(platforms, "test", result), contextlib.redirect_stdout(io.StringIO()) as said:
                self.assertEqual(platforms.run_tests(names, named), code, names)
            self.assertEqual("trixie    not run: no mirror\n" in said.getvalue(), "trixie" in names)

    def test_only_a_named_system_that_is_not_run_fails(self):
        def inside(command, **_):
            self.assertEqual(command[-2:], ["trixie", "bookworm=no mirror"])
            return subprocess.CompletedProcess(command, 0)

        def prepared(name, _):
            return (pathlib.Path("/"), None) if name == "trixie" else (None, "no mirror")
        with unittest.mock.patch.multiple(packages, prepare=prepared, write_keys=lambda _: None, are_built=lambda _: True), \
                unittest.mock.patch.object(subprocess, "run", inside):
            self.assertEqual(packages.run_packages(["trixie", "bookworm"], False), 0)
            self.assertEqual(packages.run_packages(["trixie", "bookworm"], True), 1)

    def test_mirror_of_this_machine(self):
        targets = "Other http://example.com/debian/\nDebian-Security http://example.org/debian-security/\nDebian http://example.org/debian/\n"
        self.assertEqual(root.mirror_in(targets, "Debian"), "http://example.org/debian")
        self.assertIsNone(root.mirror_in(targets, "Ubuntu"))
        self.assertIsNone(root.mirror_in("Debian cdrom:[disc]/\n", "Debian"))


if __name__ == "__main__":
    unittest.main()
