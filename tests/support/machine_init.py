"""Process 1 of a machine of machines.py: mounts, starts sshd, and stays until the test closes its end of the pipe."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import uuid


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


def mount_own_directories(files, users):
    test_dir = files.parent
    shared = os.open(test_dir, os.O_PATH)
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
        mount("-t", "tmpfs", "-o", "mode=755" if place == "/run" else "mode=1777", "tmpfs", place)
    test_dir.mkdir(parents=True, exist_ok=True)
    mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{shared}", test_dir)
    os.close(shared)
    mount("-t", "sysfs", "sysfs", "/sys")  # the machine's own interfaces, and no control groups
    for file in ("passwd", "shadow", "group", "hosts"):
        mount("--bind", files / file, f"/etc/{file}")
    boot_id = pathlib.Path("/run/boot_id")
    boot_id.write_text(f"{uuid.uuid4()}\n")
    mount("--bind", boot_id, "/proc/sys/kernel/random/boot_id")
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
