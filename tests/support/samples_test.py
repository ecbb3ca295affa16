#!/usr/bin/env python3
"""Tests that the check of the sample lists finds errors."""

import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import samples


class Samples(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, **files):
        for name, text in files.items():
            (self.folder / name.replace("_attempt_", ".attempt-").replace("_", "-")).write_text(text)
        return samples.problems(self.folder, 8, 1)

    def test_a_complete_training_has_no_problem(self):
        self.assertEqual(self.write(rank_0="0 1: 0 1\n0 2: 2 3\n", rank_1="0 1: 4 5\n0 2: 6 7\n"), [])

    def test_a_dropped_step_and_a_truncated_line_are_no_problem(self):
        self.assertEqual(self.write(rank_0="0 1: 0 1\n0 2: 2 3\n", rank_1="0 1: 4 5\n0 2: 6",
                                    rank_0_attempt_2="0 2: 2 3\n", rank_1_attempt_2="0 2: 6 7\n"), [])

    def test_fewer_ranks_and_padding_are_no_problem(self):
        self.assertEqual(self.write(rank_0="0 1: 0\n", rank_1="0 1: 1\n", rank_2="0 1: 2\n", rank_0_attempt_1="0 2: 3 4 5\n",
                                    rank_1_attempt_1="0 2: 6 7 0\n"), [])

    def test_each_fault_is_found(self):
        whole = {"rank_0": "0 1: 0 1\n0 2: 2 3\n", "rank_1": "0 1: 4 5\n0 2: 6 7\n"}
        for name, text, words in (
                ("rank_0", "0 1: 0 1\n0 2: 2 2\n", ["1 of 8 samples were not used: [3]"]),
                ("rank_0", "0 1: 0 1 4 5\n0 2: 2 3\n", ["2 uses more than samples, 1 may pad it: [4, 5]"]),
                ("rank_0", "0 1: 0 1\n", ["2 of 8", "step 2 of attempt 0 was made by ranks [1]"]),
                ("rank_1", "0 1: 4 5\n", ["2 of 8", "step 2 of attempt 0 was made by 1 of 2 ranks"]),
                ("rank_0", "0 1: 0 1\n0 2: 2 9\n", ["no samples of this training: [9]", "[3]"]),
                ("rank_0_attempt_1", "0 4: 0\n", ["1 of 4 steps are missing: [3]"]),
                ("rank_0_attempt_1", "1 3: 0\n", ["epochs beyond the last one: [1]"])):
            with self.subTest(text):
                for path in self.folder.iterdir():
                    path.unlink()
                reported = "\n".join(self.write(**{**whole, name: text}))
                for word in words:
                    self.assertIn(word, reported)

    def test_an_empty_log_is_a_problem(self):
        self.assertIn("there is no step", self.write())


if __name__ == "__main__":
    unittest.main()
