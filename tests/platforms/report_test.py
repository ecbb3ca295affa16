#!/usr/bin/env python3
"""Tests what ./dev platforms reads in the output of ctest, apt and dpkg, and its table. Makes no root."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
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

    def test_mirror_of_this_machine(self):
        targets = "Other http://example.com/debian/\nDebian-Security http://example.org/debian-security/\nDebian http://example.org/debian/\n"
        self.assertEqual(root.mirror_in(targets, "Debian"), "http://example.org/debian")
        self.assertIsNone(root.mirror_in(targets, "Ubuntu"))
        self.assertIsNone(root.mirror_in("Debian cdrom:[disc]/\n", "Debian"))


if __name__ == "__main__":
    unittest.main()
