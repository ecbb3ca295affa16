#!/usr/bin/env python3
"""Tests command lines of other launchers: each line of docs/users/migrating.md, torchrun's variables, a file of Accelerate."""

import pathlib
import re
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import SOURCE, LaunchTest, main

CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
mixed_precision: bf16
num_machines: 1
num_processes: 3
use_cpu: true
"""


class Migrating(LaunchTest):
    def setUp(self):
        super().setUp()
        self.env = {k: v for k, v in self.env.items() if not k.startswith("SLURM")}

    def test_every_line_of_the_document_is_understood(self):
        (self.dir / "hosts").write_text("gpu01 slots=8\ngpu02 slots=8\n")
        (self.dir / "cluster.yaml").write_text("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 16\n")
        text = (SOURCE / "docs/users/migrating.md").read_text()
        lines = re.findall(r"^\| \*\*ddplaunch\*\* \| `ddplaunch (.*?)`", text, re.M)
        self.assertGreaterEqual(len(lines), 9)
        for line in lines:
            with self.subTest(line=line):
                done = self.run_job("--dry-run", *shlex.split(line))
                self.assert_code(done, 0)
                self.assertIn("worker python3 -u train.py", done.out)
                if "--nnodes 2" in line or "--num_nodes 2" in line or "cluster.yaml" in line or "gpu01:8" in line:
                    self.assertIn("world size 16", done.out)
                if "--include" in line:
                    self.assertIn("world size 4", done.out)
                if "--exclude" in line:
                    self.assertIn("world size 8", done.out)

    def test_variables_of_torchrun(self):
        self.env.update(PET_NPROC_PER_NODE="3", PET_MAX_RESTARTS="1", PET_NNODES="1")
        done = self.run_job("--label", "", "sh", "-c", 'echo "$WORLD_SIZE $TORCHELASTIC_MAX_RESTARTS ${PET_NNODES-unset}"')
        self.assert_code(done, 0)
        self.assertEqual(done.out, "3 1 unset\n" * 3)
        self.assertEqual(done.err.splitlines()[0], "ddplaunch: options taken from the environment, as torchrun takes them: "
                                                   "PET_NNODES, PET_NPROC_PER_NODE, PET_MAX_RESTARTS")
        done = self.run_job("--label", "", "--nproc-per-node", 1, "sh", "-c", "echo $WORLD_SIZE")
        self.assertEqual(done.out, "1\n")
        self.env["PET_NPROC_PER_NODE"] = "-3"
        done = self.run_job("true")
        self.assertEqual(done.code, 2, done)
        self.assertIn("--nproc-per-node -3: give a whole number", done.err)
        self.assertIn("PET_NPROC_PER_NODE", done.err.splitlines()[-1])

    def test_a_file_of_accelerate(self):
        (self.dir / "c.yaml").write_text(CONFIG)
        done = self.run_job("--accelerate-config", "c.yaml", "--label", "", "sh", "-c",
                            'echo "$WORLD_SIZE $ACCELERATE_MIXED_PRECISION $ACCELERATE_USE_CPU"')
        self.assert_code(done, 0)
        self.assertEqual(done.out, "3 bf16 true\n" * 3)
        self.assertEqual(done.err.splitlines()[0], "ddplaunch: c.yaml: it stands for --nnodes=1 (num_machines), 3 workers in all "
                                                   "(num_processes); options on the command line take precedence")
        (self.dir / "c.yaml").write_text(CONFIG + "num_procs: 3\n")
        done = self.run_job("--accelerate-config", "c.yaml", "true")
        self.assertEqual(done.code, 2, done)
        self.assertIn("ddplaunch: c.yaml:7:1: \"num_procs\" is not a known key of accelerate", done.err)

    def test_one_of_several_pods_may_run_alone(self):
        self.env.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="job-master-0", MASTER_PORT="23456")
        self.env.pop("LOCAL_RANK", None)
        done = self.run_job("true")
        self.assertEqual(done.code, 2, done)
        self.assertIn("node 0 is at job-master-0, so all nodes need the same token", done.err)
        self.assert_code(self.run_job("--launcher", "local", "true"), 0)


if __name__ == "__main__":
    main()
