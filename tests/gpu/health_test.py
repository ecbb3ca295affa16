#!/usr/bin/env python3
"""`train --health --device gpu` on one GPU: it passes, and planted faults are found. Skips (77) with the reason where there is none.

usage: health_test.py PATH_OF_TRAIN [unittest options]
"""
import json
import os
import subprocess
import sys
import unittest

TRAIN = ""
SKIPPED = 77
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
SHORT = ("--health", "100ms", "--health-memory", "64", "--device", "gpu", "--json", "/dev/stdout")


def run(*arguments, **variables):
    env = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES} | variables
    done = subprocess.run([TRAIN, *SHORT, *arguments], env=env, text=True, capture_output=True, timeout=280, check=False)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done, records[0] if records else None


class Health(unittest.TestCase):
    def test_a_gpu_passes(self):
        done, record = run()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        [rank] = record["ranks"]
        self.assertTrue(record["passed"])
        self.assertTrue(rank["device"].startswith("GPU 0 ("))
        self.assertGreaterEqual(rank["products"], 2)
        self.assertEqual(rank["memory_bytes"], 64 << 20)
        self.assertIn("ecc_uncorrected", rank)

    def test_planted_faults_are_found(self):
        for fault, words in (("gemm", "equal matrix products 1 were wrong"), ("memory", "1 wrong words in 64 MiB")):
            done, record = run("--health-plant", f"0:{fault}")
            self.assertEqual(done.returncode, 1, done)
            self.assertFalse(record["passed"])
            self.assertIn(words, done.stderr)
            self.assertEqual([f["item"] for f in record["findings"] if f["level"] == "error"], [fault])


if __name__ == "__main__":
    TRAIN = sys.argv.pop(1)
    first, _ = run()
    if first.returncode == 2 and ("no usable NVIDIA GPU" in first.stderr or "tests no GPU" in first.stderr):
        print("skipped:", first.stderr.strip())
        sys.exit(SKIPPED)
    unittest.main()
