#!/usr/bin/env python3
"""Runs one entry of ctest and appends its figures to a file.

usage: measured_entry.py FILE NAME COMMAND…   exits as the command does, also by its signal
       measured_entry.py --slowest FILE       prints the ten entries that took longest

A line of FILE has four columns: name, wall seconds, CPU seconds, exit code (negative: a signal). CPU time is that of all
processes below the command, also of daemons: this process adopts and reaps them while the command runs. FILE is emptied by
gather_tests.py."""
import ctypes
import os
import resource
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SHOWN = 10


def run(command):
    """Returns (wall seconds, CPU seconds, exit code)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = 0

    def forward(number, _):
        if pid:
            os.kill(pid, number)

    # A handler, unlike an ignored signal, is not inherited by the command. An ignored one (nohup) stays ignored.
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    began = time.monotonic()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # a signal waits until `pid` is known
    pid = os.fork()
    if pid == 0:
        execute(command, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ended = None
    while ended is None:
        child, status = os.wait()
        if child == pid:
            ended = status
    pid = 0
    wall = time.monotonic() - began
    reap_adopted()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(ended)


def execute(command, mask):
    """Replaces this process by the command. It gets the signal dispositions that this process got; posix_spawn would make it ignore two
    more of them."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"measured_entry: {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def reap_adopted():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def end_by(number):
    """Ends this process by the signal that ended the command, without another core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)


def slowest(lines):
    entries = []
    for line in lines:
        name, wall, cpu, _ = line.rstrip("\n").split("\t")
        entries.append((float(wall), float(cpu), name))
    return [f"{wall:8.1f}  {cpu:7.1f}  {name}" for wall, cpu, name in sorted(entries, reverse=True)[:SHOWN]]


def main():
    if sys.argv[1] == "--slowest":
        with open(sys.argv[2]) as file:
            print("  wall s    CPU s  entry", *slowest(file), sep="\n")
        return
    file, name, *command = sys.argv[1:]
    wall, cpu, code = run(command)
    with open(file, "a") as figures:  # one write: other entries append at the same time
        figures.write(f"{name}\t{wall:.3f}\t{cpu:.3f}\t{code}\n")
    if code < 0:
        end_by(-code)
    sys.exit(code)


if __name__ == "__main__":
    main()
