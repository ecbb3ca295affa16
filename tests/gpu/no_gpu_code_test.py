#!/usr/bin/env python3
"""Checks that a build without GPU code reports this.

usage: no_gpu_code_test.py TRAIN
"""
import subprocess
import sys
import unittest


class NoGpuCode(unittest.TestCase):
    def refused(self, *arguments):
        done = subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        return done.stderr

    def test_nccl_is_refused(self):
        words = ("train: --comm nccl: this build of train has no NCCL; build it on a machine with the CUDA toolkit and "
                 "NCCL's header (nccl.h)\n")
        self.assertEqual(self.refused("--comm", "nccl"), words)
        self.assertEqual(self.refused("bench", "allreduce", "--comm", "nccl"), words.replace("train:", "train bench:"))

    def test_no_gpu_is_tested(self):
        self.assertEqual(self.refused("health", "--device", "gpu"), "train health: --device gpu: this build has no GPU code: CMake "
                                                                    "found no CUDA compiler, or -DDDP_CUDA=OFF was set\n")

    def test_device_gpu_is_refused(self):
        self.assertEqual(self.refused("--device", "gpu"), "train: --device gpu: this build has no GPU code: CMake found no CUDA "
                                                          "compiler, or -DDDP_CUDA=OFF was set\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
