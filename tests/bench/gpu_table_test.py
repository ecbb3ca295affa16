#!/usr/bin/env python3
"""Tests the tables of docs/developers/measurements_gpu.md: they hold every measured figure, and name each one that is missing.

usage: gpu_table_test.py [unittest options]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
sys.path.insert(0, str(HERE))
import gpu_table  # noqa: E402


def step(name, figures=None, state="ok", reason=""):
    return {"step": name, "state": state, "reason": reason, "seconds": 1, "figures": figures}


def results(*steps):
    return {"version": 2, "commit": "abc1234", "seconds": 300, "ok": 20, "failed": 1, "skipped": 2, "steps": [
        step("machine", {"gpus": "H100, 550.1, 81559 MiB, 1980 MHz", "kernel": "Linux 6.1", "nccl": "/x"}), *steps]}


def rows_of(text, word):
    return [line for line in text.splitlines() if line.startswith("|") and word in line]


class Table(unittest.TestCase):
    def test_the_document_contains_a_generated_table(self):
        document = (SOURCE / "docs/developers/measurements_gpu.md").read_text(encoding="utf-8")
        inside = document.partition(gpu_table.BEGIN)[2].partition(gpu_table.END)[0].strip()
        self.assertRegex(inside, r"^`\./dev gpu`, \d+ s: \d+ steps ok, ")

    def test_rates_are_medians_of_the_rounds_with_their_ratio(self):
        def peer(rate):
            return {"torch": "2.6", "rows": [{"way": "CUDA graph", "tf32": True, "batch": 100, "images_per_second": rate}]}
        text = gpu_table.text_of(results(
            step("images-100-float32-1", {"images_per_second": 1000}), step("images-100-float32-2", {"images_per_second": 3000}),
            step("torch-100-1", peer(400)), step("torch-100-2", peer(600))))
        self.assertIn("| train, float32 | 100 | 2,000 (1,000-3,000) |  |", text)
        self.assertIn("| PyTorch 2.6, CUDA graph, TF32 on | 100 | 500 (400-600) | 4.00 |", text)
        self.assertEqual(rows_of(text, "train, float32 | 4096"), ["| train, float32 | 4096 | not measured |  |"])

    def test_an_mlp_stands_beside_the_same_numbers_of_pytorch(self):
        def peer(rate):
            return {"torch": "2.11", "rows": [{"way": "CUDA graph", "tf32": True, "bf16": bf16, "batch": 4096, "images_per_second": value}
                                              for bf16, value in ((False, rate), (True, 2 * rate))]}
        text = gpu_table.text_of(results(
            step("mlp-bfloat16-1", {"images_per_second": 900, "products": "cuBLASLt 13.0.2 (/x)"}),
            step("mlp-bfloat16-2", {"images_per_second": 1100, "products": "cuBLASLt 13.0.2 (/x)"}),
            step("mlp-tf32-1", {"images_per_second": 300}), step("torch-mlp-1", peer(400)), step("torch-mlp-2", peer(600))))
        for line in ("| train, bfloat16, cuBLASLt 13.0.2 (/x) | 1,000 (900-1,100) |  |",
                     "| PyTorch 2.11, CUDA graph, bfloat16 | 1,000 (800-1,200) | 1.00 |", "| train, tf32, own kernels | 300 |  |",
                     "| PyTorch 2.11, CUDA graph, tf32 | 500 (400-600) | 0.60 |", "| train, float32 | not measured |  |"):
            self.assertIn(line, text)

    def test_a_failed_round_is_shown(self):
        text = gpu_table.text_of(results(step("images-100-float32-1", state="failed", reason="exit code 1: no room"),
                                         step("images-100-float32-2", {"images_per_second": 3000})))
        self.assertEqual(rows_of(text, "train, float32 | 100"), ["| train, float32 | 100 | **failed**: exit code 1: no room |  |"])

    def test_all_reduce_rows_stand_beside_those_of_nccl_tests(self):
        row = {"bytes": 64, "mean_us": 20, "busbw_gbps": 0.5, "wrong": 0}
        text = gpu_table.text_of(results(
            step("bench-2", {"rows": [row]}), step("bench-4", {"rows": [{**row, "wrong": None}]}),
            step("nccl-tests", {"ranks": 2, "rows": [{**row, "mean_us": 10, "busbw_gbps": 1.0}]})))
        self.assertIn("| 2 | 64 | 20.0 | 0 | 10.0 | 0.50 |", text)
        self.assertIn("| 4 | 64 | 20.0 | not compared |  |  |", text)
        self.assertNotIn("nccl-tests beside it", text)

    def test_the_table_shows_reasons_and_failures(self):
        text = gpu_table.text_of(results(
            step("racecheck", state="failed", reason="exit code 9: a hazard"), step("memcheck"),
            step("synccheck", state="skipped", reason="compute-sanitizer is not here"),
            step("lost-STOP", {"signal": "STOP", "ended_after_ms": 5200, "said": "train: rank 0 over NCCL: late during all-reduce"}),
            step("rejoin-KILL", {"first_new_step_ms": 1234, "step_ms": 12.3, "nccl": "NCCL 2.28, started in 0.5 s"}),
            step("health", {"ranks": [{"products": 900, "gflops": 30000.2, "memory_bytes": 3 << 30}]}),
            step("costs", {"figures": [{"name": "graph of 1 launch: us each", "figure": 2.345}]}),
            step("speed", {"figures": [{"name": "float32 batch 100: images/s", "figure": 123456.7}]})))
        for line in ("| compute-sanitizer, racecheck | **failed**: exit code 9: a hazard |", "| compute-sanitizer, memcheck | ok, nothing found |",
                     "| compute-sanitizer, synccheck | not measured: compute-sanitizer is not here |",
                     "the other ended, ms | 5,200: train: rank 0 over NCCL: late during all-reduce |",
                     "first new step, ms | 1,234 (a step: 12.3); NCCL 2.28, started in 0.5 s |",
                     "ok: 900 equal products at 30,000 GFLOP/s, 3.0 GiB written and read", "| a graph of 1 launch, us each, back to back | 2.35 |",
                     "| float32 batch 100: images/s | 123,457 |", "skipped. Machine: H100, 550.1, 81559 MiB, 1980 MHz; Linux 6.1; ddplaunch abc1234."):
            self.assertIn(line, text)

    def test_a_message_stays_in_its_cell(self):
        text = gpu_table.text_of(results(step("memcheck", state="failed", reason="a | b\nand c")))
        self.assertEqual(rows_of(text, "memcheck"), ["| compute-sanitizer, memcheck | **failed**: a \\| b and c |"])

    def test_a_machine_without_nvidia_smi_is_reported_once(self):
        raw = results()
        raw["steps"] = [step("machine", state="skipped", reason="nvidia-smi is not here")]
        self.assertEqual(gpu_table.text_of(raw).splitlines()[0], "`./dev gpu`, 300 s: 20 steps ok, 1 failed, 2 skipped. Machine: not "
                                                                 "measured: nvidia-smi is not here; ddplaunch abc1234.")

    def test_broken_files_are_reported_in_one_line(self):
        good = results()
        with tempfile.TemporaryDirectory() as place:
            path = pathlib.Path(place, "results.json")
            not_ours = f"gpu_table.py: {path} is not what run.sh writes: "
            for text, words in (
                    ("", not_ours), ("{\"steps\":[", not_ours), ("\xff", not_ours), ("[]", not_ours + "it has no list of steps"),
                    (json.dumps({**good, "ok": "x"}), not_ours + "\"ok\" is no number"),
                    (json.dumps({**good, "steps": [7]}), not_ours + "a step has no name, state or reason"),
                    (json.dumps({**good, "steps": [step("a", state="fine")]}), not_ours + "step a has the state \"fine\""),
                    (json.dumps({**good, "steps": [step("a", figures=[1])]}), not_ours + "the figures of step a are no object"),
                    (json.dumps(results(step("bench-2", {"lines": 1}))), f"gpu_table.py: {path} has other figures than this table is made of: "),
                    (json.dumps(results(step("health", {"ranks": []}))), f"gpu_table.py: {path} has other figures than this table is made of: "),
                    (json.dumps(results(step("bench-2", {"rows": [{"bytes": 4, "mean_us": 0, "wrong": 0}]}),
                                        step("nccl-tests", {"rows": [{"bytes": 4, "mean_us": 1}]}))),
                     f"gpu_table.py: {path} has other figures than this table is made of: "),
                    (json.dumps(results(step("bench-2", {"rows": [{"bytes": "x", "mean_us": 1, "wrong": 0}]}))),
                     f"gpu_table.py: {path} has other figures than this table is made of: ")):
                path.write_bytes(text.encode("latin-1"))
                done = subprocess.run([sys.executable, HERE / "gpu_table.py", path], capture_output=True, text=True, check=False)
                with self.subTest(text):
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
                    self.assertTrue(done.stderr.startswith(words), done.stderr)
            done = subprocess.run([sys.executable, HERE / "gpu_table.py", f"{place}/none"], capture_output=True, text=True, check=False)
            self.assertEqual(done.stderr, f"gpu_table.py: {place}/none cannot be read: No such file or directory\n")

    def test_only_the_marked_part_of_a_document_is_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            document, raw = pathlib.Path(folder, "doc.md"), pathlib.Path(folder, "results.json")
            document.write_text(f"before\n{gpu_table.BEGIN}\nold\n{gpu_table.END}\nafter\n", encoding="utf-8")
            raw.write_text(json.dumps(results()), encoding="utf-8")
            for _ in range(2):
                subprocess.run([sys.executable, HERE / "gpu_table.py", raw, document], check=True)
            text = document.read_text(encoding="utf-8")
            self.assertTrue(text.startswith(f"before\n{gpu_table.BEGIN}\n\n`./dev gpu`, 300 s: 20 steps ok, 1 failed, 2 skipped."))
            self.assertTrue(text.endswith(f"\n{gpu_table.END}\nafter\n"))
            self.assertNotIn("old", text)
            raw.write_text(json.dumps({**results(), "commit": "\ud800"}), encoding="utf-8")
            self.assertNotEqual(subprocess.run([sys.executable, HERE / "gpu_table.py", raw, document], stderr=subprocess.DEVNULL, check=False).returncode, 0)
            self.assertEqual(document.read_text(encoding="utf-8"), text)
            document.write_text("no marks\n", encoding="utf-8")
            self.assertNotEqual(subprocess.run([sys.executable, HERE / "gpu_table.py", raw, document], stderr=subprocess.DEVNULL, check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
