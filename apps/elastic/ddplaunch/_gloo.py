"""Gloo for ddplaunch.elastic: its connections, which end when an attempt is over, and a process group that outlasts attempts."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch
import torch.distributed as dist

from ._torch import connect_again, group_handle, reset_group_numbers, set_group_size, subgroups

UNUSED_TAG = 0x64647001  # of no message of a script


class Sockets:
    """The TCP connections of process groups and of their store. Gloo cannot be aborted, and only ranks that exchange data
    with a dead rank notice its death. shutdown(2) on these connections wakes the threads that wait for them. A connection
    belongs to the attempt when it leads to the store or when Gloo's event loop waits for it. An event loop counts as Gloo's
    when it registers pointers and appears while a group is made, even if another thread made it. Other connections of other
    threads are not touched."""

    def __init__(self) -> None:
        self.own: Dict[int, None] = {}      # by inode, since a descriptor's number may be reused
        self.before: Optional[set] = None   # event loops that are older than the group being made
        self.kept: set = set()              # event loops of a group that outlasts the attempt
        self.pairs = 0                      # pairs that a kept group has made before this attempt, at most
        self.depth = 0
        self.ranks = 1                      # ranks of the present attempt
        self.stores: set = set()            # addresses of the attempt's store
        self.shut_down: Dict[int, socket.socket] = {}  # Gloo's connections that shut() has ended, open until release()
        self.answered: set = set()          # listening sockets that _answer() has served

    def expect(self, ranks: int, host: str, port: int) -> None:
        """Sets the number of ranks and the store of the next attempt."""
        self.ranks = ranks
        with contextlib.suppress(OSError):
            self.stores = {(info[4][0], port) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}

    def keep(self) -> None:
        """The event loops of the group that has just been made stay when the attempt is over."""
        self.kept.update(loop for loop in self._loops() if loop not in (self.before or ()))

    def count_pairs(self) -> None:
        """A kept group has tried to connect all ranks, and numbers its pairs on."""
        self.pairs += self.ranks

    def forget_kept(self) -> None:
        self.kept.clear()
        self.pairs = 0

    def forget(self) -> None:
        """Forgets the sockets of the attempt, which is over."""
        self.own.clear()
        self.answered.clear()
        self.stores = set()

    def release(self) -> None:
        """Closes the connections that shut() has ended. All ranks have left their attempt."""
        for connection in self.shut_down.values():
            connection.close()
        self.shut_down.clear()

    @staticmethod
    def _open(listening: bool = False) -> Iterator[Tuple[int, socket.socket]]:
        """Yields (inode, duplicate) of each TCP connection of this process, or of each listening socket. A duplicate is open
        until the next one is requested."""
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as copy:
                        if (copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
                                and bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) == listening):
                            yield os.fstat(copy.fileno()).st_ino, copy

    @staticmethod
    def _loops() -> Dict[str, set]:
        """Returns the inodes that each event loop (epoll) of this process waits for, by the loop's descriptor. Gloo registers
        pointers. Loops that register descriptors, such as Python's and libuv's, have an empty set."""
        found = {}
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                    with open(f"/proc/self/fdinfo/{name}") as info:
                        waits = re.findall(r"^tfd: *(\d+) .*data: *(\w+) .*ino:(\w+)", info.read(), re.M)
                    of_pointers = all(int(data, 16) & 0xffffffff != int(fd) for fd, data, _ in waits)
                    found[name] = {int(inode, 16) for _, _, inode in waits} if of_pointers else set()
        return found

    def _of_new_loops(self) -> set:
        before = self.before  # the main thread may end opening() meanwhile
        if before is None:
            return set()
        return set().union(*(inodes for loop, inodes in self._loops().items() if loop not in before))

    def _leads_to_store(self, connection: socket.socket) -> bool:
        with contextlib.suppress(OSError):
            host, port = connection.getpeername()[:2]
            return (host.rpartition("::ffff:")[2], port) in self.stores
        return False

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """A process group is made in this context: event loops that appear are Gloo's."""
        if self.depth == 0:
            self.before = set(self._loops()) - self.kept
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                new = self._of_new_loops()
                self.own.update((inode, None) for inode, copy in self._open() if inode in new or self._leads_to_store(copy))
                self.before = None

    def shut(self) -> None:
        """Ends Gloo's connections so that no write fails, here or in a rank that has not been notified yet. Gloo queues a
        message whose write fails. When it then closes the connection, it forgets to wake the thread that waits for this
        message. So only the incoming stream ends, and a copy keeps the connection open after Gloo has closed it."""
        new = self._of_new_loops()
        for inode, copy in self._open():
            is_store = self._leads_to_store(copy)
            if is_store or inode in self.own or inode in new:
                with contextlib.suppress(OSError):
                    if not is_store and inode not in self.shut_down:
                        self.shut_down[inode] = copy.dup()
                    copy.shutdown(socket.SHUT_RDWR if is_store else socket.SHUT_RD)
        # A group that is being made may wait for a rank that published its address and then died or left the attempt before
        # it connected. No connection to shut down exists yet. The listening socket stays open: Gloo of PyTorch 2 ends the
        # process when accept() fails.
        for inode, copy in self._open(listening=True) if new else ():
            if inode in new and inode not in self.answered and self._answer(copy):
                self.answered.add(inode)

    def _answer(self, listener: socket.socket) -> bool:
        """Connects to Gloo's listener in place of every rank that it may wait for, and closes the connections. A peer
        identifies its connection by the number of its pair: eight bytes in host order, counted from 0. Gloo keeps a
        connection whose pair waits only later."""
        for pair in range(self.pairs + self.ranks):
            try:
                with socket.socket(listener.family, socket.SOCK_STREAM) as connection:
                    connection.settimeout(1)
                    connection.connect(listener.getsockname())
                    connection.sendall(pair.to_bytes(8, sys.byteorder))
            except OSError:
                return False
        return True

    def broken(self) -> bool:
        """Returns whether a connection was closed, by its owner after an error or by the peer."""
        seen, poll = 0, select.poll()
        with contextlib.ExitStack() as copies:
            for inode, copy in self._open():
                if inode in self.own:
                    seen += 1
                    poll.register(copies.enter_context(copy.dup()), select.POLLRDHUP)  # poll also reports POLLHUP and POLLERR
            return seen < len(self.own) or bool(poll.poll(0))


def expire_collectives() -> None:
    """Ends the collectives of all connected groups with an error. Shut connections do not end all: when a collective has failed, Gloo
    looks no more at a connection whose next message was for it, and the collective that follows waits there. A receive that times out
    gives up all connections of its group."""
    for group in [dist.group.WORLD, *(subgroups() or ())]:
        for peer in range(group.size() if group is not None else 0):
            if peer != group.rank():
                with contextlib.suppress(RuntimeError):  # it timed out, or Gloo has given up this connection already
                    group.recv([torch.zeros(1)], peer, UNUSED_TAG).wait(timedelta(milliseconds=1))


class _AttemptStore(dist.Store):
    """The store of the present attempt. A group that outlasts attempts asks its store again in each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: Any = None

    def has_extended_api(self) -> bool:
        return False


def _pass_on(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self.inner, name)(*arguments)


# In the class, where PyTorch looks for them: __getattr__ would not be asked.
for _name in ("set", "get", "add", "check", "compare_set", "delete_key", "wait"):
    setattr(_AttemptStore, _name, _pass_on(_name))


class SurvivingGroup:
    """The default process group, if it outlasts attempts: PyTorch 2.15 can connect an existing group with other processes. The ranks
    exchange its handles through the attempt's store."""

    LEAVE_S = 3.0  # the agent ends the process 5 s after a revoke

    def __init__(self, sockets: Sockets) -> None:
        self.sockets, self.store = sockets, _AttemptStore()
        self.lock, self.pending = threading.Lock(), []
        self.is_connected = False

    def join(self, store: Any, attempt: int, rank: int, ranks: int, timeout: Dict[str, timedelta]) -> None:
        """Connects the group with those of the other ranks, and makes it first if this process has none."""
        self.store.inner, self.is_connected = store, False
        if not dist.is_initialized():
            reset_group_numbers(0)
            dist.init_process_group("gloo", store=self.store, rank=rank, world_size=ranks, enable_reconfigure=True, **timeout)
            dist.group.WORLD.register_post_hook(0, self._began)
            self.sockets.keep()
        store.set(f"handle/{rank}", group_handle())
        handles = [store.get(f"handle/{other}").decode() for other in range(ranks)]
        try:
            connect_again(attempt + 1, handles)
        finally:
            self.sockets.count_pairs()
        set_group_size(ranks)
        reset_group_numbers(1)  # the default group has number 0
        self.is_connected = True

    def _began(self, collective: Any) -> None:
        with self.lock:
            self.pending = [work for work in self.pending if not work.is_completed()]
            if collective.work is not None:
                self.pending.append(collective.work)

    def leave(self) -> None:
        """Ends the attempt's part of the group. The group is destroyed if it was not connected, if its listener was answered (Gloo keeps
        such a connection for a later pair, which would be closed), or if one of its collectives does not end: a collective that is
        late could write into memory that the next attempt uses."""
        self.is_connected = self.is_connected and not self.sockets.answered
        for group in subgroups():
            dist.destroy_process_group(group)
        end = time.monotonic() + self.LEAVE_S
        while self.is_connected and not all(work.is_completed() for work in self.pending):
            self.is_connected = time.monotonic() < end
            time.sleep(0.001)
        self.pending, self.store.inner = [], None  # a store that this process serves (--store worker) gives back its port
        if not self.is_connected:
            self.forget_hook()
            dist.destroy_process_group()
            self.sockets.forget_kept()

    def forget_hook(self) -> None:
        """Call before the process ends: a group that outlives Python's objects would crash with its hook."""
        if dist.is_initialized():
            dist.group.WORLD.unregister_post_hook(0)
        self.pending = []
