"""Machines for tests: namespaces for network, processes, mounts and host name, joined by a switch, with an sshd and two ordinary users.

Process 1 of a machine (machine_init.py) ends when the test's end of a pipe is closed, also by the death of the test. The kernel then kills the
machine's processes, and mounts, interfaces and namespaces go with them. Nothing is changed outside the machines."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from tests.support.launch import BIN, SKIP, SOURCE, LaunchTest, is_running, live_processes_with, main, wait_until

USERS = {"ann": 61234, "mallory": 61235}  # ann runs the jobs
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SSHD = shutil.which("sshd", path=PATH)


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Machine:
    """A machine named `name`. The test's directory is the same on all machines, like a shared file system. The directories
    /tmp, /var/tmp, /dev/shm and /run, which contains the home directories, are the machine's own."""

    def __init__(self, name, address, files):
        self.name, self.address, self.files, self.spawned = name, address, files, []
        self.process = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child",
             sys.executable, "-I", "-S", str(SOURCE / "tests/support/machine_init.py"), json.dumps({"name": name, "files": str(files), "users": USERS,
                                                                                           "path": PATH, "sshd": SSHD})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_its_start(self):
        if self.process.stdout.readline() != "ready\n":
            reason = self.process.communicate()[1].strip()
            if re.search("not permitted|denied|Invalid argument|No space", reason):  # a sandbox without namespaces, or out of them
                raise unittest.SkipTest(f"no machine of namespaces can be made here: {reason.splitlines()[-1]}")
            raise RuntimeError(f"machine {self.name}: {reason}")
        [self.init] = children_of(self.process.pid)
        self.namespace = os.readlink(f"/proc/{self.init}/ns/pid")

    def path(self, inside):
        """Returns the path by which the test reaches a file of the machine."""
        return pathlib.Path(f"/proc/{self.init}/root{inside}")

    def words(self, *command, user="ann"):
        """Returns the command line that runs a command in the machine, in the test's directory."""
        uid = USERS.get(user, 0)
        return ["nsenter", "-t", str(self.init), "-n", "-p", "-m", "-u", "-i", "-S", str(uid), "-G", str(uid), "--",
                "env", "-C", str(self.files.parent), f"HOME=/run/{user}", f"USER={user}", f"LOGNAME={user}", f"PATH={PATH}", *map(str, command)]

    def run(self, *command, user="ann", **options):
        options.setdefault("check", True)
        return subprocess.run(self.words(*command, user=user), stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)

    def spawn(self, log, *command, user="ann"):
        """Starts a command that runs until it or the machine ends."""
        with open(log, "wb") as output:
            self.spawned.append(subprocess.Popen(self.words(*command, user=user), stdin=subprocess.DEVNULL, stdout=output, stderr=output))

    def processes(self):
        """Returns {pid: command line} of the machine's live processes, except its process 1. The pids are those of the test's namespace."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and int(entry.name) != self.init and os.readlink(entry / "ns/pid") == self.namespace and is_running(entry.name):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
        return found

    def kill(self, text, number=signal.SIGKILL):
        """Signals all processes of the machine whose command line contains `text`, as pkill -f does there. Returns their pids."""
        found = [pid for pid, words in self.processes().items() if text in words]
        for pid in found:
            os.kill(pid, number)
        return found

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.stderr.close()
        for process in (self.process, *self.spawned):
            process.wait()


class Machines:
    """The master's machine n0 and `count` nodes n1, n2, … with an sshd. Their addresses are 10.76.0.100, 10.76.0.1, ….
    Their files are in a directory of the test, which becomes the ordinary user's. `programs` are copies of the built programs."""

    def __init__(self, test, count):
        needed = [name for name in ("ip", "unshare", "nsenter", "ssh-keygen") if not shutil.which(name)] + ["sshd"] * (not SSHD)
        if os.geteuid() != 0 or needed:
            raise unittest.SkipTest("machines need " + (f"programs that are missing here: {', '.join(needed)}" if needed else "root"))
        test.dir.chmod(0o755)
        for path in (test.dir, *test.dir.rglob("*")):
            os.chown(path, USERS["ann"], USERS["ann"])
        self.dir = test.dir / "machines"
        self.programs = self.dir / "bin"
        self.programs.mkdir(parents=True)
        for name in ("ddplaunch", "ddplaunchd", "ddplaunch-listen", "train"):
            if (BIN / name).exists():
                shutil.copy(BIN / name, self.programs / name)
                (self.programs / name).chmod(0o755)
        self.names = [f"n{i + 1}" for i in range(count)]
        self.switch = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        test.addCleanup(self.switch.wait)
        test.addCleanup(self.switch.stdin.close)
        self.write_files()
        self.machines = {}
        for name in ("n0", *self.names):
            self.machines[name] = Machine(name, self.address(name), self.dir)
            test.addCleanup(self.machines[name].end)
        for machine in self.machines.values():
            machine.wait_for_its_start()
        self.connect()
        test.assertTrue(wait_until(lambda: all(map(self.is_up, self.machines.values()))), "the machines do not start")

    def __getitem__(self, name):
        return self.machines[name]

    def address(self, name):
        return "10.76.0.100" if name == "n0" else f"10.76.0.{name[1:]}"

    def ethernet(self, name):
        return f"02:00:0a:4c:00:{int(name[1:]):02x}"

    def write_files(self):
        """Writes the files of the users, of sshd and of ssh."""
        for name, append in (("passwd", "{0}:x:{1}:{1}::/run/{0}:/bin/sh\n"), ("shadow", "{0}:*:19000:0:99999:7:::\n"), ("group", "{0}:x:{1}:\n")):
            text = pathlib.Path("/etc", name).read_text() + "".join(append.format(*user) for user in USERS.items())
            (self.dir / name).write_text(text)
        (self.dir / "shadow").chmod(0o600)
        (self.dir / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{self.address(name)} {name}\n" for name in ("n0", *self.names)))
        known = ""
        for key in ("id", *(f"host_key.{name}" for name in self.names)):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", self.dir / key], check=True)
            if key != "id":
                name = key.partition(".")[2]
                known += f"{name},{self.address(name)} {(self.dir / f'{key}.pub').read_text()}"
        self.known_hosts = self.dir / "known_hosts"
        self.known_hosts.write_text(known)
        os.chown(self.dir / "id", USERS["ann"], USERS["ann"])
        self.ssh_config = self.dir / "ssh_config"
        self.ssh_config.write_text(f"Host *\n  IdentityFile {self.dir}/id\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
                                   "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n  LogLevel ERROR\n")
        for name in self.names:
            (self.dir / f"sshd_config.{name}").write_text(
                f"HostKey {self.dir}/host_key.{name}\nPidFile none\nAuthorizedKeysFile {self.dir}/id.pub\nStrictModes no\nUsePAM no\nUseDNS no\n"
                "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\nPrintLastLog no\nSetEnv SHLVL=1\nLogLevel VERBOSE\n")

    def ip(self, where, *lines):
        """Runs ip(8) in the network of a machine, or of the switch, once for several lines."""
        pid = self.switch.pid if where == "switch" else self.machines[where].init
        subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"], input="".join(line + "\n" for line in lines), check=True,
                       text=True, stdout=subprocess.DEVNULL)

    def connect(self):
        lines = ["link add lan type bridge", "link set lan up"]
        for name, machine in self.machines.items():
            lines += [f"link add {name} type veth peer name eth0 address {self.ethernet(name)} netns {machine.init}", f"link set {name} master lan up"]
        own = os.readlink("/proc/self/ns/net")  # `unshare` runs before it has a network of its own
        assert wait_until(lambda: os.readlink(f"/proc/{self.switch.pid}/ns/net") != own)
        self.ip("switch", *lines)
        for name in self.machines:
            # With known neighbors packets to a machine that is cut off are lost, as behind a router, and never wait for its answer to ARP.
            self.ip(name, "link set lo up", "link set eth0 addrgenmode none", f"addr add {self.address(name)}/24 dev eth0", "link set eth0 up",
                    *(f"neigh add {self.address(other)} lladdr {self.ethernet(other)} dev eth0 nud permanent" for other in self.machines if other != name))

    def is_up(self, machine):
        log = self.dir / f"sshd.log.{machine.name}"
        return machine.path("/sys/class/net/eth0/operstate").read_text() == "up\n" and \
            (machine.name == "n0" or log.exists() and "Server listening" in log.read_text())

    def cut(self, name):
        """Pulls the plug of a machine: nothing gets through in either direction, and no connection ends. The machine knows it."""
        self.ip("switch", f"link set {name} down")

    def cut_unnoticed(self, name):
        """Does the same elsewhere on the way: the machine's own link stays up."""
        self.ip("switch", f"link set {name} nomaster")

    def rejoin(self, name):
        self.ip("switch", f"link set {name} master lan up")


class MachinesTest(LaunchTest):
    """A test whose job runs on machines: an ordinary user's ddplaunch on n0, one slot on each node."""

    count = 2
    lease_s = 0  # so long may processes of the job be left at its end, on a node that is cut off

    def setUp(self):
        super().setUp()
        self.env.pop("TMPDIR", None)  # the machines have directories of their own
        self.machines = Machines(self, self.count)

    def hosts(self):
        return ",".join(f"{name}:1" for name in self.machines.names)

    def transport(self):
        """Returns the options by which the master reaches the nodes."""
        return "--ssh-config", self.machines.ssh_config

    def command(self, *args):
        words = super().command("--host", self.hosts(), *self.transport(), "--label", "", "--restart-backoff", "50ms", *args)
        return self.machines["n0"].words(self.machines.programs / "ddplaunch", *words[1:])

    def assert_nothing_left(self):
        wait_until(lambda: not live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0"), self.lease_s)
        super().assert_nothing_left()

    def directory(self, name):
        """Makes a directory of the job's user, the same on all machines."""
        path = self.dir / name
        path.mkdir()
        os.chown(path, USERS["ann"], USERS["ann"])
        return path

    def master(self, process):
        """Returns the pid of the ddplaunch below a started command, such as nsenter."""
        def found(pid):
            if pathlib.Path(f"/proc/{pid}/comm").read_text() == "ddplaunch\n":
                return pid
            return next(filter(None, map(found, children_of(pid))), None)
        pid = wait_until(lambda: found(process.pid))
        self.assertTrue(pid, "ddplaunch has not started, or has ended")
        return pid

    def interrupt(self, process):
        os.kill(self.master(process), signal.SIGINT)

    def resume(self, process):
        """Continues a stopped ddplaunch, and then nsenter, which stops with its child: continued first, it would continue ddplaunch, which may end at once."""
        os.kill(self.master(process), signal.SIGCONT)
        process.send_signal(signal.SIGCONT)


def main_side_by_side(most):
    """Runs each case of the program in a process of its own, at most `most` at once. With arguments it is unittest's main."""
    if len(sys.argv) > 1:
        main()
        return
    module = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    cases = [case.id().removeprefix("__main__.") for suite in module for case in suite]
    with ThreadPoolExecutor(most) as pool:
        ended = list(pool.map(lambda case: subprocess.run([sys.executable, sys.argv[0], case], stdin=subprocess.DEVNULL, text=True, check=False,
                                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT), cases))
    print("".join(one.stdout for one in ended))
    codes = {one.returncode for one in ended}
    raise SystemExit(SKIP if codes == {SKIP} else int(not codes <= {0, SKIP}))
