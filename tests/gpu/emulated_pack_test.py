#!/usr/bin/env python3
"""Runs the package of `./dev gpu` with the real `train` and `ddplaunch` over an emulated GPU and NCCL. It covers each step
that needs no machine code of a kernel, including ranks that are killed and stopped.

usage: emulated_pack_test.py FOLDER_OF_EMULATED_PROGRAMS FOLDER_OF_PROGRAMS FAKE_NCCL [unittest options]
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]


class EmulatedPack(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        (self.place / "bin").mkdir()
        (self.place / "nccl").mkdir()
        for name in ("gpu_parity", "gpu_check", "gpu_costs", "train"):
            (self.place / "bin" / name).symlink_to(EMULATED / f"emulated_{name}")
        for name in ("ddplaunch", "ddplaunchd"):
            shutil.copy(PROGRAMS / name, self.place / "bin")
        for script in (HERE / "run.sh", HERE / "steps.sh", SOURCE / "tests/support/nodes", SOURCE / "tests/bench/torch_gpu_peer.py"):
            shutil.copy(script, self.place)

    def steps(self, *only, **environment):
        settings = {"DDP_GPU_ONLY": " ".join(only), "DDPLAUNCH_NCCL_LIBRARY": str(LIBRARY), "FAKE_CUDA_GPUS": "1",
                    "FAKE_CUDA_MIB": "1024", "DDP_GPU_IMAGES": "100", "DDP_GPU_PATIENCE": "6", "DDP_GPU_SECONDS": "600", "DDP_GPU_SMOKE_SECONDS": "600",
                    "FAKE_NCCL_VERSION": "22809", "FAKE_NCCL_DIR": str(self.place / "nccl"), "XDG_STATE_HOME": str(self.place)}
        done = subprocess.run([self.place / "run.sh"], env={**os.environ, **settings, **environment}, capture_output=True, text=True,
                              timeout=700, check=False)
        found = {step["step"]: step for step in json.loads((self.place / "results.json").read_text(encoding="utf-8"))["steps"]}
        self.assertEqual(set(found), set(only), done.stdout + done.stderr)
        return found

    def good(self, *only):
        found = self.steps(*only)
        for step in found.values():
            self.assertEqual((step["state"], step["reason"]), ("ok", ""), step)
        return {name: step["figures"] for name, step in found.items()}

    def test_steps_of_one_rank(self):
        figures = self.good("costs", "device-train")
        self.assertEqual({figure["name"] for figure in figures["costs"]["figures"]}, {
            "copy on the device: GB/s read and written", "graph of 1 launch: us each", "graph of 14 launches: us each",
            "14 launches one by one: us"})
        self.assertRegex(figures["device-train"]["gpu"], "^test accuracy ")

    def test_steps_with_all_reduces_between_ranks(self):
        figures = self.good("nccl", "bench-2", "nodes")
        self.assertEqual(figures["nccl"]["nccl"], figures["nccl"]["tcp"])
        rows = figures["bench-2"]["rows"]
        self.assertEqual((rows[0]["bytes"], rows[-1]["bytes"], {row["wrong"] for row in rows}), (4, 64 << 20, {0}))
        self.assertIn(figures["nodes"]["way"], ("SSH", "two launchers"))

    def test_a_killed_rank(self):
        figures = self.good("lost-first", "lost-KILL", "lost-first-eager", "rejoin-KILL")
        for name in ("lost-first", "lost-KILL", "lost-first-eager"):
            self.assertRegex(figures[name]["said"], "^train: rank 0 over NCCL: .* during ")
        self.assertRegex(figures["rejoin-KILL"]["launcher"], r"attempt 1: 3 ranks continue from step \d+")
        self.assertTrue(0 < figures["rejoin-KILL"]["first_new_step_ms"] < 20_000, figures)

    def test_a_stopped_rank(self):
        figures = self.good("lost-STOP", "rejoin-STOP")
        self.assertIn("did not join the operation within 5 s", figures["lost-STOP"]["said"])
        self.assertGreater(figures["rejoin-STOP"]["first_new_step_ms"], 4000)

    def test_without_a_gpu_all_steps_are_skipped(self):
        only = ("parity", "replay", "train", "device-train", "health", "costs", "speed", "nccl", "bench-2", "lost-first", "lost-KILL", "rejoin-KILL",
                "nodes", "images-100-float32-1")
        for name, step in self.steps(*only, FAKE_CUDA_GPUS="0").items():
            self.assertEqual(step["state"], "skipped", step)
            self.assertIn("cudaErrorNoDevice", step["reason"], name)


if __name__ == "__main__":
    EMULATED, PROGRAMS, LIBRARY = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(3))
    unittest.main(verbosity=2)
