#!/usr/bin/env python3
"""Checks what `train` reports about NCCL without a GPU, and which rank the flight recorders name.

usage: nccl_run_test.py PATH_OF_TRAIN [unittest options]
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train_run_test
from train_run_test import Ranks, run

SMALL = ("--data", "synthetic", "--limit", "400", "--batch-size", "10")
LONG = ("--data", "synthetic", "--limit", "3000", "--epochs", "10000", "--log-interval", "1")
NO_GPU = re.compile(r"train: --comm nccl needs an NVIDIA GPU: (cudaGetDeviceCount: cudaErrorNoDevice \([^)]+\)|no NVIDIA driver is "
                    r"installed|the NVIDIA driver is too old: .*; update the driver)\n")
NOT_BUILT = ("train: --comm nccl: this build of train has no NCCL; build it on a machine with the CUDA toolkit and "
             "NCCL's header (nccl.h)\n")


def diagnosed(folder):
    done = subprocess.run([train_run_test.TRAIN, "--read-flight-recorder", folder], text=True, capture_output=True)
    return done.returncode, done.stdout, done.stderr


class WithoutGpu(unittest.TestCase):
    def setUp(self):
        (code, _, errors), = run(1, *SMALL, "--comm", "nccl", "--max-steps", "1")
        if code == 0 or "there is no GPU for" in errors or "cannot be loaded" in errors:
            self.skipTest("there is a GPU")

    def test_comm_nccl_is_refused_before_the_start(self):
        for world in (1, 2):
            for code, lines, errors in run(world, "--data", "/nonexistent", "--comm", "nccl"):
                self.assertEqual((code, lines), (2, []))
                if not NO_GPU.fullmatch(errors):
                    self.assertEqual(errors, NOT_BUILT)

    def test_comm_nccl_with_share_gpu_is_refused_too(self):
        (code, _, errors), = run(1, *SMALL, "--comm", "nccl", "--share-gpu")
        self.assertEqual(code, 2)
        self.assertTrue(NO_GPU.fullmatch(errors) or errors == NOT_BUILT, errors)


class Messages(unittest.TestCase):
    def test_share_gpu_needs_comm_nccl(self):
        (code, lines, errors), = run(1, *SMALL, "--share-gpu")
        self.assertEqual((code, lines, errors), (2, [], "train: --share-gpu is only for --comm nccl\n"))


class FlightRecorderLogs(unittest.TestCase):
    def lost(self, folder, *more, signal_number=signal.SIGKILL, nodes=None):
        """Runs three ranks, of which number 2 is lost in the middle. Returns the diagnosis of the flight recorders."""
        with Ranks(3, *LONG, "--flight-recorder", folder, *more, nodes=nodes) as ranks:
            ranks.processes[0].stdout.readline()
            ranks.processes[2].send_signal(signal_number)
            for rank in (0, 1):
                ranks.processes[rank].communicate(timeout=60)
                self.assertEqual(ranks.processes[rank].returncode, 1)
        return diagnosed(folder)

    def test_a_killed_rank_is_named(self):
        for more, nodes in ((("--comm", "tcp"), None), (("--comm", "shm"), 1)):
            with tempfile.TemporaryDirectory() as folder:
                code, reported, errors = self.lost(folder, *more, nodes=nodes)
                self.assertEqual((code, errors), (0, ""))
                self.assertRegex(reported, r"^rank 2 left no record; ranks? (0-1|0|1) waits? in all-(reduce|gather) \d+ \(.*\)\n$")
                self.assertEqual(sorted(os.listdir(folder)), ["rank-0.jsonl", "rank-1.jsonl"])
                head, *rest = [json.loads(line) for line in pathlib.Path(folder, "rank-1.jsonl").read_text().splitlines()]
                self.assertEqual((head["schema"], head["rank"], head["world_size"], head["attempt"]),
                                 ("ddp-flight-recorder/2", 1, 3, 0))
                self.assertEqual(head["groups"], [{"name": "world", "first": 0, "ranks": 3}])
                self.assertIn("lost rank 2", head["reason"])
                self.assertLessEqual(len(rest), 1000)
                self.assertEqual(rest[-1]["finished"], 0)
                self.assertTrue(all(one["started"] <= one["finished"] for one in rest[:-8]))

    def test_a_frozen_rank_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            _, reported, _ = self.lost(folder, "--comm", "tcp", "--comm-timeout", "5s", signal_number=signal.SIGSTOP)
            self.assertRegex(reported, r"^rank 2 left no record; ")

    def test_operations_inside_and_between_nodes_are_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            with Ranks(4, *LONG, "--flight-recorder", folder, "--sync-every-inter", "5", nodes=2) as ranks:
                while not ranks.processes[0].stdout.readline().startswith("epoch 2/10000 step 4/"):  # the nodes were averaged
                    self.assertIsNone(ranks.processes[0].poll())
                ranks.processes[3].kill()
                for process in ranks.processes[:3]:
                    process.communicate(timeout=60)
                    self.assertEqual(process.returncode, 1)
            for rank, node in ((0, 0), (1, 0), (2, 1)):
                head, *rest = [json.loads(line) for line in pathlib.Path(folder, f"rank-{rank}.jsonl").read_text().splitlines()]
                self.assertEqual(head["groups"], [{"name": "world", "first": 0, "ranks": 4},
                                                  {"name": f"node {node}", "first": 2 * node, "ranks": 2},
                                                  {"name": "between", "first": 0, "ranks": 4}])
                sums = [one for one in rest if one["group"] == f"node {node}"]
                self.assertEqual({(one["kind"], one["type"]) for one in sums}, {("all-reduce", "float")})
                self.assertEqual([one["sequence"] for one in sums], list(range(sums[0]["sequence"], sums[-1]["sequence"] + 1)))
                self.assertIn("between", {one["group"] for one in rest})
            # Node 0 may be in its own all-reduce, which it can finish, or wait for node 1.
            self.assertRegex(diagnosed(folder)[1], r"^rank 3 left no record; ranks? [012-]+( and [12])? waits? in all-reduce \d+ \(.*\) "
                                                r"(of node 1|between the nodes)\n$")

    def test_a_successful_training_leaves_no_log_and_removes_old_ones(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("rank-0.jsonl", "rank-1.attempt-3.jsonl", "rank-12.jsonl", "mine.jsonl"):
                pathlib.Path(folder, name).write_text("")
            for code, _, errors in run(2, *SMALL, "--flight-recorder", folder):
                self.assertEqual((code, errors), (0, ""))
            self.assertEqual(sorted(os.listdir(folder)), ["mine.jsonl", "rank-12.jsonl"])

    def test_the_flight_recorder_changes_no_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            plain, logged = run(2, *SMALL), run(2, *SMALL, "--flight-recorder", folder)
            weights = [[line for line in lines if "weights" in line] for _, lines, _ in (plain[0], logged[0])]
            self.assertEqual(weights[0], weights[1])

    def test_an_unusable_directory_is_reported_and_ends_no_training(self):
        for code, _, errors in run(2, *SMALL, "--max-steps", "2", "--flight-recorder", "/proc/none"):
            self.assertEqual(code, 0)
            self.assertEqual(errors, "train: flight recorder: create /proc/none: No such file or directory; no file will be written\n")

    def test_a_directory_without_logs_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(diagnosed(folder), (2, "", f"train: {folder} contains no flight recorder files (rank-R.jsonl)\n"))
            pathlib.Path(folder, "rank-0.jsonl").write_text("{}\n")
            self.assertEqual(diagnosed(folder), (2, "", f"train: {folder}/rank-0.jsonl is not a file that --flight-recorder wrote\n"))
        self.assertEqual(diagnosed("/nonexistent"), (2, "", "train: read /nonexistent: No such file or directory\n"))


if __name__ == "__main__":
    train_run_test.TRAIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
