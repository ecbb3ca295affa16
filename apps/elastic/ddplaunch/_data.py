"""The position in the training data, as ddplaunch.elastic keeps it."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import random
import sys
from typing import Any, Callable, Dict, Iterator, Tuple

import torch

from ._torch import has_kept_workers


def seed_of(*parts: int) -> int:
    """Returns a number of 64 bits that depends on all parts and is the same on each machine."""
    return int.from_bytes(hashlib.sha256(" ".join(map(str, parts)).encode()).digest()[:8], "little")


def seed_generators(number: int) -> None:
    """Seeds the generators of random, NumPy and PyTorch."""
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number & 0xffffffff)


@contextlib.contextmanager
def keep_generators() -> Iterator[None]:
    """Gives the generators of random, NumPy and the CPU their states back at the end."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), numpy and numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(states[0])
    if numpy:
        numpy.random.set_state(states[1])


class Position:
    """What the completed steps have used of the data. It is handed on with the state of the rank that holds most steps."""

    def __init__(self) -> None:
        self.seed = torch.initial_seed()
        self.epoch = 0
        self.used = 0           # batches of this epoch that completed steps have used, of all ranks together
        self.ranks = 1          # ranks that have used them
        self.loader: Any = None  # state_dict() of a StatefulDataLoader after them
        self.begun: Any = None   # the optimizers' numbers before the first batch of this epoch

    def state_dict(self) -> Dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        vars(self).update(state)

    def next_epoch(self) -> None:
        self.epoch, self.used, self.loader = self.epoch + 1, 0, None

    def advance(self, loader: Any, batches: int, ranks: int) -> None:
        """Sets the position behind `batches` batches of each rank."""
        self.used, self.ranks = batches * ranks, ranks
        self.loader = loader.state_dict() if _is_stateful(loader) else None

    def remaining(self, loader: Any, rank: int, ranks: int, seed: Callable[[], None]) -> Iterator[Tuple[int, Any]]:
        """Returns the batches of `loader` that the completed steps have not used, each with its number in the epoch, from 1. A sampler
        that deals the items out to the ranks in turn (DistributedSampler) has given all ranks together the first items of the epoch. So
        with another number of ranks the same items are skipped, rounded down to whole batches.

        The numbers that a sampler and a loader draw when an epoch begins depend on seed, epoch and rank alone, or on the first seed of
        a generator of their own and the epoch: so a new process finds the same order. `seed` then seeds all generators for the step."""
        skipped = self.used // ranks
        sampler = getattr(loader, "sampler", None)
        batch_sampler = getattr(loader, "batch_sampler", None)
        for holder in (loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None)):
            if isinstance(getattr(holder, "generator", None), torch.Generator):
                _seed_for(holder.generator, self.epoch)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        is_kept = self.loader is not None and self.ranks == ranks and _is_stateful(loader)
        if is_kept:
            loader.load_state_dict(self.loader)
        with keep_generators():
            seed_generators(seed_of(self.seed, self.epoch, rank))
            if has_kept_workers(loader):
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # only the first epoch's iterator draws it
            source = iter(loader)
            first = list(itertools.islice(source, 0 if skipped else 1))
            if not is_kept:
                collections.deque(itertools.islice(source, skipped), maxlen=0)
        seed()
        return enumerate(itertools.chain(first, source), skipped + 1)


_seeded: Dict[int, Tuple[torch.Generator, int, int]] = {}  # by id: a generator, the script's seed of it, the seed of _seed_for()


def _seed_for(generator: torch.Generator, epoch: int) -> None:
    """Seeds a generator from the script's seed of it, which the ranks may share, and the epoch."""
    _, seed, latest = _seeded.get(id(generator), (generator, 0, None))
    if generator.initial_seed() != latest:  # the script has seeded it
        seed = generator.initial_seed()
    _seeded[id(generator)] = generator, seed, seed_of(seed, epoch)
    generator.manual_seed(seed_of(seed, epoch))


def _is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def check_loader(loader: Any, ranks: int) -> None:
    """Raises TypeError if the position of `loader` cannot be taken from another rank."""
    if ranks > 1 and _is_stateful(loader) and isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        raise TypeError(f"world.batches() got a {type(loader).__name__} of an IterableDataset, whose state differs between ranks; a lost "
                        "rank's is nowhere else. Use a map-style dataset, or a plain DataLoader, which repeats the epoch up to the step")
