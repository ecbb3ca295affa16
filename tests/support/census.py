"""Finds, holds and ends processes of this machine. A held process cannot be confused with a later one of its number."""

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def become_subreaper():
    """Makes this process a subreaper: all descendants stay below it, however they detach themselves. When its parent ends, it
    ends through sys.exit. Signals that nohup or a script's "&" ignores get their default action again, because the programs
    under test would inherit the ignored state."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_adopted(owned=()):
    """Reaps dead children, except those in `owned`, which another component reaps."""
    for pid, (parent, _, state) in all_processes().items():
        if parent == os.getpid() and state == "Z" and pid not in owned:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def alive_below(aside=(), owned=()):
    """Reaps all children but `owned`, and returns the live descendants that are not in `aside`."""
    reap_adopted(owned)
    return {pid: stat for pid, stat in below(os.getpid()).items() if stat[2] not in "ZX" and pid not in aside}


def kill_below(aside=()):
    """Kills all descendants but those in `aside`."""
    for _ in range(100):
        rest = {pid for pid, stat in below(os.getpid()).items() if stat[2] not in "ZX" and pid not in aside}
        if not rest:
            return
        for pid in rest:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        reap_adopted()
        time.sleep(0.02)


def stat_of(pid):
    """Returns (parent, name, state) or None."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return int(words[1]), text[text.index("(") + 1:text.rindex(")")], words[0]


def all_processes():
    return {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := stat_of(name))}


def below(root, table=None):
    """Returns {pid: (parent, name, state)} of all descendants of `root`, including zombies."""
    table = table or all_processes()
    children = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, reach = {}, [root]
    for pid in reach:
        for child in children.get(pid, ()):
            found[child] = table[child]
            reach.append(child)
    return found


def environment(pid, name):
    with contextlib.suppress(OSError):
        for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(name.encode() + b"="):
                return entry.partition(b"=")[2].decode(errors="replace")
    return None


def command_line(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def leads_session(pid):
    """Returns whether the process leads a session: workers do, orphans that the agent inherited do not."""
    with contextlib.suppress(OSError):
        return os.getsid(pid) == pid
    return False


def number_of(name):
    return int(getattr(signal, "SIG" + name))


class Victim:
    """A process held by its pidfd, so that a signal cannot hit a later process with the same number."""

    def __init__(self, pid, host, rank=None, kind=None):
        self.pid, self.host, self.rank, self.kind = pid, host, rank, kind
        self.pidfd = os.pidfd_open(pid)

    def hit(self, name):
        signal.pidfd_send_signal(self.pidfd, number_of(name))

    def ended(self, seconds=0.0):
        return bool(select.select([self.pidfd], [], [], seconds)[0])

    def close(self):
        os.close(self.pidfd)


def named(processes):
    return ", ".join(f"{pid} {stat[1]} {stat[2]} ({command_line(pid)[:120]}) below {stat[0]}"
                     for pid, stat in sorted(processes.items())[:12])
