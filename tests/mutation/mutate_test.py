#!/usr/bin/env python3
"""Tests which mutants mutate.py makes of a text, and that a run continues after an interruption."""

import contextlib
import io
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
        self.assertEqual(self.of("  if (a)  // why"), [(1, "if (!(a))  // why")])

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
        with contextlib.redirect_stdout(io.StringIO()) as said:
            counts = mutate.run(None, "keeper", [("a.cc", 7, "  y")], {}, results)
        self.assertEqual(counts, {"killed": 0, "survived": 1, "not compiled": 0})
        self.assertEqual(said.getvalue(), "survived: a.cc:7\n  - x\n  + y\n")

    def test_a_mutant_is_killed_by_the_first_program_that_ends_otherwise(self):
        source = self.file.with_name("a.cc")
        source.write_text("first\n  y\nlast\n")
        tree = Tree(self.file.parent)
        results = mutate.Results(self.file, "c1")
        chosen = [("a.cc", 2, "  fails"), ("a.cc", 2, "  loops"), ("a.cc", 2, "  passes"), ("a.cc", 2, "  broken")]
        with contextlib.redirect_stdout(io.StringIO()):
            counts = mutate.run(tree, "keeper", chosen, {"unit_a": (1, 0), "unit_b": (1, 0)}, results)
        self.assertEqual(counts, {"killed": 2, "survived": 1, "not compiled": 1})
        self.assertEqual([(one["after"], one["by"]) for one in results.known.values()],
                         [("fails", "unit_a"), ("loops", "unit_b"), ("passes", None), ("broken", None)])
        self.assertEqual(source.read_text(), "first\n  y\nlast\n")

    def test_two_runs_do_not_share_a_folder(self):
        first = mutate.lock_of(self.file.parent)
        with self.assertRaisesRegex(SystemExit, "another run uses .*; wait until it ends"):
            mutate.lock_of(self.file.parent)
        first.close()
        mutate.lock_of(self.file.parent).close()


class Tree:
    """A tree whose programs end as the second line of its only source says."""

    def __init__(self, folder):
        self.tree = folder

    def line(self):
        return (self.tree / "a.cc").read_text().split("\n")[1].strip()

    def compiles(self, _):
        return self.line() != "broken"

    def end_of(self, target, _):
        return {"fails": 1, "loops": 0 if target == "unit_a" else None}.get(self.line(), 0)


if __name__ == "__main__":
    unittest.main()
