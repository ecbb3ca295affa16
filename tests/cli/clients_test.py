#!/usr/bin/env python3
"""Tests unmodified scripts of Lightning, Accelerate, DeepSpeed and PyTorch on two SSH nodes with two ranks each, on CPUs:
each script finds its ranks. DDP_CLIENTS_VENV names a venv that can import them (`./dev clients` makes one). Without such an
interpreter the tests are skipped."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, Nodes, main

VENV = os.environ.get("DDP_CLIENTS_VENV", "")
PYTHON = f"{VENV}/bin/python"

TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4)).sum().backward()
total = torch.tensor([dist.get_rank() + 1.0]); dist.all_reduce(total)
print("torch", torch.__version__, "rank", dist.get_rank(), "of", dist.get_world_size(), "sum", int(total), flush=True)
dist.destroy_process_group()
"""

LIGHTNING = """
import os, torch, lightning as L
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=2)
trainer = L.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", max_epochs=1, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), data)
environment = trainer.strategy.cluster_environment
assert isinstance(environment, TorchElasticEnvironment), environment
assert trainer.global_rank == int(os.environ["RANK"]) and trainer.node_rank == int(os.environ["GROUP_RANK"])
print("lightning", L.__version__, "rank", trainer.global_rank, "of", trainer.world_size, "node", trainer.node_rank, "local",
      trainer.local_rank, flush=True)
"""

ACCELERATE = """
import os, torch, accelerate
accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.backward(model(torch.ones(2, 4)).sum())
optimizer.step()
total = accelerator.reduce(torch.tensor([accelerator.process_index + 1.0]), "sum")
print("accelerate", accelerate.__version__, "rank", accelerator.process_index, "of", accelerator.num_processes, "local",
      accelerator.local_process_index, "sum", int(total), accelerator.mixed_precision, flush=True)
accelerator.end_training()
"""

DEEPSPEED = """
import os, torch, deepspeed
import torch.distributed as dist
deepspeed.init_distributed("gloo")
total = torch.tensor([dist.get_rank() + 1.0]); deepspeed.comm.all_reduce(total)
print("deepspeed", deepspeed.__version__, "rank", deepspeed.comm.get_rank(), "of", deepspeed.comm.get_world_size(), "local",
      deepspeed.comm.get_local_rank(), "sum", int(total), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def missing(*modules):
    if not VENV:
        return "DDP_CLIENTS_VENV names no venv (./dev clients makes one)"
    done = subprocess.run([PYTHON, "-c", "import " + ", ".join(modules)], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


class Clients(LaunchTest):
    def on_two_nodes(self, modules, text, *options):
        reason = missing(*modules)
        if reason:
            self.skipTest(reason)
        nodes = Nodes(self, 2)
        script = self.script("client.py", text, mode=0o644)
        done = self.run_job("--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--nproc-per-node", 2, "--label", "",
                            "--python", PYTHON, "--env", "OMP_NUM_THREADS=1",
                            *options, script, timeout=400)
        self.assert_code(done, 0)
        lines = sorted(line for line in done.out.splitlines() if line.startswith(modules[-1] + " "))
        print(f"{lines[0].split(' rank ')[0]} ...", end=" ", file=sys.stderr, flush=True)
        return [line.split(" ", 2)[2] for line in lines]

    def test_torch(self):
        self.assertEqual(self.on_two_nodes(["torch"], TORCH), [f"rank {r} of 4 sum 10" for r in range(4)])

    def test_lightning(self):
        self.assertEqual(self.on_two_nodes(["torch", "lightning"], LIGHTNING),
                         [f"rank {r} of 4 node {r // 2} local {r % 2}" for r in range(4)])

    def test_accelerate(self):
        self.assertEqual(self.on_two_nodes(["torch", "accelerate"], ACCELERATE),
                         [f"rank {r} of 4 local {r % 2} sum 10 no" for r in range(4)])

    def test_accelerate_with_its_file(self):
        config = self.dir / "cluster.yaml"
        config.write_text("distributed_type: MULTI_CPU\nnum_machines: 2\nnum_processes: 4\nmixed_precision: bf16\nuse_cpu: true\n")
        self.assertEqual(self.on_two_nodes(["torch", "accelerate"], ACCELERATE, "--accelerate-config", config),
                         [f"rank {r} of 4 local {r % 2} sum 10 bf16" for r in range(4)])

    def test_deepspeed(self):
        if reason := missing("torch", "deepspeed"):
            self.skipTest(reason)
        # DeepSpeed compiles a library for CPUs, behind a lock that a killed run leaves forever. The test therefore compiles
        # the library beforehand, in a directory of its own.
        self.env.setdefault("TORCH_EXTENSIONS_DIR", str(self.dir / "extensions"))
        subprocess.run([PYTHON, "-c", "from deepspeed.accelerator import get_accelerator as a\n"
                        "a().create_op_builder('ShareMemCommBuilder').load()"], env=self.env, capture_output=True, timeout=400)
        self.assertEqual(self.on_two_nodes(["torch", "deepspeed"], DEEPSPEED),
                         [f"rank {r} of 4 local {r % 2} sum 10" for r in range(4)])


if __name__ == "__main__":
    main()
