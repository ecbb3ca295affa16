#!/usr/bin/env python3
"""Checks that folders and files are named after what they hold."""
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOP = ("apps", "base", "cmake", "configs", "docs", "launcher", "remote", "rendezvous", "tests")
NAMELESS = {"util", "utils", "common", "misc", "helper", "helpers"}


class Layout(unittest.TestCase):
    def test_folders_and_files_are_named_after_what_they_hold(self):
        found = [path.relative_to(ROOT).as_posix() for top in TOP for path in (ROOT / top).rglob("*")
                 if path.stem.lower() in NAMELESS]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
