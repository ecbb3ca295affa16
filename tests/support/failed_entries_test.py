#!/usr/bin/env python3
"""Tests failed_entries.py with the log of a real run of ctest."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).with_name("failed_entries.py")
ENTRIES = {"passes": "echo fine", "fails": "seq 100; exit 1", "crashes": "echo before; kill -SEGV $$", "skips": "echo no; exit 77",
           "hangs": "echo begun; exec sleep 100"}


class FailedEntries(unittest.TestCase):
    def test_the_end_of_each_failed_entry_is_shown(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-failed-")
        self.addCleanup(folder.cleanup)
        lines = [f"add_test({name} sh -c [==[{command}]==])\nset_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n"
                 for name, command in ENTRIES.items()]
        pathlib.Path(folder.name, "CTestTestfile.cmake").write_text("".join(lines) + "set_tests_properties(hangs PROPERTIES TIMEOUT 1)\n")
        self.assertEqual(subprocess.run(["ctest"], cwd=folder.name, capture_output=True).returncode, 8)
        log = pathlib.Path(folder.name, "Testing/Temporary/LastTest.log")
        out = subprocess.run([sys.executable, PROGRAM, log], capture_output=True, text=True, check=True).stdout
        self.assertEqual(out.splitlines(), ["--- fails failed; its last lines:", *map(str, range(71, 101)),
                                            "--- crashes failed; its last lines:", "before", "--- hangs failed; its last lines:", "begun"])


if __name__ == "__main__":
    unittest.main()
