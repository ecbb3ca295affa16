#!/usr/bin/env python3
"""The programs of tests/gpu with a GPU that is played (tests/support/fake_cuda.cc).

usage: played_gpu_test.py GPU_PARITY GPU_CHECK
"""
import json
import os
import subprocess
import sys
import unittest

PARITY, CHECK = sys.argv[1:3]


def run(program, check, **environment):
    return subprocess.run([program, check], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=240, check=False)


class PlayedGpu(unittest.TestCase):
    def expect_good(self, program, check):
        done = run(program, check)
        self.assertEqual(done.stderr, "")
        found = json.loads(done.stdout)
        self.assertEqual([figure for figure in found["figures"] if not figure["ok"]], [])
        self.assertEqual((done.returncode, found["check"], found["ok"], found["errors"]), (0, check, True, []))
        return found

    def test_each_launch_has_the_same_bits_in_another_order(self):
        found = self.expect_good(PARITY, "parity")
        # 21 launches of a ConvNet's step, 8 of its evaluation; with two recipes, in two types, of three batches.
        self.assertGreater(len(found["figures"]), 300)
        self.assertEqual({figure["figure"] for figure in found["figures"]}, {0})

    def test_graphs_replay_what_was_launched(self):
        self.expect_good(CHECK, "replay")

    def test_training_equals_the_cpu(self):
        self.expect_good(CHECK, "train")

    def test_a_call_that_fails_is_said_with_its_place(self):
        for number in (1, 2, 3, 5, 9, 14, 30):
            done = run(CHECK, "replay", FAKE_CUDA_FAIL=str(number))
            found = json.loads(done.stdout)
            self.assertEqual((done.returncode, found["ok"]), (1, False), number)
            self.assertRegex(found["errors"][0], r"^(.* MiB: )?\w+\.(cc|h):\d+: (cuda\w+|a kernel's launch): "
                                                 r"cudaErrorLaunchFailure \(unspecified launch failure\)$")

    def test_no_gpu_is_a_visible_skip(self):
        done = run(CHECK, "replay", FAKE_CUDA_GPUS="0")
        self.assertEqual((done.returncode, done.stdout), (77, ""))
        self.assertEqual(done.stderr,
                         "skipped: cudaGetDeviceCount said cudaErrorNoDevice (no CUDA-capable device is detected)\n")

    def test_an_unknown_check_is_refused(self):
        self.assertEqual(run(CHECK, "nonsense").returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
