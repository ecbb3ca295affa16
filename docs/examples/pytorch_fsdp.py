"""Trains a small network with PyTorch's FSDP (fully_shard, PyTorch 2.6 or newer): each rank keeps a part of the weights.

    ddplaunch --nproc-per-node 2 docs/examples/pytorch_fsdp.py
    ddplaunch --hostfile hosts --nproc-per-node gpu docs/examples/pytorch_fsdp.py
"""
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 30

use_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if use_gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_gpu else torch.device("cpu")
if use_gpu:
    torch.cuda.set_device(device)
mesh = init_device_mesh(device.type, (dist.get_world_size(),))

torch.manual_seed(0)  # the same weights on all ranks before they are divided
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(4)),
                            torch.nn.Linear(64, 1)).to(device)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # after fully_shard: its state is divided, too

torch.manual_seed(1 + dist.get_rank())  # other data on each rank
for step in range(1, STEPS + 1):
    batch = torch.randn(32, 64, device=device)
    loss = torch.nn.functional.mse_loss(model(batch), batch.mean(1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}/{STEPS} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
own = sum(parameter.to_local().numel() for parameter in model.parameters())
total = sum(parameter.numel() for parameter in model.parameters())
print(f"rank {dist.get_rank()} keeps {own} of {total} weights", flush=True)
dist.destroy_process_group()
