#!/usr/bin/env python3
"""Tests skipped_cases.py with the log of a real run of ctest."""

import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

SUPPORT = pathlib.Path(__file__).resolve().parent
SOME = textwrap.dedent(f"""
    import os, sys, unittest
    sys.path.insert(0, {str(SUPPORT.parents[1])!r})
    from tests.support.launch import main
    class Some(unittest.TestCase):
        def test_runs(self):
            print("x" * 5000)  # more than ctest keeps for its reports
        def test_waits(self):
            '''Has a text of its own.'''
            os.write(1, b"begun\\n")
            self.skipTest("it's no GPU")
    @unittest.skip("no sshd")
    class Remote(unittest.TestCase):
        def test_connects(self): pass
    class Prepared(unittest.TestCase):
        @classmethod
        def setUpClass(cls): raise unittest.SkipTest("no sshd")
        def test_connects(self): pass
    if sys.argv[1:] == ["prepared"]:
        del Some, Remote, sys.argv[1:]
    main()
    """)


class SkippedCases(unittest.TestCase):
    def test_the_skipped_cases_of_all_entries(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-skipped-")
        self.addCleanup(folder.cleanup)
        place = pathlib.Path(folder.name)
        (place / "some.py").write_text(SOME)
        entries = {"passes": "echo fine", "some": f"{sys.executable} some.py", "prepared": f"{sys.executable} some.py prepared",
                   "catch": "echo \"a case ... skipped 'no sshd'\"; exit 77", "skips": "echo begun; echo 'skipped: no GPU'; echo end; exit 77",
                   "skips_silently": "exit 77", "fails": "echo \"test_a (__main__.B.test_a) ... skipped 'no ip'\"; exit 1"}
        measured = f"{sys.executable} {SUPPORT}/measured_entry.py {place}/entries.tsv"
        lines = [f"add_test({name} {measured} {name} sh -c [==[{command}]==])\nset_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n"
                 for name, command in entries.items()]
        (place / "CTestTestfile.cmake").write_text("".join(lines))
        done = subprocess.run(["ctest"], cwd=place, capture_output=True, text=True)
        self.assertRegex(done.stdout, r"prepared \.+\*\*\*Skipped")
        out = subprocess.run([sys.executable, SUPPORT / "skipped_cases.py", place], capture_output=True, text=True, check=True).stdout
        self.assertEqual(out.splitlines(), [
            "8 cases skipped", "  it's no GPU: some (Some.test_waits)", "  no GPU: skips", "  no ip: fails (B.test_a)", "  no reason given: skips_silently",
            "  no sshd: some (Prepared; Remote.test_connects), prepared (Prepared), catch (a case)"])


if __name__ == "__main__":
    unittest.main()
