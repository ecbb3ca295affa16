#!/usr/bin/env python3
"""Proves that a test run left nothing on the machine. gather_tests.py makes the first and the last entry of a run from it.

usage: leftovers.py snapshot FILE BUILD_DIR    writes what is there before the tests
       leftovers.py compare FILE BUILD_DIR     fails if there is more now; things that end get 30 s

Found are: processes of jobs (by their mark, or a program of BUILD_DIR), ddp* and job-* in the directories for temporary files, all
in /dev/shm, abstract sockets and network namespaces whose names begin with ddp, control groups of jobs. measured_entry.py finds other
processes and temporary files. `compare` is skipped (77) while another
test run uses the machine, since nothing tells whose things these are."""
import errno
import fcntl
import json
import os
import pathlib
import re
import socket
import stat
import sys
import time

TEMPORARY = ("/tmp", "/var/tmp")
SHARED = "/dev/shm"
GROUPS = "/sys/fs/cgroup"
PATIENCE_S = 30.0
FRESH_S = 5.0
SKIP = 77


def processes(build):
    own = os.environb.get(b"DDPLAUNCH_JOB_ID")  # the tests run inside of a job
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            stat_line = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if stat_line[0] in "ZX":  # the machine's init may reap orphans late
                continue
            mark = re.search(rb"(?:^|\0)DDPLAUNCH_JOB_ID=([^\0]*)", (entry / "environ").read_bytes())
            if (mark and mark[1] != own) or os.readlink(entry / "exe").startswith(f"{build}/"):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"process {entry.name} (started {stat_line[19]}): {words[:200].strip()}")
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def is_removed_later(path):
    """Returns whether this is the directory with the workers' sockets of an agent that was killed. The next agent removes it."""
    if not re.fullmatch(r"ddplaunch-[A-Za-z0-9]{6}", path.name) or not path.is_dir():
        return False
    if not all(stat.S_ISSOCK(child.lstat().st_mode) for child in path.iterdir()):
        return False
    if time.time() - path.stat().st_mtime < FRESH_S:  # its agent may not have locked it yet
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # a live agent holds it
        return False
    finally:
        os.close(fd)
    return True


def is_run_directory(path):
    """Returns whether this is a user's directory of control sockets, to none of which a process listens. Sockets of killed jobs are
    removed when the jobs are pruned, and the directory with the last one."""
    if not re.fullmatch(r"ddplaunch-\d+", path.name) or not path.is_dir():
        return False
    return all(child == path / "run" or (child.parent.name == "run" and is_dead_socket(child)) for child in path.rglob("*"))


def is_dead_socket(path):
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == errno.ECONNREFUSED


def files(place, names=""):
    """Returns a line for each thing in the directory whose name matches `names`."""
    found = []
    for path in pathlib.Path(place).iterdir() if os.path.isdir(place) else []:
        try:
            if re.match(names, path.name) and not is_removed_later(path) and not is_run_directory(path):
                found.append(f"file {path}")
        except OSError:  # it was just removed, or is not ours
            continue
    return found


def directories(places):
    return [line for place in places for line in files(place, "ddp|job-")]


def sockets():
    lines = pathlib.Path("/proc/net/unix").read_text(errors="replace").splitlines()
    return [f"abstract socket {line.split()[-1]}" for line in lines if line.split()[-1].startswith("@ddp")]


def namespaces():
    place = pathlib.Path("/run/netns")
    return [f"network namespace {path.name}" for path in place.iterdir() if path.name.startswith("ddp")] if place.is_dir() else []


def control_groups():
    return [f"control group {folder}/{name}" for folder, names, _ in os.walk(GROUPS) for name in names if name.startswith("ddplaunch.")]


def look(build):
    """Returns a line for each thing that tests make."""
    return sorted([*processes(build), *directories(TEMPORARY), *files(SHARED), *sockets(), *namespaces(), *control_groups()])


def new_things(before, now, patience_s):
    """Returns what now() has beyond `before`, after at most `patience_s` for things that end."""
    limit = time.monotonic() + patience_s
    while True:
        left = [line for line in now() if line not in before]
        if not left or time.monotonic() > limit:
            return left
        time.sleep(0.2)


def other_runs():
    """Returns the pids of ctest processes that are not above this process."""
    above, pid = set(), os.getpid()
    parents, named = {}, []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                head, _, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
                parents[int(entry.name)] = int(tail.split()[1])
                if head.partition("(")[2] == "ctest":
                    named.append(int(entry.name))
        except OSError:
            continue
    while pid in parents:
        above.add(pid)
        pid = parents[pid]
    return [pid for pid in named if pid not in above]


def compare(file, build):
    others = other_runs()
    if others:
        print(f"skipped: another test run uses this machine (ctest, pid {others[0]})")
        return SKIP
    left = new_things(set(json.loads(file.read_text())), lambda: look(build), PATIENCE_S)
    if left and other_runs():  # it began meanwhile
        print("skipped: another test run began on this machine")
        return SKIP
    if left:
        print("left by the tests:", *left, sep="\n  ")
    return 1 if left else 0


def main():
    action, file, build = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    if action == "snapshot":
        file.write_text(json.dumps(look(build), indent=1))
        return 0
    return compare(file, build)


if __name__ == "__main__":
    sys.exit(main())
