#!/usr/bin/env python3
"""Runs the built `train health` on CPUs, with ranks that are faulty or stopped.

usage: health_run_test.py PATH_OF_TRAIN [unittest options]
"""
import json
import pathlib
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from tests.process.train import bench_run_test

SHORT = ("health", "50ms", "--device", "cpu", "--memory", "4", "--threads", "1")


class Health(unittest.TestCase):
    def health(self, ranks, *more, meanwhile=lambda processes: None):
        """Returns the end of each rank, and the record."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "health")
            with bench_run_test.Nodes((ranks,), *SHORT, *more, "--json", path) as nodes:
                meanwhile(nodes.processes)
                return nodes.finish(), json.loads(path.read_text(encoding="utf-8"))

    def test_a_flipped_bit_of_a_gradient_is_blamed_on_its_rank(self):
        ends, record = self.health(3)
        self.assertEqual([(code, errors) for code, _, errors in ends], [(0, "")] * 3)
        self.assertTrue(all(rank["steps"] >= 16 and rank["step_ms"] > 0 for rank in record["ranks"]), record)
        self.assertRegex(ends[0][1], r"(?m)^#  rank    GFLOP/s    step ms     p99 ms   mem GB/s$(?s:.*)^# median +\d")
        ends, record = self.health(3, "--inject-fault", "1:gradient")
        self.assertEqual([code for code, _, _ in ends], [0, 1, 0])
        self.assertRegex(ends[0][2], r"^train: rank 1 on \S+, CPU: 1 of \d+ equal training steps gave other gradients than most of them, or none that are finite\n$")
        self.assertEqual([(f["rank"], f["item"]) for f in record["findings"] if f["level"] == "error"], [(1, "gradient")])

    def test_a_single_rank_compares_its_own_steps(self):
        (end,), _ = self.health(1, "--inject-fault", "0:gradient")
        self.assertEqual(end[0], 1)
        self.assertRegex(end[2], r"2 of \d+ equal training steps gave different gradients, and there is no majority for one of them\n$")

    def test_a_rank_that_is_stopped_in_slices_is_named_after_all_rounds(self):
        def stop_in_slices(processes):
            while processes[1].poll() is None:
                processes[1].send_signal(signal.SIGSTOP)
                time.sleep(0.2)
                processes[1].send_signal(signal.SIGCONT)
                time.sleep(0.1)
        ends, record = self.health(2, "--minutes", "0.15", meanwhile=stop_in_slices)
        self.assertEqual([(code, errors) for code, _, errors in ends], [(0, "")] * 2)
        self.assertGreaterEqual(record["ranks"][0]["steps"], 32)
        # On a busy machine both ranks pause; the unit test has the limit above which a rank is named.
        first, second = record["ranks"]
        # Where a step takes as long as a slice, all steps have a pause, and the rank is slow instead.
        self.assertTrue(second["lost_part"] > max(0.05, first["lost_part"]) or second["step_ms"] > 1.5 * first["step_ms"], record)


if __name__ == "__main__":
    bench_run_test.TRAIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
