#!/usr/bin/env python3
"""Tests `train --comm nccl --share-gpu`: several ranks on one GPU. Skips (77) with the reason if there is no GPU.

usage: nccl_test.py PATH_OF_TRAIN [unittest options]
"""
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process/train"))
import bench_run_test  # noqa: E402
import train_run_test  # noqa: E402
from train_run_test import Ranks, run  # noqa: E402

# Ranks take turns on the GPU, about 10 ms for each operation whatever its size, so trainings have few steps.
FEW = ("--model", "convnet", "--data", "synthetic", "--limit", "400", "--batch-size", "10", "--max-steps", "5")
LONG = ("--model", "convnet", "--data", "synthetic", "--limit", "3000", "--epochs", "10000", "--log-interval", "1")
SHARED = ("--comm", "nccl", "--share-gpu")
SKIPPED = 77


def weights(results):
    found = [match[1] for _, lines, _ in results for line in lines
             if (match := re.fullmatch(r"rank \d+ weights ([0-9a-f]{16})", line))]
    return set(found), len(found)


class SharedGpu(unittest.TestCase):
    def good(self, world, *arguments, nodes=1):
        results = run(world, *arguments, nodes=nodes)
        for code, _, errors in results:
            self.assertEqual(code, 0, errors)
        hashes, count = weights(results)
        self.assertEqual((len(hashes), count), (1, world), "all ranks end with the same bits")
        return results, hashes

    def test_two_ranks_get_the_same_bits_as_over_tcp(self):
        # The sum of two numbers has only one order.
        for dtype in ("float32", "float64"):
            results, over_nccl = self.good(2, *FEW, *SHARED, "--dtype", dtype)
            self.assertRegex(results[0][1][0], r"^NCCL 2\.\d+\.\d+ \(/\S+\) over Socket \S+, 1 channel, started in \d+\.\d\d s")
            _, over_tcp = self.good(2, *FEW, "--comm", "tcp", "--dtype", dtype)
            self.assertEqual(over_nccl, over_tcp, dtype)

    def test_all_kinds_of_communication_work_over_nccl(self):
        self.good(4, *FEW, *SHARED)
        self.good(2, *FEW, *SHARED, "--sync-bn", "--clip-norm", "1")
        self.good(2, *FEW, *SHARED, "--zero", "1")
        self.good(4, *FEW, *SHARED, "--sync-every-inter", "2", nodes=2)

    def test_all_reduce_in_captured_graphs(self):
        self.good(2, *FEW, *SHARED, "--device", "gpu")
        self.good(3, *FEW, *SHARED, "--device", "gpu", "--dtype", "float64")

    def test_every_operation_on_gpu_buffers_is_correct(self):
        for operation, *more in (("allreduce",), ("allgather",), ("reducescatter",), ("broadcast",), ("alltoall",), ("sendrecv",),
                                 ("allreduce", "--out-of-place")):
            with self.subTest(operation=operation, more=more):
                results = bench_run_test.run((2,), "bench", operation, *SHARED, "-b", "8", "-e", "800K", "-f", "100", "-n", "3", "-w",
                                             "1", *more)
                self.assertEqual([code for code, _, _ in results], [0, 0], results)
                rows = [bench_run_test.ROW.fullmatch(line) for line in results[0][1].splitlines() if not line.startswith("#")]
                self.assertEqual([(int(row[1]), row[8]) for row in rows], [(8, "0"), (800, "0"), (80000, "0")])

    def test_pairs_and_16_bits(self):
        for arguments in (("pairs",), ("allreduce", "-d", "half"), ("allreduce", "-d", "bfloat16")):
            results = bench_run_test.run((3,), "bench", *arguments, *SHARED, "-e", "1M", "-n", "3")
            self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 3)

    def test_two_ranks_on_one_gpu_get_a_hint_about_share_gpu(self):
        if len(subprocess.run(["nvidia-smi", "-L"], text=True, capture_output=True).stdout.splitlines()) > 1:
            self.skipTest("there are several GPUs")
        for code, _, errors in run(2, *FEW, "--comm", "nccl", nodes=1):
            self.assertEqual(code, 2 if "there is no GPU for" in errors else 1)
            if code == 2:
                self.assertIn("--share-gpu", errors)

    def lost(self, number, limit):
        with tempfile.TemporaryDirectory() as folder, \
                Ranks(3, *LONG, *SHARED, "--comm-timeout", "5s", "--flight-recorder", folder, nodes=1) as ranks:
            line = "begin"
            while "step" not in line:
                self.assertNotEqual(line, "", "rank 0 ended")
                line = ranks.processes[0].stdout.readline()
            ranks.processes[1].send_signal(number)
            start = time.monotonic()
            for rank in (0, 2):
                _, errors = ranks.processes[rank].communicate(timeout=limit)
                self.assertEqual(ranks.processes[rank].returncode, 1)
                self.assertRegex(errors, rf"train: rank {rank} over NCCL: .* during all-reduce")
            print(f"{number.name}: all others ended after {time.monotonic() - start:.2f} s", file=sys.stderr)
            reported = subprocess.run([train_run_test.TRAIN, "--read-flight-recorder", folder], text=True, capture_output=True)
            self.assertRegex(reported.stdout, r"^rank 1 left no record; ")

    def test_a_killed_rank_ends_the_others(self):
        self.lost(signal.SIGKILL, 30)

    def test_a_frozen_rank_ends_the_others_at_the_deadline(self):
        self.lost(signal.SIGSTOP, 30)


if __name__ == "__main__":
    train_run_test.TRAIN = bench_run_test.TRAIN = sys.argv.pop(1)
    refused = subprocess.run([train_run_test.TRAIN, *FEW, *SHARED], text=True, capture_output=True)
    if refused.returncode != 0:
        print("skipped: " + refused.stderr.strip())
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
