"""The private names of PyTorch that ddplaunch.elastic uses. A release may remove each of them: this file alone uses them, asks for
each by find(), and has another way without it.

name                      | 1.13 | 2.4 | 2.11 | 2.15 | for                                        | without it
_version                  | yes  | yes | yes  | yes  | notice that a tensor was written           | a checksum of its content
_scale                    | yes  | yes | yes  | yes  | notice that a GradScaler skipped a step    | get_scale(), which waits for the GPU
_per_optimizer_states     | yes  | yes | yes  | yes  | forget an incomplete step of a GradScaler  | update() with the present scale
_new_process_group_helper | yes  | yes | yes  | yes  | notice groups that the script creates      | a wrapper of dist.new_group()
_world                    | no   | yes | yes  | yes  | number groups alike on all ranks           | _group_count; else the process ends after
                          |      |     |      |      |                                            | a failed start of an attempt
_group_count              | yes  | no  | no   | no   | as _world                                  | as _world
_abort_process_group      | no   | no  | yes  | yes  | end collectives of NCCL                    | each group's abort
_get_backend              | no   | yes | yes  | yes  | find the NCCL part of a group              | the group's own abort()
_abort, _shutdown         | no   | yes | yes  | yes  | the same before 2.6                        | the agent ends the process at the deadline
_reconfigure              | no   | no  | no   | yes  | keep the process group of survivors        | it is destroyed and made again
_get_reconfigure_handle   | no   | no  | no   | yes  | as _reconfigure                            | as _reconfigure
_iterator                 | yes  | yes | yes  | yes  | notice that persistent workers have begun  | other orders after a loss if the order of
                          |      |     |      |      |                                            | the data has no generator of its own
_composable, _shard,      | yes  | yes | yes  | yes  | modules of classes that split objects      | the public modules of the same classes
_tensor                   |      |     |      |      |                                            |
_fsdp_flattened           | yes  | yes | yes  | yes  | parameters that FSDP1 split in place       | the modules that FSDP1 wraps

The columns are the versions that were tried, on CPUs: 1.13 (Debian 12), 2.4.1, 2.11.0 and 2.15.0. NCCL's rows were only looked up there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import zlib
from typing import Any, Callable, ContextManager, List, Optional, Tuple

import torch
import torch.distributed as dist

# Classes whose objects are split over ranks, by the beginning of their module's name. state_dict() of such an object is a part of
# the state (FSDP2, tensor parallelism, ZeRO), or a collective that rank 0 alone would wait in (FSDP1).
SHARDING = ("torch.distributed.fsdp", "torch.distributed._composable", "torch.distributed._shard", "torch.distributed.tensor",
            "torch.distributed._tensor", "torch.distributed.optim", "torch.distributed.pipelin", "deepspeed.", "fairscale.", "megatron.")


PIECE_ITEMS = 1 << 22


def sharding_of(part: Any) -> Optional[str]:
    """Returns the name of the class by which an object is split over ranks, None if it is whole."""
    if isinstance(part, torch.Tensor) and find(part, "_fsdp_flattened"):
        return "parameter of FullyShardedDataParallel"
    return _sharding_base(type(part))


@functools.lru_cache(maxsize=None)
def _sharding_base(kind: type) -> Optional[str]:
    return next((base.__name__ for base in kind.__mro__ if base.__module__.startswith(SHARDING)), None)


def find(owner: Any, name: str) -> Any:
    """Returns a private attribute, or None if this PyTorch has none of that name."""
    return getattr(owner, name, None)


def version_of(tensor: torch.Tensor) -> int:
    """Returns a number that changes when the tensor is written."""
    version = find(tensor, "_version")
    if version is None:
        return zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return version


def _pieces(tensor: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Splits a tensor, since a sum in another type copies it, and the model may fill its GPU."""
    content = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return content.contiguous().flatten().split(PIECE_ITEMS)


def checksum_of(tensor: torch.Tensor) -> int:
    """Returns the sum of the tensor's content as whole numbers, which is exact on each device; 0 of one whose bytes are not to be had
    (sparse, quantized, on the meta device, not initialized)."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    try:
        return int(sum(piece.view(kinds[piece.element_size()]).sum(dtype=torch.int64) for piece in _pieces(tensor)))
    except (RuntimeError, TypeError, ValueError):
        return 0


def norm_of(tensor: torch.Tensor) -> float:
    return float(sum(piece.double().square().sum() for piece in _pieces(tensor))) ** 0.5


def is_scaler(holder: Any) -> bool:
    return find(holder, "_per_optimizer_states") is not None or any(kind.__name__ == "GradScaler" for kind in type(holder).__mro__)


def scale_of(scaler: Any) -> Any:
    """Returns the scale of a GradScaler, None before its first use. state_dict() would wait for the GPU."""
    return find(scaler, "_scale") if find(scaler, "_per_optimizer_states") is not None else scaler.get_scale()


def clear_scaler(scaler: Any) -> None:
    """Lets a GradScaler forget what an incomplete step has left."""
    states = find(scaler, "_per_optimizer_states")
    if states is not None:
        states.clear()
    elif scaler.is_enabled():
        with contextlib.suppress(AssertionError):  # it was not used yet
            scaler.update(scaler.get_scale())


def has_kept_workers(loader: Any) -> bool:
    """Returns whether a DataLoader has workers that outlast its epochs and were started already."""
    return getattr(loader, "persistent_workers", False) and find(loader, "_iterator") is not None


def watch_new_groups(opening: Callable[[], ContextManager]) -> None:
    """Runs the creation of each group of the script within opening()."""
    c10d = dist.distributed_c10d
    owner, name = (dist, "new_group") if find(c10d, "_new_process_group_helper") is None else (c10d, "_new_process_group_helper")
    make = getattr(owner, name)

    @functools.wraps(make)
    def watched(*args: Any, **named: Any) -> Any:
        with opening():
            return make(*args, **named)
    setattr(owner, name, watched)


def reset_group_numbers(made: int) -> bool:
    """Groups are numbered. An attempt that ended while its group was made has used up a number on this rank only, and a rank that
    survives has made more of them. Sets the number of groups that are made; returns False if that is not possible."""
    c10d = dist.distributed_c10d
    world = find(c10d, "_world")
    if world is not None:
        world.group_count = made
    elif find(c10d, "_group_count") is not None:
        setattr(c10d, "_group_count", made)
    else:
        return False
    return True


def subgroups() -> Optional[List[Any]]:
    """Returns the groups of new_group() that exist, None if this PyTorch does not say."""
    groups = getattr(find(dist.distributed_c10d, "_world"), "pg_map", None)
    return None if groups is None else [group for group in list(groups) if group is not dist.group.WORLD]


def can_connect_again() -> bool:
    """Returns whether a Gloo group can be connected with other processes. PyTorch 2.15 does not do it with these settings."""
    settings = [os.environ.get(name, "0") for name in ("TORCH_GLOO_LAZY_INIT", "TORCH_DIST_INIT_BARRIER")]
    if set(settings) - {"0"} or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        return False
    return None not in (find(dist, "_reconfigure"), find(dist, "_get_reconfigure_handle"), subgroups())


def group_handle() -> str:
    """Returns what the other ranks need to connect with this process's default group."""
    return find(dist, "_get_reconfigure_handle")()


def connect_again(number: int, handles: List[str]) -> None:
    """Connects the default group with those of `handles`, by rank. `number` is the same on all ranks, and new."""
    find(dist, "_reconfigure")(number, handles).wait()


def set_group_size(ranks: int) -> None:
    """Lets the default group, which was connected anew, have ranks 0 … ranks - 1."""
    find(dist.distributed_c10d, "_world").pg_group_ranks[dist.group.WORLD] = {rank: rank for rank in range(ranks)}


def abort_groups() -> None:
    """Ends the collectives of NCCL's groups, and returns when all have ended. It may block for as long as NCCL does."""
    c10d = dist.distributed_c10d
    abort = find(c10d, "_abort_process_group")  # PyTorch 2.6
    if abort is not None:
        abort()
        return
    threads = []
    for group in list(getattr(find(c10d, "_world"), "pg_map", ())) or [dist.group.WORLD]:
        backend = find(group, "_get_backend")
        backend = group if backend is None else backend(torch.device("cuda"))
        abort = getattr(backend, "abort", None) or find(backend, "_abort") or find(backend, "_shutdown")
        if abort is not None:  # else the agent ends this process at its deadline
            threads.append(threading.Thread(target=abort, daemon=True))
            threads[-1].start()
    for thread in threads:
        thread.join()
