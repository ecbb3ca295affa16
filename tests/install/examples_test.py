#!/usr/bin/env python3
"""Runs the scripts of docs/examples with two ranks on CPUs. A script runs with the first interpreter that has its packages: the
distribution's, the one that DDP_TEST_TORCH_PYTHON names, or that of the venv DDP_CLIENTS_VENV (./dev clients makes one). Otherwise
it is skipped, and the message names the package."""
import ast
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch
from tests.support.launch import SOURCE, LaunchTest, main

EXAMPLES = SOURCE / "docs/examples"
MOST_LINES = 60
# Statements that fail where the example cannot run, and a line of its output.
NEEDS = {
    "pytorch_ddp": ("import torch.distributed", "epoch 3/3 loss"),
    "pytorch_fsdp": ("from torch.distributed.fsdp import fully_shard", "rank 1 keeps"),
    "lightning_ddp": ("import lightning", "epoch 3/3 loss"),
    "accelerate_ddp": ("import accelerate", "epoch 3/3 loss"),
    "deepspeed_zero": ("import deepspeed, ninja", "step 30/30 loss"),
    "jax_data_parallel": ("import jax", "on 2 devices"),
}
VENV = os.environ.get("DDP_CLIENTS_VENV")
PYTHONS = [python for python in (pytorch.SYSTEM, os.environ.get(pytorch.NAMED), f"{VENV}/bin/python" if VENV else None) if python]


class Examples(LaunchTest):
    def interpreter(self, statement):
        """Returns an interpreter that can execute the statement, or skips the test."""
        reasons = []
        for python in PYTHONS:
            done = subprocess.run([python, "-c", statement], capture_output=True, text=True)
            reason = done.stderr.strip().splitlines()[-1] if done.returncode != 0 else None if "jax" in statement else pytorch.why_not(python)
            if reason is None:
                return python
            reasons.append(f"{python}: {reason}")
        self.skipTest("; ".join(reasons))

    def run_example(self, name, *args, line=None):
        statement, usual_line = NEEDS[name]
        python = self.interpreter(statement)
        env = {**self.env, "PATH": f"{pathlib.Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        if "jax" not in statement:
            env.update(pytorch.environment(python))
        env.setdefault("TORCH_EXTENSIONS_DIR", str(self.dir / "extensions"))
        done = self.run_job("--nproc-per-node", 2, "--label", "", "--python", python, EXAMPLES / f"{name}.py", *args, timeout=800, env=env)
        self.assert_code(done, 0)
        self.assertIn(line or usual_line, done.out)
        return done.out

    def test_pytorch_ddp(self):
        checkpoint = self.dir / "model.pt"
        first = self.run_example("pytorch_ddp", "--checkpoint", checkpoint, "--epochs", 3)
        self.assertIn("epoch 1/3", first)
        second = self.run_example("pytorch_ddp", "--checkpoint", checkpoint, "--epochs", 4, line="epoch 4/4 loss")
        self.assertNotIn("epoch 3/4", second)

    def test_pytorch_fsdp(self):
        kept = [int(each) for each in re.findall(r"keeps (\d+) of 16705", self.run_example("pytorch_fsdp"))]
        self.assertEqual((len(kept), sum(kept)), (2, 16705))

    def test_lightning_ddp(self):
        self.run_example("lightning_ddp")

    def test_accelerate_ddp(self):
        self.run_example("accelerate_ddp")

    def test_deepspeed_zero(self):
        self.run_example("deepspeed_zero")

    def test_jax_data_parallel(self):
        self.run_example("jax_data_parallel")


class Texts(unittest.TestCase):
    def test_each_example_is_short_and_names_its_command(self):
        scripts = sorted(EXAMPLES.glob("*.py"))
        self.assertEqual([path.stem for path in scripts], sorted(NEEDS))
        for path in scripts:
            text = path.read_text()
            self.assertLess(len(text.splitlines()), MOST_LINES, path.name)
            commands = re.findall(r"^    ddplaunch .*$", ast.get_docstring(ast.parse(text), clean=False), re.M)
            self.assertGreaterEqual(len(commands), 2, path.name)
            self.assertTrue(all(f"docs/examples/{path.name}" in command for command in commands), path.name)


if __name__ == "__main__":
    main()
