#!/usr/bin/env python3
"""Runs the built `train health` on CPUs, with ranks that are faulty or stopped.

usage: health_run_test.py PATH_OF_TRAIN [unittest options]
"""
import json
import math
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from tests.process.train import bench_run_test

SHORT = ("health", "50ms", "--device", "cpu", "--memory", "4", "--threads", "1")


def computing_seconds(pid):
    """Returns the processor time of a process; that of one that has ended counts as endless."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
        def computing_of_ended_ranks():
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            return usage.ru_utime + usage.ru_stime
        before = computing_of_ended_ranks()
        _, undisturbed = self.health(2)
        slice_of_rank = 8 * (computing_of_ended_ranks() - before) / sum(rank["steps"] for rank in undisturbed["ranks"])

        def stop_in_slices(processes):
            """Stops a rank for as long as it has run, whenever it has computed for about eight steps. If all steps had a pause, their median
            would have it, too, and the rank would be slow instead."""
            rank, begin, computed = processes[1], time.monotonic(), 0.0
            while rank.poll() is None:
                if (now := computing_seconds(rank.pid)) < computed + slice_of_rank:
                    time.sleep(0.01)
                    continue
                rank.send_signal(signal.SIGSTOP)
                time.sleep(time.monotonic() - begin)
                rank.send_signal(signal.SIGCONT)
                begin, computed = time.monotonic(), now
        minutes = min(max(16 * 8 * max(rank["step_ms"] for rank in undisturbed["ranks"]) / 60_000, 0.05), 1)
        ends, record = self.health(2, "--minutes", str(minutes), meanwhile=stop_in_slices)
        self.assertEqual([(code, errors) for code, _, errors in ends], [(0, "")] * 2)
        self.assertGreaterEqual(record["ranks"][0]["steps"], 32)
        # On a busy machine both ranks pause; the unit test has the limit above which a rank is named.
        first, second = record["ranks"]
        self.assertGreater(second["lost_part"], max(0.05, first["lost_part"]), record)


if __name__ == "__main__":
    bench_run_test.TRAIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
