"""A container without an engine, for tests, and a client that enters it as `docker exec -i` does. The container has
namespaces for processes and mounts, a root of its own, and a first process that never reaps."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import unittest

SETUP = r"""
set -e
root=$1
mount -t tmpfs none "$root"
cd "$root"
mkdir usr proc dev tmp var root etc
mkdir var/tmp
chmod 1777 tmp var/tmp
mount --rbind /usr usr
mount --rbind /dev dev
[ ! -d dev/shm ] || mount -t tmpfs none dev/shm
mount -t proc proc proc
for name in bin sbin lib lib64; do [ ! -e /$name ] || ln -s usr/$name $name; done
echo inside > etc/where
echo ready
exec sleep 1000000
"""


class Container:
    """A running container; `client NAME COMMAND …` runs a command inside. NAME may contain blanks."""

    def __init__(self, test, name="box"):
        if os.geteuid() != 0 or not shutil.which("nsenter") or not shutil.which("unshare"):
            raise unittest.SkipTest("a container of our own needs root, unshare and nsenter")
        self.dir = test.dir / f"container of {name}"
        self.root = self.dir / "root"
        self.root.mkdir(parents=True)
        self.init = None
        # The mount namespace is private, so no mount of the container is visible outside.
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SETUP, "-", self.root],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self.stop)
        if self.process.stdout.readline() != "ready\n":
            raise unittest.SkipTest("no container of our own here: " + self.process.stderr.read().strip())
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.init = int(children[0])
        (self.dir / name).write_text(f"{self.init}\n{self.root}\n")
        self.client = test.script(
            "client", f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
            f"import container\ncontainer.client({str(self.dir)!r}, sys.argv[1], sys.argv[2:])\n")

    def stop(self):
        if self.init is not None:
            with contextlib.suppress(ProcessLookupError):  # a test may have killed it
                os.kill(self.init, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def client(directory, name, command):
    """Runs the command, with pipes between the caller's streams and the command's, as docker's daemon has. When the client is
    killed, the command sees an end of file and no signal."""
    try:
        init, root = (pathlib.Path(directory) / name).read_text().split("\n")[:2]
    except OSError:
        sys.exit(f"Error: No such container: {name}")
    inside = ["nsenter", "--target", init, "--mount", "--pid", "chroot", root, "env", "-i",
              "PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root", *command]
    process = subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    outward = [threading.Thread(target=copy, args=(process.stdout.fileno(), 1)),
               threading.Thread(target=copy, args=(process.stderr.fileno(), 2))]
    threading.Thread(target=copy, args=(0, process.stdin.fileno(), True), daemon=True).start()
    for thread in outward:
        thread.start()
    for thread in outward:
        thread.join()
    code = process.wait()
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)  # the thread that copies the input may wait forever


def copy(source, target, close=False):
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(target, data):]
    except OSError:
        pass
    if close:
        os.close(target)
