#!/usr/bin/env python3
"""A build without GPU code says so.

usage: no_gpu_code_test.py TRAIN
"""
import subprocess
import sys
import unittest


class NoGpuCode(unittest.TestCase):
    def test_device_gpu_is_refused(self):
        done = subprocess.run([sys.argv[1], "--device", "gpu"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "train: --device gpu: this build has no GPU code: no CUDA compiler was found when it was "
                                      "configured, or -DDDP_CUDA=OFF\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
