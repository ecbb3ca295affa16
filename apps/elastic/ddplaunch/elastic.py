"""Training functions that survive the loss of other ranks: ddplaunch's worker protocol for PyTorch.

    from ddplaunch import elastic

    @elastic.rejoin
    def train(world, state):
        if not state:                                  # the first call in this process
            state["model"] = torch.nn.Linear(8, 1)
            state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
        world.sync(state["model"], state["optimizer"])  # all ranks now hold the same state
        ddp = torch.nn.parallel.DistributedDataParallel(state["model"])
        for step in range(world.completed, 1000):
            ...
            world.step(step + 1)

When a rank dies, the process groups of all others are torn down and the function is called again, in the same process,
as soon as the ranks of the next attempt are known. Without ddplaunch (torchrun, by hand) it is called once. The document
is docs/elastic_python.md, the protocol docs/worker_protocol.md. One file, which needs nothing but PyTorch 1.13 or later.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import select
import socket
import sys
import threading
import traceback
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise ImportError(f"ddplaunch.elastic needs PyTorch in the interpreter that runs the script: {error}") from error

__all__ = ["LinkLost", "Revoked", "World", "rejoin"]

PROTOCOL = 1
LINE_BYTES = 4096
STEP_EVERY_S = 0.1   # the protocol allows ten reports a second
ORDER_S = 10.0       # so long a worker that lost a peer waits for the order that follows
FIRST_ORDER_S = 60.0
GRACE_S = 1.0        # the same, after an exception that no lost peer explains
PIECE_BYTES = 64 << 20


class Revoked(RuntimeError):
    """The attempt is over, since a rank was lost. Let it pass: rejoin() catches it and calls the function again."""


class LinkLost(RuntimeError):
    """The agent of this node does not answer at DDPLAUNCH_CONTROL, or is not understood."""


class _Link:
    """This worker's end of DDPLAUNCH_CONTROL. A thread of its own reads it, so that a revoke is seen while the main thread
    computes or hangs in a collective, and tells steps, so that world.step() costs nothing."""

    def __init__(self, control: str) -> None:
        self.changed = threading.Condition()
        self.next: Optional[Dict[str, Any]] = None    # the latest attempt's order
        self.attempt = -1                             # the one that was taken
        self.revokes: Dict[int, str] = {}             # why, by attempt
        self.stopping: Optional[str] = None
        self.lost: Optional[str] = None
        self.report: Optional[Dict[str, Any]] = None  # a step that was not told yet
        self.on_revoke: Callable[[], None] = lambda: None
        self.sending = threading.Lock()
        path = control[5:] if control.startswith("unix:") else ""
        if not path:
            raise LinkLost(f"DDPLAUNCH_CONTROL is {control!r}; this version of ddplaunch.elastic knows unix:PATH only")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError as error:
            raise LinkLost(f"nobody answers at DDPLAUNCH_CONTROL ({control}): {error.strerror}. In a container the path has "
                           "to be mounted; without the variable the script runs without ddplaunch.elastic") from error
        self.send({"hello": PROTOCOL, "pid": os.getpid(), "rejoin": True, "sharded": False})
        threading.Thread(target=self._run, name="ddplaunch-link", daemon=True).start()

    def send(self, word: Dict[str, Any]) -> None:
        try:
            with self.sending:
                self.socket.sendall(json.dumps(word, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self._lose(f"the link to the agent broke: {error.strerror}")

    def leave(self) -> None:
        """Nothing more is to be asked of this process."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def take(self, on_revoke: Callable[[], None], held: Optional[int]) -> Dict[str, Any]:
        """Waits for the next attempt's order, as long as that takes. One that was revoked before is answered here."""
        while True:
            with self.changed:
                # A process is started for an attempt, so the first order is there already. An agent of another version of
                # the protocol says nothing at all.
                in_time = self.changed.wait_for(lambda: self.next or self.lost or self.stopping,
                                                FIRST_ORDER_S if self.attempt < 0 else None)
                if self.stopping:
                    raise SystemExit(143)  # SIGTERM came along, and somebody handles it
                if not self.next:
                    why = self.lost if in_time else f"the agent ordered nothing within {FIRST_ORDER_S:g} s"
                    raise LinkLost(f"{why}; ddplaunch.elastic speaks version {PROTOCOL} of the worker protocol")
                order, self.next, self.report = self.next, None, None
                self.attempt = order["attempt"]
                if self.attempt not in self.revokes:
                    self.on_revoke = on_revoke
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
        pending = b""
        try:
            while True:
                readable = select.select([self.socket], [], [], STEP_EVERY_S)[0]
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
                    self._hear(json.loads(line))
                if len(pending) >= LINE_BYTES:
                    raise ValueError("the agent sent a line that is too long")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._lose(str(error) if type(error) is ValueError else f"the agent was not understood: {error!r}")

    def _hear(self, word: Dict[str, Any]) -> None:
        with self.changed:
            if "attempt" in word and word["attempt"] > self.attempt:
                self.next = word
            elif "revoke" in word and word["revoke"] not in self.revokes:
                self.revokes[word["revoke"]] = str(word.get("reason", "revoked"))
                if word["revoke"] == self.attempt:
                    # Not on this thread: tearing down may block, and what the agent says next is to be heard.
                    threading.Thread(target=self.on_revoke, name="ddplaunch-abort", daemon=True).start()
            elif "stop" in word:
                self.stopping = str(word["stop"])
            self.changed.notify_all()


class _Sockets:
    """The TCP sockets that process groups and their store opened. Gloo cannot be aborted, and only ranks that exchange data
    with a dead one notice; shutdown(2) on these wakes whoever waits for them."""

    def __init__(self) -> None:
        self.mine: Dict[int, None] = {}  # by inode: a descriptor's number may be somebody else's by now
        self.before: Optional[set] = None
        self.depth = 0
        self.ranks = 1                   # of the present attempt
        self.answered: set = set()       # listening sockets

    @staticmethod
    def _open(listening: bool = False) -> Iterator[Tuple[int, socket.socket]]:
        """(inode, a duplicate) of each TCP connection of this process, or of each socket that waits for some; the duplicate
        lives until the next is asked for."""
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as copy:
                        if (copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
                                and bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) == listening):
                            yield os.fstat(copy.fileno()).st_ino, copy

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Sockets that appear meanwhile are a process group's."""
        if self.depth == 0:
            self.before = {inode for listening in (False, True) for inode, _ in self._open(listening)}
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.mine.update((inode, None) for inode, _ in self._open() if inode not in self.before)
                self.before = None

    def watch_new_groups(self) -> None:
        """Groups that the script makes with new_group() belong to it, too."""
        c10d = dist.distributed_c10d
        make = getattr(c10d, "_new_process_group_helper", None)
        if make is not None:
            @functools.wraps(make)
            def watched(*args: Any, **named: Any) -> Any:
                with self.opening():
                    return make(*args, **named)
            c10d._new_process_group_helper = watched

    def shut(self) -> None:
        before = self.before
        for inode, copy in self._open():
            if inode in self.mine or (before is not None and inode not in before):
                with contextlib.suppress(OSError):
                    copy.shutdown(socket.SHUT_RDWR)
        # A group that is being made may wait for a rank that died, or was told to let go, after it had said where it is and
        # before it connected: there is nothing to shut yet. Not the listening socket: a Gloo of PyTorch 2 ends the process
        # when accept() fails.
        for inode, copy in self._open(listening=True) if before is not None else ():
            if inode not in before and inode not in self.answered and self._answer(copy):
                self.answered.add(inode)

    def _answer(self, listener: socket.socket) -> bool:
        """Connects in the place of every rank that Gloo's listener may wait for, and hangs up. A connection is told by the
        number of its pair, eight bytes in the host's order, counted from 0; one that nobody waits for yet is kept for it."""
        for pair in range(self.ranks):
            try:
                with socket.socket(listener.family, socket.SOCK_STREAM) as connection:
                    connection.settimeout(1)
                    connection.connect(listener.getsockname())
                    connection.sendall(pair.to_bytes(8, sys.byteorder))
            except OSError:
                return False
        return True

    def broken(self) -> bool:
        """One of them was closed, by its owner after an error or by the peer."""
        seen, poll = 0, select.poll()
        with contextlib.ExitStack() as copies:
            for inode, copy in self._open():
                if inode in self.mine:
                    seen += 1
                    poll.register(copies.enter_context(copy.dup()), select.POLLRDHUP)  # and POLLHUP, POLLERR
            return seen < len(self.mine) or bool(poll.poll(0))


class World:
    """One attempt, as this rank sees it."""

    def __init__(self, link: Optional[_Link], order: Dict[str, Any], held: Optional[int], device: str) -> None:
        self.attempt: int = order["attempt"]            # 0 at first
        self.rank: int = order["rank"]
        self.world_size: int = order["world"]
        self.local_rank: int = order["local_rank"]
        self.local_world_size: int = order["local_world"]
        self.node_rank: int = order["node_rank"]
        self.nodes: int = order["nodes"]
        self.source: Optional[int] = order.get("from")  # rank that holds the state; None: nobody does, a fresh start
        self._link, self._order, self._held, self._device = link, order, held, device
        self._is_ready = False

    @property
    def completed(self) -> int:
        """Steps that are complete in the state that this process holds; 0 where it holds none."""
        return self._held or 0

    @property
    def revoked(self) -> Optional[str]:
        """Why the attempt is over; None while it goes on."""
        return self._link.revoked() if self._link else None

    @property
    def stopping(self) -> Optional[str]:
        """Why the whole job ends soon, with SIGTERM on its way: time for a last checkpoint. None while it goes on."""
        return self._link.stopping if self._link else None

    def step(self, completed: int, phase: Optional[str] = None) -> None:
        """The state that this process holds now has `completed` steps; `phase` says in a few words what comes next. To be
        called after each optimizer.step(): a step that was not told here counts as not made when the attempt ends. Raises
        Revoked when it has ended."""
        self._held = int(completed)
        self._ready()
        if self._link:
            self._link.report = {"step": self._held, **({"in": phase[:64]} if phase else {})}
            if self.revoked is not None:
                raise Revoked(self.revoked)

    def sync(self, *holders: Any, extra: Any = None) -> Any:
        """All ranks get what the source holds (at a fresh start rank 0): the state of `holders`, which are modules,
        optimizers and whatever else has state_dict() and load_state_dict(), and `completed`. Returns the source's `extra`.
        Called by all ranks alike, with the bare modules and before DistributedDataParallel wraps them. Nothing is loaded
        before all has arrived: a loss in the middle of it leaves this process with what it had."""
        root = self.source or 0
        buffer = bytearray()
        if self.rank == root:
            out = io.BytesIO()
            torch.save((self._held, [holder.state_dict() for holder in holders], extra), out)
            buffer = bytearray(out.getbuffer())
        size = torch.tensor([len(buffer)], device=self._device)
        dist.broadcast(size, root)
        if self.rank != root:
            buffer = bytearray(int(size.item()))
        # Through host memory, piece by piece: a GPU that the model fills has no room for a second copy.
        for piece in torch.frombuffer(buffer, dtype=torch.uint8).split(PIECE_BYTES):
            there = piece.to(self._device)
            dist.broadcast(there, root)
            piece.copy_(there)
        if self.rank == root:
            self._ready()
            return extra
        # As trusted as any object that ranks exchange: it comes from a rank of this job.
        held, states, extra = torch.load(io.BytesIO(buffer), map_location="cpu", weights_only=False)
        for holder, saved in zip(holders, states):
            holder.load_state_dict(saved)
        self._held = held
        self._ready()
        return extra

    def _ready(self) -> None:
        """This rank takes part and has the state: told once."""
        if self._link and not self._is_ready:
            self._link.send({"ready": self.attempt})
        self._is_ready = True


class _Abort:
    """Brings the main thread back from collectives of an attempt that is over. Sockets that it opens meanwhile (a revoke may
    come while the process group is made) are shut as well, until it is back."""

    def __init__(self, sockets: _Sockets, gloo: bool) -> None:
        self.sockets, self.gloo, self.back, self.turn = sockets, gloo, threading.Event(), threading.Lock()

    def __call__(self) -> None:
        if not self.gloo and not self.back.is_set():
            threading.Thread(target=self._abort_backends, name="ddplaunch-abort-nccl", daemon=True).start()
        while not self.back.is_set():
            with self.turn:
                if not self.back.is_set():
                    self.sockets.shut()
            self.back.wait(0.02)

    def end(self) -> None:
        """The main thread is back: after this no socket, which might be of the next attempt, is touched."""
        self.back.set()
        with self.turn:
            pass

    @staticmethod
    def _abort_backends() -> None:
        c10d = dist.distributed_c10d
        if hasattr(c10d, "_abort_process_group"):  # PyTorch 2.6
            c10d._abort_process_group()
            return
        for group in list(getattr(getattr(c10d, "_world", None), "pg_map", ())):
            backend = group._get_backend(torch.device("cuda"))
            abort = getattr(backend, "abort", None) or getattr(backend, "_abort", None) or getattr(backend, "_shutdown", None)
            if abort:  # else the agent kills this process when its deadline is over
                threading.Thread(target=abort, daemon=True).start()


def _order_of_environment() -> Dict[str, Any]:
    def number(name: str, default: int) -> int:
        return int(os.environ.get(name, default))
    return {"attempt": number("TORCHELASTIC_RESTART_COUNT", 0), "rank": dist.get_rank(), "world": dist.get_world_size(),
            "local_rank": number("LOCAL_RANK", 0), "local_world": number("LOCAL_WORLD_SIZE", 1),
            "node_rank": number("GROUP_RANK", 0), "nodes": number("GROUP_WORLD_SIZE", 1)}


def _to_environment(order: Dict[str, Any]) -> None:
    """What a new process would find (docs/environment.md): PyTorch and libraries around it read these."""
    host, _, port = order["store"].rpartition(":")
    values = {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": order["attempt"],
              "TORCHELASTIC_USE_AGENT_STORE": bool(order.get("agent_store", True))}
    for key, names in (("rank", "RANK ROLE_RANK"), ("world", "WORLD_SIZE ROLE_WORLD_SIZE"), ("local_rank", "LOCAL_RANK"),
                       ("local_world", "LOCAL_WORLD_SIZE LOCAL_SIZE"), ("node_rank", "GROUP_RANK NODE_RANK CROSS_RANK"),
                       ("nodes", "GROUP_WORLD_SIZE CROSS_SIZE")):
        values.update((name, order[key]) for name in names.split())
    os.environ.update((name, str(value)) for name, value in values.items())


class _Rejoin:
    """The calls of one function, attempt after attempt."""

    linked = False

    def __init__(self, backend: Optional[str], timeout: Optional[timedelta]) -> None:
        self.backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self.gloo = "nccl" not in self.backend
        self.device = "cpu" if "gloo" in self.backend else "cuda"
        self.timeout = {"timeout": timeout} if timeout else {}

    def run(self, call: Callable[[World, dict], Any]) -> Any:
        control = os.environ.get("DDPLAUNCH_CONTROL")
        if not control:
            self._choose_device()
            if not dist.is_initialized():
                dist.init_process_group(self.backend, **self.timeout)
            return call(World(None, _order_of_environment(), None, self.device), {})
        if _Rejoin.linked:
            raise RuntimeError("a process can have one call of a function with @elastic.rejoin")
        _Rejoin.linked = True
        if not self.gloo:  # NCCL's watchdog must not end the process when a peer is gone: it is to live on
            os.environ.update(TORCH_NCCL_ASYNC_ERROR_HANDLING="2", NCCL_ASYNC_ERROR_HANDLING="2")
            os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
        self.link, self.sockets = _Link(control), _Sockets()
        self.sockets.watch_new_groups()
        state: Dict[Any, Any] = {}
        held: Optional[int] = None
        while True:
            abort = _Abort(self.sockets, self.gloo)
            world = World(self.link, self.link.take(abort, held), held, self.device)
            try:
                self._join(world)
                result = call(world, state)
                if dist.is_initialized():
                    dist.barrier()  # whoever is done is needed until all are: another may be lost in its last step
                if world.revoked is not None:
                    raise Revoked(world.revoked)
                abort.end()
                if dist.is_initialized():
                    dist.destroy_process_group()
                self.link.leave()
                return result
            except BaseException as error:
                if not isinstance(error, Exception) or not self._attempt_is_over(world, error):
                    abort.end()
                    if self.gloo:  # whose destructor hangs (PyTorch 1.13) while there is data from peers that nobody awaits
                        self.sockets.shut()
                    raise
                _forget(error)
            if dist.is_initialized():
                dist.destroy_process_group()
            held = world._held
            self.link.send({"revoked": world.attempt, "step": held})
            # Cycles keep a DistributedDataParallel of the attempt alive, and that its hooks in the parameters. Now, since
            # this takes a while, and the next attempt is being made.
            gc.collect()
            abort.end()
            self.sockets.mine.clear()
            self.sockets.answered.clear()

    def _choose_device(self) -> None:
        """Broadcasts and barriers of NCCL use the current device."""
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        if self.device == "cuda" and local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)

    def _join(self, world: World) -> None:
        _to_environment(world._order)
        self.sockets.ranks = world.world_size
        self._choose_device()
        c10d = dist.distributed_c10d
        # Groups are numbered, and an attempt that ended while its group was made has used up a number here and not elsewhere.
        numbers = getattr(c10d, "_world", None)
        if numbers is not None:
            numbers.group_count = 0
        else:
            c10d._group_count = 0
        with self.sockets.opening():
            store, rank, size = next(dist.rendezvous("env://", **self.timeout))
            store = dist.PrefixStore(f"ddplaunch/{world.attempt}", store)
            dist.init_process_group(self.backend, store=store, rank=rank, world_size=size, **self.timeout)
        if world.source in (None, world.rank):
            world._ready()

    def _attempt_is_over(self, world: World, error: Exception) -> bool:
        """Waits for the revoke that explains `error`. False: nothing does, it is the script's own."""
        if world.revoked is not None:
            return True
        if self.link.lost:
            return False
        trouble = self.sockets.broken() or (not self.gloo and isinstance(error, RuntimeError))
        if trouble:
            text = "".join(c if c.isprintable() and c.isascii() else " " for c in str(error))
            self.link.send({"failed": world.attempt, "error": f"{type(error).__name__}: {text}"[:1000]})
        return self.link.await_revoke(ORDER_S if trouble else GRACE_S)


def _forget(error: Optional[BaseException]) -> None:
    """Lets go of what the frames of a traceback hold."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__, error = None, error.__cause__ or error.__context__


def rejoin(function: Optional[Callable] = None, *, backend: Optional[str] = None, timeout: Optional[timedelta] = None) -> Callable:
    """Decorator for train(world, state, …), which is called once for each attempt with a World and with a dict that lasts as
    long as the process. It finds torch.distributed initialised (`backend`: NCCL where there are GPUs, else Gloo; `timeout` as
    of init_process_group). What it returns is returned; its own exceptions come out as they are."""
    if function is None:
        return functools.partial(rejoin, backend=backend, timeout=timeout)

    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return _Rejoin(backend, timeout).run(lambda world, state: function(world, state, *args, **named))
    return wrapper
