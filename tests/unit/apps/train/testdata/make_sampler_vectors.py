#!/usr/bin/env python3
"""Prints sampler_vectors.txt, the output of PyTorch's DistributedSampler. Needs torch (Debian's is sufficient)."""
import random
import struct

import torch
from torch.utils.data.distributed import DistributedSampler

CHOSEN = [  # samples, world, rank, seed, epoch
    (1, 1, 0, 0, 0), (1, 4, 3, 0, 0), (3, 5, 4, 0, 1), (10, 4, 0, 0, 0), (10, 4, 3, 0, 0),
    (10, 4, 2, 5, 2), (7, 3, 1, 2**32 + 3, 4), (7, 3, 1, 2**40 + 1, 4), (12, 4, 1, 2**31 - 1, 1),
    (60000, 4, 2, 0, 0), (60000, 1, 0, 0, 1), (200000, 8, 5, 2**40 + 1, 3)]
SEEDS = [0, 1, 42, 1234, 2**31, 2**32 - 1, 2**32 + 3]


def drawn(count):
    draw = random.Random(7)
    for _ in range(count):
        world = draw.choice([1, 2, 3, 4, 5, 7, 8, 16, 33, 64])
        yield (draw.randint(1, 700), world, draw.randrange(world), draw.choice(SEEDS), draw.randint(0, 9))


def fnv(numbers):
    state = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(numbers)}I", *numbers):
        state = (state ^ byte) * 0x100000001b3 & 2**64 - 1
    return state


print(f"# torch {torch.__version__} DistributedSampler: samples world rank seed epoch : count hash first eight")
for samples, world, rank, seed, epoch in CHOSEN + list(drawn(150)):
    sampler = DistributedSampler(range(samples), num_replicas=world, rank=rank, seed=seed)
    sampler.set_epoch(epoch)
    order = list(sampler)
    print(samples, world, rank, seed, epoch, ":", len(order), f"{fnv(order):016x}", *order[:8])
