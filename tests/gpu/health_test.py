#!/usr/bin/env python3
"""Tests `train health --device gpu` on one GPU: it passes, and finds injected faults. Without a GPU it skips (77).

usage: health_test.py PATH_OF_TRAIN [unittest options]
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.train_ranks import Ranks, own_environment

TRAIN = ""
FAKE_CUBLAS_LT = os.environ.get("FAKE_CUBLAS_LT", "")
FAKE_NVML = os.environ.get("FAKE_NVML", "")  # its folder
SKIPPED = 77
FIRST = None  # the outcome of a run without further options
SHORT = ("health", "100ms", "--memory", "8", "--device", "gpu", "--json", "/dev/stdout")


def run(*arguments, **variables):
    done = subprocess.run([TRAIN, *SHORT, *arguments], env=own_environment() | variables, text=True, capture_output=True, timeout=280, check=False)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done, records[0] if records else None


class Health(unittest.TestCase):
    def test_a_gpu_passes(self):
        done, record = FIRST
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        [rank] = record["ranks"]
        self.assertTrue(record["passed"])
        self.assertTrue(rank["device"].startswith("GPU 0 ("))
        self.assertGreaterEqual(rank["products"], 3)  # the first one, one that the GPU compares, one that the host compares
        self.assertGreater(rank["gflops"], 0)
        self.assertEqual(rank["memory_bytes"], 8 << 20)
        self.assertIn("ecc_uncorrected", rank)
        self.assertTrue(all(rank[speed] > 0 for speed in ("memory_gbps", "to_gpu_gbps", "from_gpu_gbps", "step_ms")), rank)
        self.assertGreaterEqual(rank["steps"], 16)
        self.assertRegex(rank["products_by"], r"^(cuBLASLt \d|own kernels \()")
        self.assertIn(", products by " + rank["products_by"], done.stdout)

    def test_injected_faults_are_found(self):
        for fault, words in (("gemm", "equal matrix products: 1 wrong, 1 different from the first"), ("memory", "1 wrong word in 8 MiB"),
                             ("gradient", "equal training steps gave different gradients")):
            done, record = run("--inject-fault", f"0:{fault}")
            self.assertEqual(done.returncode, 1, done)
            self.assertFalse(record["passed"])
            self.assertIn(words, done.stderr)
            self.assertEqual([f["item"] for f in record["findings"] if f["level"] == "error"], [fault])


@unittest.skipUnless(FAKE_CUBLAS_LT, "only with the fake cuBLASLt")
class FakeCublasLt(unittest.TestCase):
    def test_cublaslt_and_its_tensor_cores_multiply_where_it_is_loaded(self):
        for capability, bf16, fp8 in (("9", True, True), ("8", True, False)):
            done, record = run(DDPLAUNCH_CUBLASLT_LIBRARY=FAKE_CUBLAS_LT, FAKE_CUDA_CAPABILITY=capability)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            [rank] = record["ranks"]
            self.assertRegex(rank["products_by"], r"^cuBLASLt \d+\.0\.3 \(" + FAKE_CUBLAS_LT + r"\)$")
            self.assertEqual((rank["bf16_gflops"] > 0, rank["fp8_gflops"] > 0), (bf16, fp8))

    def test_what_no_library_multiplies_is_said_to_be_untested(self):
        done, record = run(DDPLAUNCH_CUBLASLT_LIBRARY="/nonexistent.so")
        self.assertEqual(done.returncode, 0, done)
        [finding] = [one for one in record["findings"] if one["item"] == "left out"]
        self.assertEqual((finding["level"], finding["text"][:30]), ("warning", "not tested: the tensor cores: "))
        self.assertIn("; 1 rank with less than all tests (see the warnings)", record["tested"])
        _, record = run(DDPLAUNCH_CUBLASLT_LIBRARY="/nonexistent.so", FAKE_CUDA_CAPABILITY="7")  # has none for bf16
        self.assertEqual([one for one in record["findings"] if one["item"] == "left out"], [])

    def test_its_wrong_product_is_found(self):
        done, record = run(DDPLAUNCH_CUBLASLT_LIBRARY=FAKE_CUBLAS_LT, FAKE_CUBLAS_LT_SPOIL="2")
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stderr, r"^train: rank 0 on \S+, GPU 0 \(emulated GPU\): .*equal matrix products: 1 wrong, 1 different from the first\n$")
        self.assertEqual([f["item"] for f in record["findings"] if f["level"] == "error"], ["gemm"])


@unittest.skipUnless(FAKE_NVML, "only with the fake NVML")
class FakeNvml(unittest.TestCase):
    def test_counters_that_grow_during_the_test_are_findings(self):
        _, record = run(LD_LIBRARY_PATH=FAKE_NVML, FAKE_NVML_GPUS="1", FAKE_NVML_XID="79")
        [rank] = record["ranks"]
        self.assertEqual([rank[key] for key in ("watts", "clock_mhz", "pcie_replays", "nvlink_errors", "remapped_rows", "xids")],
                         [412, 1980, 0, 0, 0, 1])
        done, record = run(LD_LIBRARY_PATH=FAKE_NVML, FAKE_NVML_GPUS="1", FAKE_NVML_ERRORS="2")
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stderr, r"^train: rank 0 on \S+, GPU 0 \(emulated GPU\): 2 rows of the GPU's memory had to be replaced\n$")
        self.assertEqual([f["text"] for f in record["findings"] if f["item"] == "link"],
                         ["2 replays on PCIe", "2 errors on NVLink (replays, recoveries, CRC)"])
        self.assertRegex(done.stdout, r"(?m)^#  rank .* W +deg C +MHz +throttled +replays NVLink err +rows$")


class SharedGpu(unittest.TestCase):
    """Ranks that share a GPU would each take all free memory. The emulated GPU has 128 MiB, of which 64 are left free."""

    def ranks(self, *arguments, **variables):
        with tempfile.TemporaryDirectory() as place:
            room = {} if "FAKE_CUDA_GPUS" in variables else {"FAKE_CUDA_ROOM": f"{place}/room", "CUDA_VISIBLE_DEVICES": "0"}
            command = (TRAIN, "health", "100ms", "--device", "gpu", "--comm", "shm", "--json", f"{place}/health", *arguments)
            with Ranks(command, 2, [2], environment={"FAKE_CUDA_MIB": "128"} | room | variables) as ranks:
                ends = ranks.finish(timeout=280)
            with open(f"{place}/health", encoding="utf-8") as file:
                record = json.loads(file.read())
        self.assertEqual([(code, errors) for code, _, errors in ends], [(0, "")] * 2)
        return record["ranks"]

    def test_ranks_that_share_a_gpu_divide_its_memory(self):
        first, second = self.ranks()
        self.assertEqual(first["device"], second["device"])
        self.assertEqual(first["memory_bytes"], second["memory_bytes"])
        if "emulated" in first["device"]:
            self.assertEqual(first["memory_bytes"], 32 << 20)

    def test_ranks_with_a_gpu_each_use_all_of_its_memory(self):
        if "emulated" not in FIRST[1]["ranks"][0]["device"]:
            self.skipTest("only for an emulated GPU")
        ranks = self.ranks(FAKE_CUDA_GPUS="2")
        self.assertEqual([rank["memory_bytes"] for rank in ranks], [64 << 20] * 2)


if __name__ == "__main__":
    TRAIN = sys.argv.pop(1)
    FIRST = run()
    if FIRST[0].returncode == 2 and ("no usable NVIDIA GPU" in FIRST[0].stderr or "no GPU code" in FIRST[0].stderr):
        print("skipped:", FIRST[0].stderr.strip())
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
