#!/usr/bin/env python3
"""An unmodified program: one rank of a gloo group from the environment. Exit code 77: torch is not installed."""
import datetime
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch

torch, dist = pytorch.import_or_skip()

dist.init_process_group("gloo", init_method="env://", timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
assert total.item() == size * (size + 1) / 2, total
objects = ["from rank 0" if rank == 0 else None]
dist.broadcast_object_list(objects, src=0)
assert objects[0] == "from rank 0", objects
group = dist.new_group(list(range(size)))
dist.barrier(group=group)
gathered = [torch.zeros(1) for _ in range(size)]
dist.all_gather(gathered, torch.tensor([float(rank)]))
assert [int(t) for t in gathered] == list(range(size)), gathered
dist.barrier()
if rank == 0:
    print(f"torch {torch.__version__}: {size} ranks met", flush=True)
# The process exits without tear-down. Torch 2.0.1 sometimes hangs in it with any store, its own included.
os._exit(0)
