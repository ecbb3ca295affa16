"""Process 1 of a machine of machines.py: mounts, starts sshd, and stays until the test closes its end of the pipe."""

import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import uuid


MS_BIND = 4096


def mount(source, target, kind=None, flags=0, options=None):
    words = [os.fsencode(word) if word is not None else None for word in (source, target, kind)]
    if ctypes.CDLL(None, use_errno=True).mount(*words, ctypes.c_ulong(flags), os.fsencode(options) if options else None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {source}: {os.strerror(ctypes.get_errno())}", str(target))


def bind(source, target):
    mount(source, target, flags=MS_BIND)


def mount_own_directories(files, users):
    test_dir = files.parent
    shared = os.open(test_dir, os.O_PATH)
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
        mount("tmpfs", place, "tmpfs", options="mode=755" if place == "/run" else "mode=1777")
    test_dir.mkdir(parents=True, exist_ok=True)
    bind(f"/proc/self/fd/{shared}", test_dir)
    os.close(shared)
    mount("sysfs", "/sys", "sysfs")  # the machine's own interfaces, and no control groups
    for file in ("passwd", "shadow", "group", "hosts"):
        bind(files / file, f"/etc/{file}")
    boot_id = pathlib.Path("/run/boot_id")
    boot_id.write_text(f"{uuid.uuid4()}\n")
    bind(boot_id, "/proc/sys/kernel/random/boot_id")
    for user, uid in {"root": 0, **users}.items():
        pathlib.Path("/run", user).mkdir(mode=0o700)
        os.chown(f"/run/{user}", uid, uid)


def main(name, files, users, path, sshd):
    socket.sethostname(name)
    mount_own_directories(pathlib.Path(files), users)
    config = pathlib.Path(files, f"sshd_config.{name}")
    if config.exists():
        pathlib.Path("/run/sshd").mkdir(mode=0o755)
        subprocess.Popen([sshd, "-D", "-f", config, "-E", f"{files}/sshd.log.{name}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         env={"PATH": path})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    print("ready", flush=True)
    sys.stdin.read()


main(**json.loads(sys.argv[1]))
