#!/usr/bin/env python3
"""Trains an MLP on an emulated GPU whose products a fake cuBLASLt makes (tests/support/fake_cublas_lt.cc).

usage: emulated_products_test.py TRAIN FAKE_CUBLAS_LT [FAKE_NCCL]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from tests.support.train_ranks import Ranks

TRAIN, LIBRARY, *NCCL = sys.argv[1:4]
MLP = ("--model", "mlp", "--mlp-width", "60", "--mlp-depth", "3", "--data", "synthetic", "--limit", "210", "--batch-size", "20", "--bar", "never",
       "--device", "gpu")


class Products(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = place.name

    def train(self, *options, world=1, **environment):
        """Returns rank 0's lines and the loss of each step."""
        metrics = os.path.join(self.place, "metrics")
        if os.path.exists(metrics):
            os.remove(metrics)
        variables = {"FAKE_CUDA_GPUS": str(world), "DDPLAUNCH_CUBLASLT_LIBRARY": LIBRARY, **environment}
        with Ranks((TRAIN, *MLP, "--metrics-file", metrics, *options), world, [world] if world > 1 else None, environment=variables) as ranks:
            ends = ranks.finish(timeout=240)
        self.assertEqual([(code, errors) for code, _, errors in ends], [(0, "")] * world, ends)
        with open(metrics, encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        return ends[0][1].splitlines(), [record["loss"] for record in records if record["kind"] == "step"]

    def test_the_library_is_named_with_its_path_or_the_reason_why_there_is_none(self):
        def line(*options, **environment):
            lines, _ = self.train("--max-steps", "1", *options, **environment)
            return [text for text in lines if text.startswith("matrix products by ")]
        self.assertRegex(line()[0], rf"^matrix products by cuBLASLt \d+\.0\.3 \({LIBRARY}\)$")
        self.assertEqual(line(DDPLAUNCH_CUBLASLT_LIBRARY="/none"),
                         ["matrix products by own kernels (cuBLASLt cannot be loaded: /none: cannot open shared object file: No such "
                          "file or directory)"])
        self.assertEqual(line("--dtype", "float64"), [])

    def test_it_trains_as_the_own_kernels_do(self):
        for dtype, apart in (("float32", 1e-4), ("bfloat16", 0.03)):
            for more in ((), ("--accumulate", "2"), ("--mlp-width", "1", "--mlp-depth", "1")):
                with self.subTest(dtype=dtype, more=more):
                    _, library = self.train("--dtype", dtype, "--epochs", "3", *more)  # steps of both sizes are replayed as graphs
                    _, own = self.train("--dtype", dtype, "--epochs", "3", *more, DDPLAUNCH_CUBLASLT_LIBRARY="/none")
                    self.assertEqual(len(library), len(own))
                    for mine, theirs in zip(library, own):
                        self.assertAlmostEqual(mine, theirs, delta=apart)

    def test_the_sums_of_ranks_in_the_graph_change_no_bit(self):
        if not NCCL:
            self.skipTest("needs the fake NCCL")
        rooms = {"DDPLAUNCH_NCCL_LIBRARY": NCCL[0], "FAKE_NCCL_DIR": self.place, "FAKE_NCCL_VERSION": "22809"}
        for dtype in ("float32", "bfloat16"):
            with self.subTest(dtype=dtype):
                def weights(*options):
                    lines, _ = self.train("--dtype", dtype, "--epochs", "3", "--comm", "nccl", *options, world=2, **rooms)
                    return next(line for line in lines if line.startswith("weights equal"))
                self.assertEqual(weights(), weights("--bucket-cap-mb", "0.01", "--first-bucket-mb", "0.01"))

    def test_the_precision_of_a_cpu_is_not_chosen(self):
        for options, why in ((("--device", "cpu"), "--matmul-precision high requires --device gpu"),
                             (("--dtype", "bfloat16"), "--matmul-precision is only for --dtype float32")):
            done = subprocess.run([TRAIN, *MLP, "--matmul-precision", "high", *options], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", f"train: {why}\n"))
        done = subprocess.run([TRAIN, *MLP, "--matmul-precision", "high", "--device", "auto"], capture_output=True, text=True, timeout=60,
                              check=False, env={**os.environ, "FAKE_CUDA_GPUS": "0"})
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^train: --matmul-precision high requires --device gpu: rank 0 on \S+: no usable NVIDIA GPU: ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
