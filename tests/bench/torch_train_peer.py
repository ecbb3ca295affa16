"""PyTorch trains the tutorial's ConvNet as `train` does by default, on one core: batches of 100, SGD with momentum.

usage: torch_train_peer.py LAYOUT STEPS WARMUP     (LAYOUT: default or channels_last)

Images lie in memory as tensors already, so PyTorch spends no time in a loader. Prints one JSON object: the median step and
the CPU time of all measured steps, in seconds.
"""
import json
import sys
import time

import torch

BATCH = 100
layout = {"default": torch.contiguous_format, "channels_last": torch.channels_last}[sys.argv[1]]
steps, warmup = int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)


def block(inside, out):
    return (torch.nn.Conv2d(inside, out, 5, padding=2), torch.nn.BatchNorm2d(out), torch.nn.ReLU(), torch.nn.MaxPool2d(2))


model = torch.nn.Sequential(*block(1, 16), *block(16, 32), torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 32, 10))
model = model.to(memory_format=layout)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images = torch.rand(10 * BATCH, 1, 28, 28).to(memory_format=layout)
labels = torch.randint(10, (10 * BATCH,))
each = []
for step in range(-warmup, steps):
    if step == 0:
        cpu = time.process_time()
    begin = time.perf_counter()
    at = step % 10 * BATCH
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[at:at + BATCH]), labels[at:at + BATCH]).backward()
    optimizer.step()
    each.append(time.perf_counter() - begin)
cpu = time.process_time() - cpu
measured = sorted(each[warmup:])
print(json.dumps({"step": measured[len(measured) // 2], "cpu": cpu, "images": steps * BATCH}))
