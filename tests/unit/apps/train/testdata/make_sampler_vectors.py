#!/usr/bin/env python3
"""Prints sampler_vectors.txt: what PyTorch's own DistributedSampler gives. Needs torch (Debian's python3-torch will do)."""
import random
import struct

import torch
from torch.utils.data.distributed import DistributedSampler

CHOSEN = [  # samples, world, rank, seed, epoch, shuffle, drop_last
    (1, 1, 0, 0, 0, 1, 0), (1, 4, 3, 0, 0, 1, 0), (3, 5, 4, 0, 1, 1, 0), (10, 4, 0, 0, 0, 1, 0), (10, 4, 3, 0, 0, 1, 1),
    (10, 4, 2, 5, 2, 0, 0), (7, 3, 1, 2**32 + 3, 4, 1, 0), (7, 3, 1, 2**40 + 1, 4, 1, 0), (12, 4, 1, 2**31 - 1, 1, 1, 0),
    (60000, 4, 2, 0, 0, 1, 0), (60000, 1, 0, 0, 1, 1, 0), (200000, 8, 5, 2**40 + 1, 3, 1, 0)]
SEEDS = [0, 1, 42, 1234, 2**31, 2**32 - 1, 2**32 + 3]


def drawn(count):
    draw = random.Random(7)
    for _ in range(count):
        world = draw.choice([1, 2, 3, 4, 5, 7, 8, 16, 33, 64])
        yield (draw.randint(1, 700), world, draw.randrange(world), draw.choice(SEEDS), draw.randint(0, 9),
               draw.choice([1, 1, 1, 0]), draw.choice([0, 0, 1]))


def fnv(numbers):
    state = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(numbers)}I", *numbers):
        state = (state ^ byte) * 0x100000001b3 & 2**64 - 1
    return state


print(f"# torch {torch.__version__} DistributedSampler: samples world rank seed epoch shuffle drop_last : "
      "count hash first eight")
for samples, world, rank, seed, epoch, shuffle, drop_last in CHOSEN + list(drawn(150)):
    sampler = DistributedSampler(range(samples), num_replicas=world, rank=rank, shuffle=bool(shuffle), seed=seed,
                                 drop_last=bool(drop_last))
    sampler.set_epoch(epoch)
    order = list(sampler)
    print(samples, world, rank, seed, epoch, shuffle, drop_last, ":", len(order), f"{fnv(order):016x}", *order[:8])
