#!/usr/bin/env python3
"""Runs one entry of ctest, appends its figures to a file, and checks that it leaves no process and no temporary file.

usage: measured_entry.py FILE NAME COMMAND…   exits as the command does, also by its signal; with 1 if it passed and left something
       measured_entry.py --slowest FILE       prints the ten entries that took longest

The command's TMPDIR is a directory of its own. Processes below the command get a few seconds to end, then they are killed.

A line of FILE has four columns: name, wall seconds, CPU seconds, exit code (negative: a signal). CPU time is that of all
processes below the command, also of daemons: this process adopts and reaps them while the command runs. FILE is emptied by
gather_tests.py."""
import ctypes
import itertools
import os
import resource
import shutil
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 10.0
KILL_S = 10.0
PASSED, SKIPPED = 0, 77
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SHOWN = 10


def run(command):
    """Returns (wall seconds, CPU seconds, exit code, lines about the processes that went on)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = 0

    def forward(number, _):
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:  # `pid` has just been reaped
            pass

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
    left = [] if reap_adopted(PATIENCE_S) else kill_adopted()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(ended), left


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


def reap_adopted(patience_s):
    """Returns whether all processes below this one have ended in time. The parent of each is this process, or below it."""
    limit = time.monotonic() + patience_s
    try:
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < limit:
            time.sleep(0.005)
    except ChildProcessError:
        return True
    return False


def kill_adopted():
    """Returns a line for each process below this one that goes on, and kills them."""
    found = {}
    limit = time.monotonic() + KILL_S
    while not reap_adopted(0.1) and time.monotonic() < limit:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as words:
                    if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                        found.setdefault(pid, f"process {pid}: {words.read().replace(chr(0), ' ')[:200].strip()}")
                        os.kill(int(pid), signal.SIGKILL)
            except OSError:  # it has ended
                continue
    return list(found.values())


def make_temporary_directory():
    """Returns the entry's TMPDIR. Its path is short, since a socket's has at most 107 bytes. Other users may write there, as to /tmp."""
    for number in itertools.count():
        path = f"/tmp/e{os.getpid()}" + (f"-{number}" if number else "")
        try:
            os.mkdir(path)
        except FileExistsError:  # of an entry that was killed
            continue
        os.chmod(path, 0o1777)
        return path


def remove_temporary_directory(path):
    """Returns a line for each thing in the directory."""
    if not os.listdir(path):
        os.rmdir(path)
        return []
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import leftovers
    left = leftovers.files(path)
    shutil.rmtree(path, ignore_errors=True)
    return left


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
    os.environ["TMPDIR"] = temporary = make_temporary_directory()
    wall, cpu, code, left = run(command)
    left += remove_temporary_directory(temporary)
    if left:
        print("left by this entry:", *left, sep="\n  ", flush=True)
    if left and code in (PASSED, SKIPPED):
        code = 1
    with open(file, "a") as figures:  # one write: other entries append at the same time
        figures.write(f"{name}\t{wall:.3f}\t{cpu:.3f}\t{code}\n")
    if code < 0:
        end_by(-code)
    sys.exit(code)


if __name__ == "__main__":
    main()
