#!/usr/bin/env python3
"""Runs the programs of tests/gpu with an emulated GPU (tests/support/fake_cuda.cc).

usage: emulated_gpu_test.py GPU_PARITY GPU_CHECK TRAIN
"""
import collections
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from tests.support.train_ranks import write_images

PARITY, CHECK, TRAIN = sys.argv[1:4]


def run(program, check, **environment):
    return subprocess.run([program, check], env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=240, check=False)


class EmulatedGpu(unittest.TestCase):
    def expect_good(self, program, check):
        done = run(program, check, DDP_SHORT_TESTS="1")
        self.assertEqual(done.stderr, "")
        found = json.loads(done.stdout)
        self.assertEqual([figure for figure in found["figures"] if not figure["ok"]], [])
        self.assertEqual((done.returncode, found["check"], found["ok"], found["errors"]), (0, check, True, []))
        return found

    def test_each_launch_has_the_same_bits_in_another_order(self):
        found = self.expect_good(PARITY, "parity")
        self.assertEqual({figure["figure"] for figure in found["figures"]}, {0})
        names = [figure["name"].partition(" batch 5 ") for figure in found["figures"]]
        launches = collections.Counter(model + " " + work.split(" ")[0] for model, batch, work in names if batch)
        expected = {}
        for model, step, evaluation in (("convnet", 14, 4), ("convnet, tall bands,", 14, 4), ("mlp", 14, 4), ("mlp-library", 19, 7)):
            for kind in ("float32", "float64", "bfloat16"):
                # Weights are rounded once. An MLP rounds images in each forward pass, and the logits' gradient.
                rounds = kind == "bfloat16"
                images = rounds and model.startswith("mlp")
                expected |= {f"{model} {kind} sgd": step + 2 * images, f"{model} {kind} adamw": step + 2 * images,
                             f"{model} {kind} evaluation": evaluation + rounds + images}
        expected = {name: count for name, count in expected.items() if name.split()[:2] != ["mlp-library", "float64"]}
        self.assertEqual(launches, expected)

    def test_graphs_replay_the_recorded_launches(self):
        self.expect_good(CHECK, "replay")

    def test_training_equals_the_cpu(self):
        self.expect_good(CHECK, "train")

    def test_a_failed_call_is_reported_with_file_and_line(self):
        for number in (1, 2, 3, 5, 9, 14, 30):
            done = run(CHECK, "replay", FAKE_CUDA_FAIL=str(number))
            found = json.loads(done.stdout)
            self.assertEqual((done.returncode, found["ok"]), (1, False), number)
            self.assertRegex(found["errors"][0], r"^(.* MiB of GPU memory: )?\w+\.(cc|h):\d+: (cuda\w+|a kernel's launch): "
                                                 r"cudaErrorLaunchFailure \(unspecified launch failure\)$")

    def test_without_a_gpu_the_check_is_reported_as_skipped(self):
        done = run(CHECK, "replay", FAKE_CUDA_GPUS="0")
        self.assertEqual((done.returncode, done.stdout), (77, ""))
        self.assertEqual(done.stderr,
                         "skipped: cudaGetDeviceCount: cudaErrorNoDevice (no CUDA-capable device is detected)\n")

    def test_an_unknown_check_is_refused(self):
        self.assertEqual(run(CHECK, "nonsense").returncode, 2)


class EmulatedTrain(unittest.TestCase):
    """Tests the host's part of train --device gpu."""

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = place.name
        numbers = random.Random(1)
        for part, images in (("train", 90), ("t10k", 30)):
            write_images(self.place, part, numbers.randbytes(images * 784), bytes(numbers.randrange(10) for _ in range(images)))

    def train(self, *options, **environment):
        if "--dtype" not in options:
            options = ("--dtype", "float64", *options)
        return subprocess.run([TRAIN, "--model", "convnet", "--data", self.place, "--batch-size", "20", "--bar", "never", *options],
                              env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False)

    def losses(self, *options):
        path = os.path.join(self.place, "metrics")
        if os.path.exists(path):
            os.remove(path)
        done = self.train("--metrics-file", path, *options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(path, encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        return [record["loss"] for record in records if "loss" in record], next(line for line in done.stdout.splitlines() if line.startswith("test accuracy"))

    def expect_equal(self, *options):
        expected, accuracy = self.losses("--device", "cpu", *options)
        got, same_accuracy = self.losses("--device", "gpu", *options)
        self.assertEqual(len(got), len(expected))
        self.assertGreater(len(got), 4)
        for mine, theirs in zip(got, expected):
            self.assertAlmostEqual(mine, theirs, delta=1e-7)  # a record has about nine digits
        self.assertEqual(same_accuracy, accuracy)

    def test_a_convnet_trains_as_on_the_cpu(self):
        self.expect_equal("--clip-norm", "1")  # the last batch has another size

    def test_an_mlp_trains_as_on_the_cpu(self):
        self.expect_equal("--model", "mlp", "--mlp-width", "30", "--accumulate", "2", "--epochs", "2")

    def test_device_gpu_without_a_gpu_is_refused(self):
        done = self.train("--device", "gpu", FAKE_CUDA_GPUS="0")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "train: --device gpu: no usable NVIDIA GPU: cudaGetDeviceCount: cudaErrorNoDevice "
                                      "(no CUDA-capable device is detected)\n")

    def test_the_gpu_is_chosen_if_there_is_one(self):
        done = self.train("--epochs", "1")
        lines = done.stdout.splitlines()
        self.assertEqual((done.returncode, lines[0], lines[-1], done.stderr), (0, "device gpu", "tested: 1 × emulated GPU, one rank", ""))
        for environment, why in (({"FAKE_CUDA_GPUS": "0"}, r"cudaGetDeviceCount: cudaErrorNoDevice \(no CUDA-capable device is detected\)"),
                                 ({"FAKE_CUDA_DRIVER": "0"}, "no NVIDIA driver is installed")):
            done = self.train("--epochs", "1", **environment)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout.splitlines()[0], rf"^device cpu \(rank 0 on \S+: no usable NVIDIA GPU: {why}\)$")

    def test_the_model_of_the_default_is_that_of_the_device(self):
        """A checkpoint of the other device's model is no damage."""
        saved = os.path.join(self.place, "saved")
        task = ("--model", "auto", "--dtype", "float32", "--max-steps", "1", "--checkpoint-dir", saved)
        done = self.train(*task, FAKE_CUDA_GPUS="0")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("model", done.stdout)
        done = self.train(*task, "--resume", "auto", FAKE_CUDA_MIB="1024")
        self.assertEqual((done.returncode, done.stderr), (1, f"train: cannot resume from {saved}/step-00000001: --model is convnet there and mlp here; "
                                                             "resume with the same options and data, or name another checkpoint\n"))
        self.assertEqual(done.stdout.splitlines()[:2], ["device gpu", "model mlp (--mlp-width 2560 --mlp-depth 3 --lr 0.1), the default on GPUs"])
        self.assertEqual(os.listdir(saved), ["step-00000001"])

    def test_a_driver_that_is_too_old_is_not_taken_for_a_missing_one(self):
        for version, text in (("12040", "the NVIDIA driver is too old: it supports CUDA 12.4, this program needs CUDA 13.1; "
                                        "update the driver"), ("0", "no NVIDIA driver is installed")):
            done = self.train("--device", "gpu", FAKE_CUDA_DRIVER=version)
            self.assertEqual((done.returncode, done.stderr), (2, f"train: --device gpu: no usable NVIDIA GPU: {text}\n"))

    def test_bf16_learns_what_float32_learns(self):
        def of(dtype):
            path = os.path.join(self.place, f"metrics-{dtype}")
            done = subprocess.run([TRAIN, "--model", "convnet", "--data", "synthetic", "--limit", "200", "--batch-size", "20", "--device", "gpu", "--bar", "never",
                                   "--dtype", dtype, "--metrics-file", path, "--export", os.path.join(self.place, dtype)],
                                  capture_output=True, text=True, timeout=240, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(path, encoding="utf-8") as lines:
                records = [json.loads(line) for line in lines]
            return [record["loss"] for record in records if record["kind"] == "step"]
        single, half = of("float32"), of("bfloat16")
        self.assertEqual((len(single), len(half)), (10, 10))
        self.assertNotEqual(single[0], half[0])
        # A number has eight bits: the losses, 0.9 to 2.9, were observed 0.013 apart.
        for mine, theirs in zip(half, single):
            self.assertAlmostEqual(mine, theirs, delta=0.05)
        # The exported weights are the trained ones, in float32.
        with open(os.path.join(self.place, "bfloat16"), "rb") as file:
            data = file.read()
        size, = struct.unpack_from("<Q", data)
        numbers = struct.unpack_from("<1000f", data, 8 + size)
        self.assertTrue(any(struct.unpack("<I", struct.pack("<f", number))[0] & 0xffff for number in numbers))

    def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(self):
        def weights(*options):
            done = self.train("--device", "gpu", *options)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return next(line for line in done.stdout.splitlines() if line.startswith("weights equal"))
        for dtype, optimizer, model in (("float64", "adamw", "convnet"), ("bfloat16", "sgd", "convnet"), ("float64", "sgd", "mlp"),
                                        ("bfloat16", "adamw", "mlp")):
            with self.subTest(dtype=dtype, optimizer=optimizer):
                saved = os.path.join(self.place, f"saved-{dtype}-{optimizer}")
                hyperparameters = ("--model", model, *(("--mlp-width", "30") if model == "mlp" else ()), "--dtype", dtype, "--optimizer", optimizer,
                                   "--lr", "0.001", "--epochs", "2")
                whole = weights(*hyperparameters)
                weights(*hyperparameters, "--max-steps", "7", "--checkpoint-dir", saved, "--checkpoint-every", "3")
                self.assertEqual(sorted(os.listdir(saved)), ["step-00000003", "step-00000006", "step-00000007"])
                self.assertEqual(weights(*hyperparameters, "--resume", os.path.join(saved, "step-00000006")), whole)
                self.assertEqual(weights(*hyperparameters, "--resume", saved), whole)

    def test_what_a_device_cannot_do_is_refused(self):
        for options, why in ((("--device", "cpu", "--dtype", "bfloat16"), "--dtype bfloat16 requires --device gpu"),
                             (("--device", "gpu", "--sync-bn"), "--sync-bn cannot be used with --device gpu: the GPU normalizes by its own "
                                                                "rank's batch")):
            done = self.train(*options)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", f"train: {why}\n"))

    def test_a_gpu_that_fails_ends_the_training_with_its_call(self):
        failure = r": cudaErrorLaunchFailure \(unspecified launch failure\)"
        for call, text in ((114, rf"cuda_runtime\.h:\d+: a kernel's launch{failure} of step 2"), (20, rf"cuda_runtime\.h:\d+: a kernel's load{failure}"),
                           (2, r"--device gpu: cannot allocate \d+ MiB of GPU memory: cuda_runtime\.cc:\d+: cudaMalloc: .*")):
            done = self.train("--device", "gpu", FAKE_CUDA_FAIL=str(call))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr.splitlines()[-1], rf"^train: {text}$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
