"""Lets a PyTorch training function survive the loss of other ranks, through ddplaunch's worker protocol.

    from ddplaunch import elastic

    @elastic.rejoin
    def train(world, state):
        if not state:                                  # the first call in this process
            state["model"] = torch.nn.Linear(8, 1)
            state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
        world.sync(state["model"], state["optimizer"])  # all that a step changes: then all ranks hold the same state
        ddp = torch.nn.parallel.DistributedDataParallel(state["model"])
        for step in range(world.completed, 1000):
            ...                                         # optimizer.step(), scheduler.step(), …
            world.step(step + 1)                        # the last call of a step

When a rank dies, the module tears down the process groups of all other ranks. It calls the function again, in the same
process, as soon as the ranks of the next attempt are known. Without ddplaunch (torchrun, by hand) the function is called
once. docs/users/elastic_python.md documents the module, docs/developers/worker_protocol.md the protocol. The module needs only
PyTorch 1.13 or later.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import itertools
import json
import math
import os
import pickle
import select
import socket
import sys
import threading
import time
import traceback
import types
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise ImportError(f"ddplaunch.elastic: cannot import PyTorch: {error}; install it for the interpreter that runs the script") from error

from . import Steps, as_number
from ._data import Position, check_loader, seed_generators, seed_of
from ._gloo import Sockets, SurvivingGroup, expire_collectives
from ._torch import (abort_groups, can_connect_again, checksum_of, clear_scaler, is_scaler, norm_of, reset_group_numbers, scale_of,
                     sharding_of, version_of, watch_new_groups)

__all__ = ["LinkLost", "Revoked", "ScriptError", "StepSeed", "World", "rejoin", "run"]

PROTOCOL = 1
LINE_BYTES = 4096
STEP_EVERY_S = 0.1   # the protocol allows ten reports a second
ORDER_S = 10.0       # how long a worker that lost a peer waits for the next order
FIRST_ORDER_S = 60.0
GRACE_S = 1.0        # how long it waits after an exception that no lost peer explains
FORK_WAIT_S = 0.1    # how long a fork waits for the other threads of this process
PIECE_BYTES = 64 << 20
ITEMS_SEARCHED = 100_000  # of one object, for parts that are split over ranks
COMPARED_STEPS = (2, 4, 8, 16)  # the steps after a recovery at which ranks compare their weights
SECOND_GROUP = "the default process group twice"  # PyTorch's error, a RuntimeError or ValueError
ORDER_KEYS = ("attempt", "rank", "world", "local_rank", "local_world", "node_rank", "nodes")


class Revoked(RuntimeError):
    """The attempt is over, because a rank was lost. Do not catch this: rejoin() does, and calls the function again."""


class LinkLost(RuntimeError):
    """The agent of this node does not answer at DDPLAUNCH_CONTROL, or its messages are not understood."""


class ScriptError(TypeError):
    """The script uses this module in a way that fails in every attempt. Where it ends the process, the job ends without a restart, also
    if the script catches it and exits with a code other than 0."""

    latest: Optional[str] = None

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if ScriptError.latest is None:
            atexit.register(_report_script_error)
        ScriptError.latest = text


def _report_script_error() -> None:
    """Tells the agent at the end of the process that a ScriptError has led to it, which makes another attempt senseless. A script that
    caught it and went on may end by another exception, which a new attempt may not meet, or because the agent stops it."""
    control, error, link = os.environ.get("DDPLAUNCH_CONTROL"), getattr(sys, "last_value", None), _Link.opened
    is_cause = error is None
    while error is not None and not is_cause:  # __context__ is only what was handled at that time
        is_cause, error = isinstance(error, ScriptError), error.__cause__
    text, ScriptError.latest = ScriptError.latest, None
    if not control or not is_cause or text is None or (link and link.stopping):
        return
    with contextlib.suppress(LinkLost):
        link = link or _Link(control, rejoin=False)
        attempt = link.attempt if link.attempt >= 0 else int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        link.send({"failed": attempt, "error": _plain(f"ScriptError: {text}"), "retry": False})


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() and c.isascii() else " " for c in text)[:1000]


class _Link:
    """This worker's end of DDPLAUNCH_CONTROL. A separate thread reads the link, so that a revoke is seen while the main
    thread computes or hangs in a collective. The same thread reports steps, so that world.step() costs nothing."""

    opened: Optional[_Link] = None  # the agent takes one connection of a process

    def __init__(self, control: str, rejoin: bool = True) -> None:
        self.changed = threading.Condition()
        self.next: Optional[Dict[str, Any]] = None    # the order of the latest attempt
        self.attempt = -1                             # the attempt whose order was taken
        self.revokes: Dict[int, str] = {}             # reason by attempt
        self.stopping: Optional[str] = None
        self.lost: Optional[str] = None
        self.ignored: Optional[bytes] = None          # the first line that was not understood
        self.report: Optional[Dict[str, Any]] = None  # a step that was not reported yet
        self.abort: Optional[_Abort] = None           # of the latest attempt
        self.sending = threading.Lock()
        path = control[5:] if control.startswith("unix:") else ""
        if not path:
            raise LinkLost(f"DDPLAUNCH_CONTROL is {control!r}; this version of ddplaunch.elastic supports only unix:PATH")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError as error:
            raise LinkLost(f"cannot connect to the agent at DDPLAUNCH_CONTROL ({control}): {error.strerror}. In a container mount "
                           "this path. If the variable is unset, the script runs without ddplaunch") from error
        _Link.opened = self
        self.greet(rejoin)
        if rejoin:  # else this process ends, and starts no thread any more (Python 3.12)
            threading.Thread(target=self._run, name="ddplaunch-link", daemon=True).start()

    def send(self, word: Dict[str, Any]) -> None:
        try:
            with self.sending:
                self.socket.sendall(json.dumps(word, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self._lose(f"the link to the agent broke: {error.strerror}")

    def greet(self, rejoin: bool) -> None:
        """A later call with False says that the function has returned: the agent asks nothing more of this process."""
        self.send({"hello": PROTOCOL, "pid": os.getpid(), "rejoin": rejoin, "sharded": False})

    def take(self, abort: _Abort, held: Optional[int]) -> Dict[str, Any]:
        """Waits for the next attempt's order, without a limit. Answers the revoke of an attempt that was revoked before."""
        while True:
            with self.changed:
                # The agent starts a process for an attempt, so the first order is there already. An agent with another
                # version of the protocol sends nothing.
                in_time = self.changed.wait_for(lambda: self.next or self.lost or self.stopping,
                                                FIRST_ORDER_S if self.attempt < 0 else None)
                if self.stopping:
                    raise SystemExit(143)  # SIGTERM was sent too, and a handler caught it
                if not self.next:
                    why = self.lost if in_time else f"the agent sent no order within {FIRST_ORDER_S:g} s"
                    if self.ignored is not None:
                        why = f"{why} (it sent {self.ignored[:200]!r})"
                    raise LinkLost(f"{why}; ddplaunch.elastic supports version {PROTOCOL} of the worker protocol")
                order, self.next, self.report = self.next, None, None
                self.attempt = order["attempt"]
                if self.attempt not in self.revokes:
                    self.abort = abort
                    return order
            self.send({"revoked": self.attempt, "step": held})

    def revoked(self) -> Optional[str]:
        return self.revokes.get(self.attempt)

    def await_revoke(self, seconds: float) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.revoked() is not None or self.lost, seconds)
            return self.revoked() is not None

    def _lose(self, why: str) -> None:
        with self.changed:
            self.lost = self.lost or why
            self.changed.notify_all()

    def _run(self) -> None:
        pending, poll = b"", select.poll()  # select() fails for descriptors of 1024 and more
        poll.register(self.socket, select.POLLIN)
        try:
            while True:
                readable = poll.poll(1000 * STEP_EVERY_S)
                with self.changed:  # world.step() may be setting another report
                    report, self.report = self.report, None
                if report and self.revoked() is None:
                    self.send(report)
                if not readable:
                    continue
                received = self.socket.recv(65536)
                if not received:
                    raise ValueError("the agent closed the link")
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._hear(line)
                if len(pending) >= LINE_BYTES:
                    raise ValueError("the agent sent a line that is too long")
        except (OSError, ValueError) as error:
            self._lose(str(error))

    def _hear(self, line: bytes) -> None:
        """Handles one line. A broken line, or one of a later protocol version, is ignored."""
        try:
            word = json.loads(line)
        except (ValueError, RecursionError):
            word = None
        word = word if isinstance(word, dict) else {}
        with self.changed:
            if all(type(word.get(key)) is int for key in ORDER_KEYS) and type(word.get("store")) is str:
                if word["attempt"] > self.attempt:
                    self.next = word
            elif type(word.get("revoke")) is int:
                if word["revoke"] not in self.revokes:
                    self.revokes[word["revoke"]] = str(word.get("reason", "revoked"))
                    if word["revoke"] == self.attempt:
                        self._start_abort()
            elif "stop" in word:
                self.stopping = str(word["stop"])
                if self.abort is not None and not self.abort.is_joined:  # ranks that start may have ended, and will not join
                    self.abort.is_stopped = True
                    self._start_abort()
            elif self.ignored is None:
                self.ignored = line
            self.changed.notify_all()

    def _start_abort(self) -> None:
        """Tearing down may block, and this thread must read the agent's next message."""
        if self.abort is not None:
            threading.Thread(target=self.abort, name="ddplaunch-abort", daemon=True).start()


def _mark(value: Any) -> Any:
    """Returns a copy of a state_dict() that differs when the state does: numbers, texts, and the version of each tensor."""
    if isinstance(value, torch.Tensor):
        return version_of(value)
    if isinstance(value, dict):
        return {key: _mark(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mark(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) else None


class _Progress:
    """Knows how many steps are complete in the state of this process, and whether other ranks may have that state.

    Registered objects change between the first optimizer.step() of a step and world.step(), and at no other time. When an
    attempt ends in between, the state includes a part of a step that was not counted, so it must not be handed on. Without a
    registered optimizer nothing shows when a step begins, so such a state is never handed on."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous  # collectives return before they are complete (NCCL)
        self.is_recovered = False         # a state was handed on from rank to rank at least once
        self.hooked: Any = weakref.WeakSet()
        self.misuse: Optional[str] = None
        self.lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self.completed: Optional[int] = None
        self.is_used = False             # training has changed the state
        self.stepped = False             # an optimizer has stepped since the last call of world.step()
        self.registered: List[Any] = []  # registered by world.sync() in the latest attempt that called it
        self.earlier: List[Any] = []     # the same in the attempt before that one
        self.marks: List[Any] = []
        self.others: List[Tuple[torch.Tensor, int]] = []  # parameters without a registered optimizer, and their versions
        self.weights: Optional[List[int]] = None  # the versions of all parameters, None until the first step after world.sync()
        self.sums: List[int] = []                 # their checksums at world.sync(): DistributedDataParallel writes them afterwards
        self.buffers: List[Tuple[torch.nn.Module, str, torch.Tensor, torch.Tensor]] = []
        self.modes: List[Tuple[torch.nn.Module, bool]] = []  # train() or eval() of each module
        self.trained: List[Tuple[torch.nn.Parameter, bool]] = []  # whether each parameter has a gradient, or is frozen
        self.shapes: List[List[int]] = []                    # parameters in each group of each optimizer
        self.position = Position()
        self.event: Any = None           # completes with the last step that was counted, on a GPU

    def begin(self, world: World) -> None:
        self.world, self.frozen, self.is_whole = world, False, True
        self.is_recovered = self.is_recovered or world.source is not None

    def register(self, holders: Tuple[Any, ...]) -> None:
        self.earlier, self.registered = self.registered, []
        is_source = self.world.rank == self.world.source
        for holder in holders:
            is_known = isinstance(holder, StepSeed) or any(holder is other for other in self.earlier)
            if is_source and self.earlier and not is_known:
                raise RuntimeError(f"world.sync() got a different {type(holder).__name__} object than in the last attempt, so its state is "
                                   "lost; keep registered objects in `state`")
            self.registered.append(holder)
            if isinstance(holder, torch.optim.Optimizer) and holder not in self.hooked:
                self.hooked.add(holder)
                _before_each_step(holder, self.before_optimizer)
        self.shapes = self._shapes()

    def mark(self) -> None:
        self.marks, self.stepped = self._marks(), False
        modules = self._registered(torch.nn.Module)
        groups = [group for optimizer in self._registered(torch.optim.Optimizer) for group in optimizer.param_groups]
        trained = {id(p) for group in groups for p in group["params"]}
        self.others = [(p, version_of(p)) for p in self._parameters() if id(p) not in trained]
        self.weights = self.versions()
        parts = [part for module in modules for part in module.modules()]
        # A forward pass changes some buffers (BatchNorm) and does not always count that in their versions.
        self.buffers = [(part, name, buffer, buffer.detach().clone()) for part in parts for name, buffer in part.named_buffers(recurse=False)]
        self.modes = [(part, part.training) for part in parts]
        self.trained = [(p, p.requires_grad) for module in modules for p in module.parameters()]

    def mark_synced(self) -> None:
        self.mark()
        self.weights, self.others = None, []
        self.sums = [checksum_of(p) for p in self._parameters()]

    def _parameters(self) -> List[torch.nn.Parameter]:
        """Returns the weights that only an optimizer changes: an embedding with max_norm renorms its rows in each forward pass, to the
        same values again."""
        modules = self._registered(torch.nn.Module)
        renormed = {id(part.weight) for module in modules for part in module.modules() if getattr(part, "max_norm", None) is not None}
        return [p for module in modules for p in module.parameters() if id(p) not in renormed]

    def versions(self) -> List[int]:
        return [version_of(p) for p in self._parameters()]

    def numbers(self) -> List[Any]:
        """Returns the learning rates and other numbers of the optimizers, and the marks of other objects."""
        def plain(value: Any) -> Any:
            return value.tolist() if isinstance(value, torch.Tensor) else _mark(value)
        groups = [group for optimizer in self._registered(torch.optim.Optimizer) for group in optimizer.param_groups]
        return [self._marks(), [{key: plain(value) for key, value in group.items() if key != "params"} for group in groups]]

    def compared(self) -> List[Tuple[float, float]]:
        """Returns what all ranks have alike after a step, each with the error of rounding that ranks of different machines have."""
        rates = [value for group in self.numbers()[1] for value in group.values() if isinstance(value, (int, float))]
        norms = [(norm_of(p), max(8 * torch.finfo(p.dtype).eps, 1e-9)) for p in self._parameters() if p.is_floating_point()]
        # A small weight that crosses zero differs by what rounding is in the large ones.
        offset = 0.01 * max((norm for norm, _ in norms if math.isfinite(norm)), default=0.0)
        return [*((norm + offset, error) for norm, error in norms), *((float(rate), 1e-5) for rate in rates)]

    def _weights_differ(self) -> bool:
        if self.weights is not None:
            return self.weights != self.versions()
        return any(old != checksum_of(p) for old, p in zip(self.sums, self._parameters()))

    def _registered(self, kind: type) -> List[Any]:
        return [holder for holder in self.registered if isinstance(holder, kind)]

    def _marks(self) -> List[Any]:
        """Returns the marks of schedulers, scalers and similar objects; optimizers have a hook."""
        def mark(holder: Any) -> Any:
            if is_scaler(holder):  # it makes its scale when it is first used, and only update() writes it
                scale = scale_of(holder)
                return (True, 0 if scale is None else _mark(scale))
            return (False, _mark(holder.state_dict()))
        return [mark(holder) for holder in self.registered if not isinstance(holder, (torch.nn.Module, torch.optim.Optimizer))]

    def _have_changed(self) -> bool:
        return (any(old != new for old, new in zip(self.marks, self._marks()))
                or any(version_of(p) != version for p, version in self.others))

    def before_optimizer(self) -> None:
        """Runs before an optimizer uses gradients. It waits until they are complete, and raises Revoked after a revoke, since
        an aborted all-reduce may have left them."""
        if self.stepped:
            return
        if self.asynchronous:
            torch.cuda.synchronize()
        if self.world.revoked is not None:
            raise Revoked(self.world.revoked)
        if not self.world._is_looping:
            self.check_unchanged()
        self.stepped = self.is_used = True

    def check_unchanged(self) -> None:
        """Excludes the state from use if a registered object has changed since the last counted step, outside of a step."""
        if self.misuse is None and self._have_changed():
            why = ("a scheduler, scaler or another object of world.sync() changed after world.step(), which must be the last "
                   "call of a step")
            if self.is_recovered:
                raise RuntimeError(f"{why}: the change may be missing in the state that other ranks received")
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        """Excludes the state from use after a loss, from this call on."""
        if self.misuse is None:
            self.misuse = why
            _warn(f"{why}: after a loss this state cannot be used")

    def count(self, completed: int) -> bool:
        """Counts a step. Returns False if the step is not new or may result from an aborted collective."""
        with self.lock:
            if (completed == self.completed and not self.stepped) or (self.frozen and self.asynchronous):
                return False
            before = self.completed or 0
            if self.stepped and completed <= before:
                self._refuse(f"world.step({completed}) follows an optimizer's step, but {before} steps were complete before it")
            elif (not self.stepped and completed > before and self._registered(torch.optim.Optimizer)
                    and self.marks == self._marks()):
                # A scaler that skips a step changes its scale. A validation step changes a scheduler.
                self._refuse(f"world.step({completed}) was called for a step in which no registered optimizer has stepped")
            if self._shapes() != self.shapes:
                self._refuse("an optimizer has got other parameters since world.sync(); that of a new process could not take its state")
            self.completed, self.is_used = completed, True
            self.seed()
            self.mark()
            if self.asynchronous:
                self.event = torch.cuda.Event()
                self.event.record()
            return True

    def _shapes(self) -> List[List[int]]:
        return [[len(group["params"]) for group in optimizer.param_groups] for optimizer in self._registered(torch.optim.Optimizer)]

    def has_moved(self) -> bool:
        """Returns whether an optimizer has stepped since the last counted step, or a scaler has skipped its step."""
        return self.stepped or any(is_scaler and old != new for (is_scaler, old), (_, new) in zip(self.marks, self._marks()))

    def end_epoch(self) -> None:
        """Takes what followed the epoch's last step (validation, a scheduler) as part of that step's state."""
        with self.lock:
            self.position.next_epoch()
            if not self.stepped and not (self.frozen and self.asynchronous):
                self.seed()
                self.mark()

    def seed(self, epoch: Optional[int] = None) -> None:
        """Seeds all generators for the next step, or for what a script does at the beginning of an epoch."""
        for holder in self.registered:
            if isinstance(holder, StepSeed):
                holder.seed_step((self.completed or 0) if epoch is None else -1 - epoch, self.world.rank)

    def freeze(self) -> None:
        """Marks the attempt as over, before collectives are aborted. Either the GPU has completed the counted step at this
        time, or its result cannot be known."""
        with self.lock:
            if not self.frozen and self.event is not None:
                try:
                    self.is_whole = self.event.query()
                except RuntimeError:
                    self.is_whole = False
            self.frozen = True

    def settle(self) -> Optional[int]:
        """Returns the number of steps to report when an attempt is over, or None if the state here must not be used."""
        why = self.misuse
        if not self._registered(torch.optim.Optimizer):
            why = "world.sync() got no optimizer"
        elif self.stepped:
            why = "the attempt ended between optimizer.step() and world.step()"
        elif self._have_changed() or self._weights_differ():
            why = "the attempt ended in a step that had changed weights or other registered objects already"
            self.is_used = True  # also in the first step, which nothing can take back
        elif not self.is_whole:
            why = "the attempt ended before the GPU had completed the step"
        if self.completed is not None and why is not None:
            _warn(f"the state after step {self.completed} is not used: {why}")
            self.completed = None
        for part, mode in self.modes:  # a validation may have been interrupted
            part.training = mode
        for p, is_trained in self.trained:  # a step of a GAN freezes a model for a while
            p.requires_grad_(is_trained)
        for part, name, buffer, copy in self.buffers:
            setattr(part, name, buffer)
            if not torch.equal(buffer, copy):
                buffer.copy_(copy)
        return self.completed


def _beside_state(module: torch.nn.Module, state: Dict[str, Any]) -> Tuple[List[bool], List[bool], Dict[str, torch.Tensor]]:
    """Returns what `state` = module.state_dict() leaves out, and a step can change: train() or eval(), which parameters are frozen, and
    buffers that are not persistent."""
    return ([part.training for part in module.modules()], [p.requires_grad for p in module.parameters()],
            {name: buffer for name, buffer in module.named_buffers() if name not in state})


def _load_beside_state(module: torch.nn.Module, modes: List[bool], trained: List[bool], buffers: Dict[str, torch.Tensor]) -> None:
    for part, mode in zip(module.modules(), modes):
        part.training = mode
    for p, is_trained in zip(module.parameters(), trained):
        p.requires_grad_(is_trained)
    own = dict(module.named_buffers())
    for name, buffer in buffers.items():
        if name in own and own[name].shape == buffer.shape:
            mine = own[name].detach()
            if not torch.equal(mine.cpu(), buffer.cpu()):  # an expanded one cannot be written
                mine.copy_(buffer)


def _warn(text: str) -> None:
    print(f"ddplaunch.elastic: {text}", file=sys.stderr, flush=True)


def _before_each_step(optimizer: torch.optim.Optimizer, call: Callable[[], None]) -> None:
    if hasattr(optimizer, "register_step_pre_hook"):  # PyTorch 2
        optimizer.register_step_pre_hook(lambda *_: call())
        return
    step = optimizer.step

    @functools.wraps(step)  # copies the attributes by which a scheduler recognizes its wrapped step()
    def hooked(_: Any, *args: Any, **named: Any) -> Any:
        call()
        return step(*args, **named)
    optimizer.step = types.MethodType(hooked, optimizer)  # a scheduler that is made later needs a method


def _split_part(holder: Any) -> Optional[Tuple[str, str]]:
    """Returns where in `holder` a part is split over ranks, and the part's class. It looks at parameters, buffers and the state of
    optimizers, and into objects that have others' state: lists, dicts, and what has a state_dict(), as those that
    torch.distributed.checkpoint saves. It calls no state_dict() that may be a collective, and takes milliseconds."""
    pending, seen = [("", holder)], {}  # the objects are kept, since an address may be used again
    room = iter(range(ITEMS_SEARCHED))
    for name, part in pending:  # which grows
        kind = sharding_of(part)
        if kind is not None:
            return name, kind
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, torch.nn.Module):
            inner = itertools.chain(part.named_parameters(recurse=False), part.named_buffers(recurse=False), part.named_children())
        elif isinstance(part, torch.optim.Optimizer):
            inner = [("param_groups", part.param_groups), ("state", part.state)]
        elif isinstance(part, dict):
            inner = part.items()
        elif isinstance(part, (list, tuple)):
            inner = enumerate(part)
        elif hasattr(part, "state_dict") and not isinstance(part, type):
            inner = list(getattr(part, "__dict__", {}).items())
        else:
            continue
        for _, (key, item) in zip(room, inner):
            if isinstance(item, (torch.Tensor, dict, list, tuple)) or hasattr(item, "state_dict"):
                key = "…" if isinstance(key, torch.Tensor) else key  # an optimizer's state; a tensor's text needs its values
                pending.append((f"{name}.{key}" if name else str(key), item))
    return None


def _refuse_shards(holder: Any, when: str = "is", call: str = "world.sync()") -> None:
    """Raises ScriptError if an object of world.sync() is split over ranks. It runs before any collective, and alike on all ranks."""
    ddp = torch.nn.parallel.DistributedDataParallel
    if any(isinstance(part, ddp) for part in (holder.modules() if isinstance(holder, torch.nn.Module) else ())):
        place = "" if isinstance(holder, ddp) else f" in a {type(holder).__name__}"
        raise ScriptError(f"{call} got a DistributedDataParallel{place}, which belongs to one attempt: register the module that it "
                          "wraps, and wrap that in each attempt")
    found, where = _split_part(holder), ""
    if found is None and not isinstance(holder, (torch.nn.Module, torch.optim.Optimizer)) and not is_scaler(holder):
        if not (hasattr(holder, "state_dict") and hasattr(holder, "load_state_dict")):
            raise ScriptError(f"{call} got a {type(holder).__name__}, which has no state_dict() and load_state_dict()")
        found = _split_part(holder.state_dict())
        where = "state_dict() " if found else ""
    if found is not None:
        where = f" ({where}{found[0]} is a {found[1]})" if found[0] else ""
        raise ScriptError(f"{call} got a {type(holder).__name__} that {when} split over the ranks{where}. One rank has only its part "
                          "of it, and would overwrite the parts of the others. Register objects that are whole on each rank, as under "
                          "DistributedDataParallel; a script with FSDP, tensor parallelism or ZeRO runs without ddplaunch.elastic and "
                          "restarts from its checkpoints")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in a state_dict()."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _refuse_forgotten_weights(holders: Tuple[Any, ...]) -> None:
    """Raises ScriptError if an optimizer of world.sync() has parameters that no other object hands on."""
    known = {id(p) for holder in holders if isinstance(holder, torch.nn.Module) for p in holder.parameters()}
    missing = [(optimizer, p) for optimizer in holders if isinstance(optimizer, torch.optim.Optimizer)
               for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if not missing:
        return
    states = [holder.state_dict() for holder in holders if not isinstance(holder, torch.optim.Optimizer) and not is_scaler(holder)]
    addresses = {tensor.data_ptr() for tensor in _tensors(states)}  # a state_dict() returns other objects with the same content
    for optimizer, p in missing:
        if p.data_ptr() not in addresses:
            raise ScriptError(f"world.sync() got a {type(optimizer).__name__} with a parameter of shape {list(p.shape)} that no registered "
                              "module has, so a rank that starts again would not get its weights. Register each module that the "
                              "optimizer changes")


def _with_own_types(saved: Any, loaded: Any) -> Any:
    """Returns `loaded` with the types of `saved`: an optimizer converts its state to the type of the parameters when it loads it."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        for key in saved.keys() & loaded.keys():
            loaded[key] = _with_own_types(saved[key], loaded[key])
    elif type(saved) is type(loaded) and type(loaded) in (list, tuple):
        return type(loaded)(map(_with_own_types, saved, loaded))
    return loaded


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: Dict[str, Any]) -> None:
    optimizer.load_state_dict(saved)
    own = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for p, number in zip(own, numbers):
        if number in saved["state"]:
            optimizer.state[p] = _with_own_types(saved["state"][number], optimizer.state[p])


class StepSeed:
    """Seeds the generators of random, NumPy and PyTorch for each step from `seed`, the number of completed steps and the
    rank. A step that is repeated, or that a new process makes, draws the same numbers. Pass it to world.sync()."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def state_dict(self) -> Dict[str, Any]:
        return {"seed": self.seed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.seed = state["seed"]

    def seed_step(self, completed: int, rank: int) -> None:
        seed_generators(seed_of(self.seed, completed, rank))


class World:
    """One attempt, as this rank sees it."""

    def __init__(self, link: Optional[_Link], order: Dict[str, Any], progress: _Progress, device: str) -> None:
        self.attempt: int = order["attempt"]            # 0 at first
        self.rank: int = order["rank"]
        self.world_size: int = order["world"]
        self.local_rank: int = order["local_rank"]
        self.local_world_size: int = order["local_world"]
        self.node_rank: int = order["node_rank"]
        self.nodes: int = order["nodes"]
        self.source: Optional[int] = order.get("from")  # rank that holds the state; None: no rank does, a fresh start
        self._link, self._order, self._progress, self._device = link, order, progress, device
        self._is_ready = self._is_synced = self._is_in_epoch = False
        self._store: Any = None  # of the attempt
        self._counted = 0  # steps of the attempt
        self._compared: Any = None  # (key, what this rank has) while the source's is not known
        self._numbers: Any = None  # progress.numbers() when epochs() has yielded an epoch
        self._is_broken: Callable[[], bool] = lambda: False  # connections of the attempt are
        self._is_looping = False  # steps() or epochs() ends the steps, so the whole body of the loop is the step
        self._is_checked = True  # objects may have been split since world.sync()
        self.loss: Any = None  # of the step that runs; set it for `ddplaunch status` and the dashboard
        self.batch = 0  # number of the batch from batches() in its epoch
        self.waited = 0.0  # seconds of the step that runs in which this rank waited for others; add to it
        self._steps = Steps()
        progress.begin(self)

    @property
    def completed(self) -> int:
        """The number of complete steps in the state of this process, or 0 without a state."""
        return self._progress.completed or 0

    @property
    def revoked(self) -> Optional[str]:
        """Why the attempt is over, or None while it runs."""
        return self._link.revoked() if self._link else None

    @property
    def stopping(self) -> Optional[str]:
        """Why the whole job ends soon, or None while it runs. SIGTERM follows, so this is the time for a last checkpoint."""
        return self._link.stopping if self._link else None

    def step(self, completed: int, phase: Optional[str] = None, loss: Optional[float] = None) -> None:
        """Reports that the state of this process has `completed` steps; must be the last call of a step. `phase` says in a
        few words what comes next. `loss` is that of the step, for the dashboard. A step that is not reported counts as not made when the attempt ends. After the end of the
        attempt, either this call or the next call of an optimizer or of this function raises Revoked. A change that the
        script makes after this call by mistake may therefore still run."""
        if self.source is not None and not self._is_synced and self._progress.completed is not None:
            raise RuntimeError(f"world.sync() was not called in attempt {self.attempt}, which continues from the state of rank "
                               f"{self.source}: call it before world.step() in each attempt")
        if not self._is_checked:
            self._is_checked = True
            for holder in self._progress.registered:
                _refuse_shards(holder, "was later")
        by_optimizer = self._progress.stepped
        is_counted = self._progress.count(int(completed))
        if is_counted and self._store is not None and self.source is not None:
            self._compare()
        self._ready()
        waited, self.waited = self.waited, 0.0
        if self._link:
            loss = as_number(loss)  # may wait for a collective, and the thread that aborts it needs the lock
            with self._link.changed:
                if self._link.report is None:  # the last one was sent
                    self._steps.clear()
                self._steps.add(self.completed, time.monotonic(), waited)
                self._link.report = {"step": self.completed, **({"in": phase[:64]} if phase else {}),
                                     **({} if loss is None else {"loss": loss}),
                                     **self._steps.word()}
            if self.revoked is not None and not (by_optimizer and is_counted):
                raise Revoked(self.revoked)

    def _compare(self) -> None:
        """Compares what this rank has with what the source has, some times after a recovery. It waits for no other rank: the source's is
        there one step later, if not before."""
        self._counted += 1
        try:
            if self._compared is not None and self._store.add(f"{self._compared[0]}/set", 0):
                (key, mine), self._compared = self._compared, None
                theirs = json.loads(self._store.get(key))
                if len(mine) != len(theirs) or any(abs(a - b) > error * max(abs(a), abs(b)) for (a, error), (b, _) in zip(mine, theirs)):
                    raise ScriptError(f"this rank has other weights or learning rates than rank {self.source}, a few steps after the loss of a "
                                      "rank. An object that a step changes is not registered: a scheduler, an optimizer, a counter of steps")
            if self._counted in COMPARED_STEPS:
                key, mine = f"compare/{self.completed}", self._progress.compared()
                if self.rank == self.source:
                    self._store.set(key, json.dumps(mine))
                    self._store.add(f"{key}/set", 1)
                else:
                    self._compared = key, mine
        except RuntimeError:  # the attempt is over; the next collective tells
            self._store = None

    def steps(self, count: int) -> Iterator[int]:
        """Yields the numbers of the steps that remain of `count`, and calls step() after each."""
        self._begin_loop()
        self._progress.seed()  # what precedes the loop may draw numbers
        while self.completed < count:
            yield self.completed
            self._end_step()

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the numbers of the epochs that remain of `count`, the interrupted one first. What follows the last step of an
        epoch belongs to that step: a validation, and then a scheduler that needs its result."""
        self._begin_loop()
        while self._progress.position.epoch < count:
            self._is_in_epoch = False
            self._progress.seed(self._progress.position.epoch)  # also if it is resumed in the middle
            self._numbers = self._progress.numbers()
            yield self._progress.position.epoch
            if self._progress.has_moved():  # the script left the batches behind optimizer.step()
                self._end_step()
            self._progress.end_epoch()
            if self.revoked is not None:
                raise Revoked(self.revoked)

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yields the batches of `loader`, a DataLoader or StatefulDataLoader, that remain of this epoch, and calls step() after each one
        in which an optimizer has stepped. The others belong to the next step (gradient accumulation)."""
        if self._is_in_epoch:
            raise ScriptError("world.batches() was called twice in an epoch; iterate over other loaders directly, and over epochs with "
                              "world.epochs()")
        try:
            check_loader(loader, self.world_size)
        except TypeError as error:
            raise ScriptError(str(error)) from None
        self._is_in_epoch, progress, position = True, self._progress, self._progress.position
        marks, rates = progress.numbers()
        if not position.used:
            position.begun = rates
        elif self._numbers is not None and (marks != self._numbers[0] or rates not in (self._numbers[1], position.begun)):
            raise ScriptError("the script has changed a learning rate, a scheduler or another registered object at the beginning of an epoch. "
                              "This runs again when the epoch is resumed in its middle: do it behind the batches")
        number, used, completed, weights = 0, position.used, self.completed, progress.versions()
        for number, batch in position.remaining(loader, self.rank, self.world_size, progress.seed):
            self.batch = number - 1
            yield batch
            if progress.has_moved():
                self._end_step(lambda: position.advance(loader, number, self.world_size))
            elif self.revoked is not None:
                raise Revoked(self.revoked)
        # A script that catches the errors of collectives may have left out the last batches.
        if position.used != number * self.world_size and self._link and self._is_broken() and self._link.await_revoke(ORDER_S):
            raise Revoked(self.revoked)
        if number and not used and self.completed == completed and weights != progress.versions():
            raise ScriptError("the weights have changed in an epoch in which step() of no registered optimizer has run, so no step was counted. "
                              "Register the optimizer whose step() the script calls (of SAM also `base_optimizer`)")

    def _begin_loop(self) -> None:
        if self.completed:  # what precedes the first step runs in that step's place again
            self._progress.check_unchanged()
        self._is_looping = True

    def _end_step(self, advance: Callable[[], None] = lambda: None) -> None:
        loss, self.loss = self.loss, None
        advance()
        self.step(self.completed + 1, loss=loss)

    def sync(self, *holders: Any, extra: Any = None) -> Any:
        """Gives all ranks the state of the source: the state of `holders`, and `completed`. At a fresh start rank 0 is the
        source. Returns the source's `extra`. `holders` are all objects that a step changes: modules, optimizers, schedulers,
        scalers, StepSeed and all others with state_dict() and load_state_dict(). All ranks call it alike, once in an attempt,
        with the bare modules and before DistributedDataParallel wraps them. Nothing is loaded before all data has arrived, so
        a loss in the middle leaves this process with its previous state. ScriptError: an object is split over the ranks, so no
        rank has the state that the others need."""
        for holder in holders:
            _refuse_shards(holder)
        if _split_part(extra) is not None:
            raise ScriptError("world.sync() got an `extra` with tensors that are split over the ranks; one rank has only its part of them")
        if self._is_synced:
            raise ScriptError("world.sync() was called twice in an attempt; register all objects in one call, since a loss between two calls "
                              "would leave objects of different steps")
        _refuse_forgotten_weights(holders)
        self._progress.register(holders)
        self._is_synced = True
        root, kinds = self.source or 0, [type(holder).__name__ for holder in holders]
        buffer = bytearray()
        if self.rank == root:
            out = io.BytesIO()
            states = [holder.state_dict() for holder in holders]
            rest = [_beside_state(holder, state) if isinstance(holder, torch.nn.Module) else None for holder, state in zip(holders, states)]
            try:
                torch.save((self._progress.completed, self._progress.position.state_dict(), kinds, states, rest, extra), out)
            except (AttributeError, TypeError, pickle.PickleError) as error:  # as CyclicLR of PyTorch 1.13
                raise ScriptError(f"world.sync() cannot pickle the state of one of {kinds}, or `extra`: {error}") from error
            buffer = bytearray(out.getbuffer())
        size = torch.tensor([len(buffer)], device=self._device)
        dist.broadcast(size, root)
        if self.rank != root:
            buffer = bytearray(self._received(size).item())
        # The data passes through host memory in pieces: a GPU that the model fills has no room for a second copy.
        for piece in torch.frombuffer(buffer, dtype=torch.uint8).split(PIECE_BYTES):
            there = piece.to(self._device)
            dist.broadcast(there, root)
            piece.copy_(self._received(there))
        if self.rank != root:
            # The data comes from a rank of this job, so it is as trusted as any object that ranks exchange.
            completed, position, theirs, states, rest, extra = torch.load(io.BytesIO(buffer), map_location="cpu", weights_only=False)
            if theirs != kinds:
                raise ScriptError(f"world.sync() got {kinds} on rank {self.rank} and {theirs} on rank {root}; all ranks must register "
                                  "the same objects in the same order")
            self._progress.completed, self._progress.is_used = None, True  # until all is loaded
            for holder, saved in zip((*holders, self._progress.position), (*states, position)):
                _load_optimizer(holder, saved) if isinstance(holder, torch.optim.Optimizer) else holder.load_state_dict(saved)
            for holder, saved in zip(holders, rest):
                if saved is not None:
                    _load_beside_state(holder, *saved)
            self._progress.completed, self._progress.is_used = completed, completed is not None
        for holder in holders:  # what an incomplete step has left
            if isinstance(holder, torch.optim.Optimizer):
                holder.zero_grad(set_to_none=True)
            elif is_scaler(holder):
                clear_scaler(holder)
        self._progress.mark_synced()
        self._progress.seed()
        self._ready()
        self._is_checked, ScriptError.latest = False, None
        return extra

    def _received(self, data: torch.Tensor) -> torch.Tensor:
        """Returns `data` in host memory. With NCCL an aborted broadcast looks complete, so a revoke is checked afterwards."""
        here = data.cpu()
        if self.revoked is not None:
            raise Revoked(self.revoked)
        return here

    def _ready(self) -> None:
        """Reports once that this rank takes part and has the state."""
        if self._link and not self._is_ready:
            self._link.send({"ready": self.attempt})
        self._is_ready = True


class _Abort:
    """Brings the main thread back from collectives of an attempt that is over. A revoke may come while the process group is
    made, so sockets that the main thread opens meanwhile are shut down too, until it is back."""

    def __init__(self, sockets: Sockets, progress: _Progress, gloo: bool) -> None:
        self.sockets, self.progress, self.gloo = sockets, progress, gloo
        self.back, self.turn = threading.Event(), threading.Lock()
        self.is_joined = False  # the main thread has made the groups of the attempt, so they are connected
        self.is_stopped = False  # the job ends before that
        self.nccl: Optional[threading.Thread] = None

    def __call__(self) -> None:
        with self.turn:
            if not self.back.is_set():
                self.progress.freeze()  # before an aborted collective can complete with garbage
                self._start_nccl()
        while not self.back.is_set():
            with self.turn:
                if not self.back.is_set():
                    self.sockets.shut()
            if not self.back.wait(0.02) and self.gloo and self.is_joined:
                with self.turn:
                    if not self.back.is_set():
                        expire_collectives()

    def _start_nccl(self) -> None:
        if not self.gloo and self.nccl is None:
            self.nccl = threading.Thread(target=abort_groups, name="ddplaunch-abort-nccl", daemon=True)
            self.nccl.start()

    def join_nccl(self) -> None:
        """Waits until NCCL's communicators are aborted. An abort that ran later would hit those of the next attempt. If one does
        not end, the agent ends this process at its deadline."""
        with self.turn:
            self._start_nccl()
        if self.nccl is not None:
            self.nccl.join()

    def end(self) -> None:
        """Ends the abort when the main thread is back. No socket is touched afterwards, as it might belong to the next
        attempt."""
        self.back.set()
        with self.turn:
            pass


def _order_of_environment() -> Dict[str, Any]:
    def number(name: str, default: int) -> int:
        return int(os.environ.get(name, default))
    return {"attempt": number("TORCHELASTIC_RESTART_COUNT", 0), "rank": dist.get_rank(), "world": dist.get_world_size(),
            "local_rank": number("LOCAL_RANK", 0), "local_world": number("LOCAL_WORLD_SIZE", 1),
            "node_rank": number("GROUP_RANK", 0), "nodes": number("GROUP_WORLD_SIZE", 1)}


def _to_environment(order: Dict[str, Any]) -> None:
    """Sets the variables that a new process would find (docs/users/environment.md), since PyTorch and other libraries read them."""
    host, _, port = order["store"].rpartition(":")
    values = {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": order["attempt"],
              "TORCHELASTIC_USE_AGENT_STORE": bool(order.get("agent_store", True))}
    for key, names in (("rank", "RANK ROLE_RANK"), ("world", "WORLD_SIZE ROLE_WORLD_SIZE"), ("local_rank", "LOCAL_RANK"),
                       ("local_world", "LOCAL_WORLD_SIZE LOCAL_SIZE"), ("node_rank", "GROUP_RANK NODE_RANK CROSS_RANK"),
                       ("nodes", "GROUP_WORLD_SIZE CROSS_SIZE")):
        values.update((name, order[key]) for name in names.split())
    os.environ.update((name, str(value)) for name, value in values.items())


def _wait_for_other_threads() -> None:
    """Waits until the other threads of this process sleep, for FORK_WAIT_S at most. Call it before a fork: in Python before 3.11.7 a
    child hangs for ever if another thread was entering the interpreter at that moment (python/cpython#112275). Gloo's threads enter it
    when they drop the last reference to a tensor, often while a loader forks its workers for the next epoch. A thread that enters
    holds no lock while it sleeps."""
    end = time.monotonic() + FORK_WAIT_S
    while time.monotonic() < end:
        states = []
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended
                if int(thread) != threading.get_native_id():
                    with open(f"/proc/self/task/{thread}/stat") as file:
                        states.append(file.read().rpartition(") ")[2][0])
        if "R" not in states:
            return
        time.sleep(0)


class _Rejoin:
    """The calls of one function, one for each attempt."""

    linked = False
    alone = False  # the world of one rank that _run_once() has made

    def __init__(self, backend: Optional[str], timeout: Optional[timedelta]) -> None:
        self.backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self.gloo = "nccl" not in self.backend
        self.device = "cpu" if "gloo" in self.backend else "cuda"
        self.timeout = {"timeout": timeout} if timeout else {}
        self.was_made = True  # the process group of the last attempt, if there was one

    def run(self, call: Callable[[World, dict], Any]) -> Any:
        if sys.version_info < (3, 11, 7):
            os.register_at_fork(before=_wait_for_other_threads)
        control = os.environ.get("DDPLAUNCH_CONTROL")
        if not control:
            return self._run_once(call)
        if _Rejoin.linked:
            raise ScriptError("a process can call a function of @elastic.run or @elastic.rejoin only once, since a new process could not know "
                              "which calls are done; put both trainings into one function")
        if dist.is_initialized():
            raise ScriptError("the script has called init_process_group(); under ddplaunch the module makes the process group of each attempt, "
                              "so remove this call (and destroy_process_group())")
        _Rejoin.linked = True
        if not self.gloo:
            # NCCL's watchdog must neither end the process when a peer is gone nor abort communicators by itself. A collective
            # that it aborts before the revoke completes with garbage, which the optimizer would use.
            os.environ.update(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", NCCL_ASYNC_ERROR_HANDLING="0")
            os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
        self.link, self.sockets = _Link(control), Sockets()
        self.group = SurvivingGroup(self.sockets) if self.backend == "gloo" and can_connect_again() else None
        watch_new_groups(self.sockets.opening)
        state: Dict[Any, Any] = {}
        progress = _Progress(asynchronous=not self.gloo)
        gc.freeze()  # a collection between attempts need not look at PyTorch's many objects, which takes longer than all else
        while True:
            abort = _Abort(self.sockets, progress, self.gloo)
            world = World(self.link, self.link.take(abort, progress.completed), progress, self.device)
            world._is_broken = lambda: self.gloo and self.sockets.broken()
            self.sockets.release()
            if world.source is None and progress.is_used:
                state.clear()  # no rank has a usable state, and this one is of no known step
                progress.forget()
            try:
                self._join(world)
                abort.is_joined = True
                result = call(world, state)
                if dist.is_initialized():
                    # A rank that is done stays until all ranks are done: another rank may be lost in its last step.
                    dist.barrier()
                if world.revoked is not None:
                    raise Revoked(world.revoked)
                abort.end()
                if self.group is not None:
                    self.group.forget_hook()
                if dist.is_initialized():
                    dist.destroy_process_group()
                self.link.greet(rejoin=False)
                gc.unfreeze()  # else PyTorch reports its objects as leaks when the process ends
                return result
            except BaseException as error:
                if abort.is_stopped or not isinstance(error, Exception) or not self._attempt_is_over(world, error):
                    abort.end()
                    # Gloo's destructor hangs (PyTorch 1.13) while data from peers is pending that no collective awaits.
                    if self.gloo:
                        self.sockets.shut()
                    if self.group is not None:
                        self.group.forget_hook()
                    gc.unfreeze()
                    if abort.is_stopped:
                        raise SystemExit(143) from None
                    if SECOND_GROUP in str(error):
                        raise ScriptError("the function has called init_process_group(); under ddplaunch it finds the process group made, so "
                                          "remove this call (and destroy_process_group())") from error
                    raise
                _forget(error)
            world._store = None  # if this process serves it, the next attempt may need its port
            progress.freeze()  # destroying a group may abort its collectives, too
            abort.join_nccl()
            self.was_made = dist.is_initialized()
            if dist.is_initialized():
                self.group.leave() if self.group is not None else dist.destroy_process_group()
            # Cycles keep a DistributedDataParallel of the attempt alive, and thereby its hooks in the parameters. They are collected
            # when the agent knows the answer, because that takes a while and the next attempt is being prepared meanwhile. But they
            # also keep a store that this process serves, whose port the next attempt may need.
            if world.rank == 0 and not world._order.get("agent_store", True):
                gc.collect()
            self.link.send({"revoked": world.attempt, "step": progress.settle()})
            gc.collect()
            abort.end()
            self.sockets.forget()

    def _run_once(self, call: Callable[[World, dict], Any]) -> Any:
        """Calls the function once: in the world of torchrun or of the script itself, else in a world of one rank."""
        self._choose_device()
        is_ours = not dist.is_initialized()
        if is_ours and "RANK" in os.environ and not _Rejoin.alone:
            dist.init_process_group(self.backend, **self.timeout)
        elif is_ours:
            _Rejoin.alone = True
            # Scripts read these under every launcher.
            os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK="0", GROUP_WORLD_SIZE="1")
            dist.init_process_group(self.backend, store=dist.HashStore(), rank=0, world_size=1, **self.timeout)
        result = call(World(None, _order_of_environment(), _Progress(False), self.device), {})
        if is_ours and dist.is_initialized():
            # Rank 0 may have the store that others still use. A group that outlives the script aborts some of the processes,
            # when Gloo's threads meet a peer that has gone.
            dist.barrier()
            dist.destroy_process_group()
        return result

    def _choose_device(self) -> None:
        """Selects the GPU of this rank, since NCCL's broadcasts and barriers use the current device."""
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        if self.device == "cuda" and local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)

    def _join(self, world: World) -> None:
        _to_environment(world._order)
        self.sockets.expect(world.world_size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._choose_device()
        if self.group is None and not reset_group_numbers(0) and not self.was_made:
            raise SystemExit("ddplaunch.elastic: this PyTorch cannot start a process group again after a failed start; the process ends")
        with self.sockets.opening():
            store, rank, size = next(dist.rendezvous("env://", **self.timeout))
            world._store = store = dist.PrefixStore(f"ddplaunch/{world.attempt}", store)
            if self.group is not None:
                self.group.join(store, world.attempt, rank, size, self.timeout)
            else:
                dist.init_process_group(self.backend, store=store, rank=rank, world_size=size, **self.timeout)
        if world.source in (None, world.rank):
            world._ready()

    def _attempt_is_over(self, world: World, error: Exception) -> bool:
        """Waits for the revoke that explains `error`. Returns False if none comes: then the error is the script's own."""
        if isinstance(error, ScriptError) or SECOND_GROUP in str(error):
            return False
        if world.revoked is not None:
            return True
        if self.link.lost:
            return False
        trouble = self.sockets.broken() or (not self.gloo and isinstance(error, RuntimeError))
        if trouble:
            self.link.send({"failed": world.attempt, "error": _plain(f"{type(error).__name__}: {error}")})
        return self.link.await_revoke(ORDER_S if trouble else GRACE_S)


def _forget(error: Optional[BaseException]) -> None:
    """Releases the objects that the frames of a traceback hold."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__, error = None, error.__cause__ or error.__context__


def rejoin(function: Optional[Callable] = None, *, backend: Optional[str] = None, timeout: Optional[timedelta] = None) -> Callable:
    """Decorates train(world, state, …), which is called once for each attempt. `state` is a dict that lasts as long as the
    process. The function finds torch.distributed initialized with `backend` (default: NCCL if there are GPUs, else Gloo) and
    `timeout`, as of init_process_group. The decorator returns the function's result and passes on its own exceptions."""
    if function is None:
        return functools.partial(rejoin, backend=backend, timeout=timeout)

    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return _Rejoin(backend, timeout).run(lambda world, state: function(world, state, *args, **named))
    return wrapper


def run(*holders: Any, epoch: int = 0, completed: int = 0, backend: Optional[str] = None, timeout: Optional[timedelta] = None) -> Callable:
    """Decorates train(world, …), which is called once for each attempt with `holders` and the data position in the state of the
    last complete step. `holders` are all objects that a step changes, as of World.sync(), made before the call. Random numbers of
    a step depend on torch.initial_seed(), the step and the rank. A process in which no rank has a usable state ends, and starts
    again as a new one: from its checkpoint, if the script loads one. `epoch` and `completed` are the epochs and steps that the loaded
    checkpoint has; a process that starts while others hold a later state takes theirs. `backend` and `timeout` as of rejoin()."""
    for holder in holders:
        _refuse_shards(holder, call="elastic.run()")
    if not any(isinstance(holder, torch.optim.Optimizer) for holder in holders):
        raise ScriptError("elastic.run() got no optimizer: nothing would show when a step begins. Call it as "
                          "@elastic.run(model, optimizer, …), with all objects that a step changes")

    def decorate(function: Callable) -> Callable:
        seed, begun = StepSeed(torch.initial_seed()), []

        def attempt(world: World, state: dict, *args: Any, **named: Any) -> Any:
            if begun and not state and world._link:
                raise SystemExit("ddplaunch.elastic: no rank has a state that can be used, so this process starts again")
            begun.append(True)
            state["begun"] = True
            if world.source is None:
                world._progress.position.epoch, world._progress.completed = int(epoch), int(completed) or None
            world.sync(*holders, seed)
            return function(world, *args, **named)
        return functools.wraps(function)(rejoin(attempt, backend=backend, timeout=timeout))
    return decorate
