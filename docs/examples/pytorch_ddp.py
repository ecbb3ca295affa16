"""Trains a small network with PyTorch's DistributedDataParallel, and continues from its last checkpoint after a restart.

    ddplaunch --nproc-per-node 2 docs/examples/pytorch_ddp.py
    ddplaunch --hostfile hosts --max-restarts 3 docs/examples/pytorch_ddp.py --checkpoint /shared/ddp.pt
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

arguments = argparse.ArgumentParser()
arguments.add_argument("--epochs", type=int, default=3)
arguments.add_argument("--checkpoint", help="file on a disk that all nodes share")
args = arguments.parse_args()

use_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if use_gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_gpu else torch.device("cpu")
if use_gpu:
    torch.cuda.set_device(device)

torch.manual_seed(0)  # all ranks make the same data; the sampler gives each its part
inputs = torch.randn(1024, 16)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)

network = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
first_epoch = 0
if args.checkpoint and os.path.exists(args.checkpoint):
    state = torch.load(args.checkpoint, map_location=device)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    first_epoch = state["epoch"] + 1

for epoch in range(first_epoch, args.epochs):
    sampler.set_epoch(epoch)
    for batch, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
    mean_loss = loss.detach() / dist.get_world_size()  # has a name, so that no thread of PyTorch frees it while Python ends
    dist.all_reduce(mean_loss)
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}/{args.epochs} loss {mean_loss.item():.4f}", flush=True)
        if args.checkpoint:
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)
dist.destroy_process_group()
