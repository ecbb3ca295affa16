"""Runs one rank of PyTorch's all-reduce over Gloo, measured as in `train bench allreduce`. Rank 0 prints JSON rows.

usage: torch_allreduce_peer.py SIZES ITERATIONS WARMUP     (SIZES in bytes, comma-separated; environment as torchrun sets it)
"""
import json
import sys
import time

import torch
import torch.distributed as dist

sizes, iterations, warmup = [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rows = []
for size in sizes:
    values = torch.ones(size // 4)
    for _ in range(warmup):
        dist.all_reduce(values)
        values.fill_(1)
    dist.barrier()
    each = []
    for _ in range(iterations):
        begin = time.perf_counter()
        dist.all_reduce(values)
        each.append((time.perf_counter() - begin) * 1e6)
    each.sort()
    slowest = torch.tensor([each[len(each) // 2], each[int(0.99 * (len(each) - 1))]])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    rows.append({"bytes": size, "p50_us": float(slowest[0]), "p99_us": float(slowest[1])})
dist.barrier()
if dist.get_rank() == 0:
    print(json.dumps({"rows": rows}))
