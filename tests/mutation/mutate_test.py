#!/usr/bin/env python3
"""Tests which mutants mutate.py makes of a text, and that a run continues after an interruption."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import mutate


class Mutations(unittest.TestCase):
    def of(self, text):
        return [(number, line.strip()) for number, line in mutate.mutations(text)]

    def test_conditions_bounds_and_constants_change_one_at_a_time(self):
        self.assertEqual(self.of("void f() {\n  if (a < 3 && b) return;\n}"),
                         [(2, "if (a <= 3 && b) return;"), (2, "if (a < 3 || b) return;"), (2, "if (!(a < 3 && b)) return;"),
                          (2, "if (a < 4 && b) return;")])

    def test_a_statement_is_dropped(self):
        self.assertEqual(self.of("  queue.pop();\n  return pop();"), [(1, ";")])

    def test_comments_strings_and_declarations_do_not_change(self):
        self.assertEqual(self.of('// a < b\n#if X > 1\n  /// true\n  return log("a < b and true");  // c < d'), [])
        self.assertEqual(self.of('static_assert(sizeof(x) == 4);\ntemplate <bool b = true>\n'), [])


class ResultsFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-mutate-")
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "results.jsonl"

    def one(self, line, outcome="killed"):
        return {"room": "keeper", "file": "a.cc", "line": line, "before": "x", "after": "y", "outcome": outcome, "by": None}

    def test_outcomes_of_the_same_commit_are_known(self):
        first = mutate.Results(self.file, "c1")
        first.add(self.one(1))
        first.add(self.one(2, "survived"))
        with open(self.file, "a") as file:
            file.write(json.dumps({"commit": "c1", **self.one(3)})[:20])  # the run was killed while it wrote
        again = mutate.Results(self.file, "c1")
        self.assertEqual([one["outcome"] for one in again.known.values()], ["killed", "survived"])
        again.add(self.one(3))
        self.assertEqual(len(mutate.Results(self.file, "c1").known), 3)
        self.assertEqual(mutate.Results(self.file, "c2").known, {})

    def test_a_known_mutant_is_not_built_again(self):
        results = mutate.Results(self.file, "c1")
        results.add(self.one(7, "survived"))
        counts = mutate.run(None, "keeper", [("a.cc", 7, "  y")], {}, results)
        self.assertEqual(counts, {"killed": 0, "survived": 1, "not compiled": 0})


if __name__ == "__main__":
    unittest.main()
