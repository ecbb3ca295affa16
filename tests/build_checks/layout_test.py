#!/usr/bin/env python3
"""Checks that no folder holds more files than a newcomer can read through."""
import collections
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOP = ("apps", "base", "cmake", "configs", "docs", "launcher", "remote", "rendezvous", "tests")
MOST_FILES = 45
# Scenarios and inputs of fuzzers are data: one file per case, found by its name.
DATA = ("tests/scenarios/",)
NAMELESS = {"util", "utils", "common", "misc", "helper", "helpers"}


def folders(root):
    """Returns {folder: number of its files} of the hand-written files."""
    count = collections.Counter()
    for top in TOP:
        for path in (root / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                count[path.parent.relative_to(root).as_posix()] += 1
    return count


def too_full(root):
    return sorted(f"{folder}: {count} files" for folder, count in folders(root).items()
                  if count > MOST_FILES and not folder.startswith(DATA))


class Layout(unittest.TestCase):
    def test_no_folder_is_too_full(self):
        self.assertEqual(too_full(ROOT), [], f"more than {MOST_FILES} files: split these folders")

    def test_a_folder_that_is_too_full_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            room = pathlib.Path(root, "launcher/job")
            room.mkdir(parents=True)
            for number in range(MOST_FILES + 1):
                (room / f"part_{number}.cc").touch()
            self.assertEqual(too_full(pathlib.Path(root)), ["launcher/job: 46 files"])

    def test_folders_and_files_are_named_after_what_they_hold(self):
        found = [path.relative_to(ROOT).as_posix() for top in TOP for path in (ROOT / top).rglob("*")
                 if path.stem.lower() in NAMELESS]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
