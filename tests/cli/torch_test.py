#!/usr/bin/env python3
"""Tests unmodified PyTorch scripts under ddplaunch, over SSH to two nodes. They need only the store of node 0's agent.

The tests run with the distribution's torch (/usr/bin/python3; 1.13 on Debian 12 has the older numbering of the store's
protocol). If DDP_TEST_TORCH_PYTHON names another interpreter with torch, they also run with that one."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch
from tests.support.launch import LaunchTest, Nodes, main
from tests.support.ports import free_port

DDP_SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
torch.manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
weight = model.module.weight.detach().clone()
dist.broadcast(weight, 0)
assert torch.equal(weight, model.module.weight), "weights differ"
dist.barrier()
print("rank", rank, "of", world, "sum", int(total.item()), flush=True)
dist.destroy_process_group()
"""

# Makes another group on a separate port, as reinforcement learning and checkpointing code does.
SECOND_GROUP = """
import datetime
port = int(os.environ["MASTER_PORT"]) + 2
dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{port}", rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]), timeout=datetime.timedelta(seconds=20))
dist.barrier()
print("met", flush=True)
"""


PYTHONS = pytorch.joining_interpreters()


@unittest.skipUnless(PYTHONS, pytorch.why_not())
class TorchUnderDdplaunch(LaunchTest):
    def setUp(self):
        super().setUp()
        nodes = Nodes(self, 2)
        self.cluster_options = ["--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--label", ""]

    def run_torch(self, python, *args, nproc=1):
        return self.run_job(*self.cluster_options, "--nproc-per-node", nproc, "--python", python, *args, timeout=180,
                            env=dict(self.env, **pytorch.environment(python)))

    def test_unmodified_ddp_script_on_two_nodes(self):
        script = self.script("ddp.py", DDP_SCRIPT, mode=0o644)
        for python in PYTHONS:
            with self.subTest(python=python):
                done = self.run_torch(python, script, nproc=2)
                self.assert_code(done, 0)
                self.assertEqual(sorted(done.out.splitlines()), [f"rank {r} of 4 sum 10" for r in range(4)])

    def test_store_served_by_rank_0(self):
        # TORCHELASTIC_USE_AGENT_STORE=True makes clients of all ranks, even on a port without a server (docs/users/store.md), so the
        # second group needs the store of a worker, too.
        script = self.script("ddp.py", DDP_SCRIPT + SECOND_GROUP, mode=0o644)
        for python in PYTHONS:
            with self.subTest(python=python):
                done = self.run_torch(python, "--store", "worker", "--master-port", free_port(3), script)
                self.assert_code(done, 0)
                self.assertEqual(sorted(done.out.splitlines()), ["met", "met", "rank 0 of 2 sum 3", "rank 1 of 2 sum 3"])

    def test_an_exception_is_the_root_cause(self):
        script = self.script("fails.py", DDP_SCRIPT.replace("dist.barrier()", "if rank == 1: raise ValueError('bad batch')"),
                             mode=0o644)
        done = self.run_torch(PYTHONS[0], script)
        self.assert_code(done, 1)
        self.assertIn("ValueError: bad batch", done.err)
        # Its connections end before the process, so another rank may end first.
        self.assertRegex(done.err.splitlines()[-1], r"^ddplaunch: exit 1: rank 1 on 127\.0\.0\.3 (exited 1|failed, and was stopped before it exited)$")


if __name__ == "__main__":
    main()
