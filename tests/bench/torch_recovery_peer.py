"""Trains the tutorial's ConvNet under DistributedDataParallel on Gloo, with the checkpoints of `train`'s restart runs.

usage: torch_recovery_peer.py METRICS CHECKPOINTS EVERY     (started by torchrun; Fashion-MNIST as Debian's package has it)

The training equals `train --batch-size 10 --checkpoint-every N --resume auto`. Rank 0 writes a record per step, and every
EVERY steps a checkpoint, from which a restarted process continues.
"""
import datetime
import gzip
import json
import os
import pathlib
import sys

import numpy
import torch
import torch.distributed as dist

DATA = "/usr/share/datasets/fashion-mnist/train-"
BATCH = 10
metrics, saved, every = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])


def read(name, offset):
    with gzip.open(DATA + name, "rb") as file:
        return torch.from_numpy(numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=offset).copy())


def block(inside, out):
    return (torch.nn.Conv2d(inside, out, 5, padding=2), torch.nn.BatchNorm2d(out), torch.nn.ReLU(), torch.nn.MaxPool2d(2))


torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = read("images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28), read("labels-idx1-ubyte.gz", 8).long()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(*block(1, 16), *block(16, 32), torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
step = 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    if rank == 0:
        print(f"resuming from {saved}: step {step}", flush=True)
model = torch.nn.parallel.DistributedDataParallel(model)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
with open(metrics, "a") as records:
    while True:
        first = (step * world + rank) * BATCH % (len(images) - BATCH)
        mine = order[first:first + BATCH]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[mine].float() / 255), labels[mine]).backward()
        optimizer.step()
        step += 1
        if rank == 0:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
            records.write(json.dumps({"kind": "step", "time": now, "step": step}) + "\n")
            records.flush()
            if step % every == 0:
                partial = saved.with_suffix(".tmp")
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
                os.replace(partial, saved)
