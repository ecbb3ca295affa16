"""Runs a launcher once and measures wall time, CPU of all processes that it started, and peak memory by program.

CPU comes from control groups of the benchmark (cgroup v2's cpu.stat, which needs no controller). Processes without a waiting
parent therefore count too, and the nodes' side (sshd and below) is separate from the launching side. If no group can be made,
the CPU is that of the reaped children, and the CPU of the nodes' side is unknown.
"""

import os
import pathlib
import signal
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field

CLOCK_TICK = os.sysconf("SC_CLK_TCK")


def group_root():
    """Returns the cgroup v2 directory of this process, or None."""
    own = [line for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    for mount in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, where, kind = mount.split()[:3]
        if kind == "cgroup2" and own:
            return pathlib.Path(where + own[0][3:])
    return None


def spread(values, digits=0):
    """Returns "median (min-max)"."""
    text = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{text[0]} ({text[1]}-{text[2]})"


class Group:
    """A control group for the processes that are started in it. `ok` is False if none can be made."""

    def __init__(self, name):
        root = group_root()
        self.path = root / f"bench-{os.getpid()}-{name}" if root else None
        self.ok = False
        try:
            self.path.mkdir()
            self.ok = True
        except (OSError, AttributeError):
            pass
        self.share = self.make_share(f"bench-{os.getpid()}-{name}")

    @staticmethod
    def make_share(name):
        """Makes a group with many CPU shares, if the cpu controller is cgroup v1's. Other work on the machine then
        disturbs less. The group also stops a peer from getting more CPU through more sessions, since autogroup gives
        shares to each."""
        path = pathlib.Path("/sys/fs/cgroup/cpu") / name
        try:
            path.mkdir()
            (path / "cpu.shares").write_text("65536")
            return path
        except OSError:
            return None

    def enter(self):
        """Moves the calling process into the group; for preexec_fn."""
        for path in (self.path if self.ok else None, self.share):
            if path:
                (path / "cgroup.procs").write_text("0")

    def cpu(self):
        if not self.ok:
            return 0.0
        return int((self.path / "cpu.stat").read_text().split()[1]) / 1e6

    def processes(self):
        found = []
        for path, _, _ in os.walk(self.path) if self.ok else []:  # the launcher may make groups below
            try:
                found += [int(pid) for pid in pathlib.Path(path, "cgroup.procs").read_text().split()]
            except OSError:
                continue
        return found

    def clear(self, keep=()):
        """Kills the processes that a run left in the group, which holds only processes of this benchmark."""
        for pid in self.processes():
            if pid not in keep:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass

    def remove(self):
        if not self.ok:
            return
        self.clear()
        for path in [path for path, _, _ in sorted(os.walk(self.path), reverse=True)] + [self.share]:
            for _ in range(100 if path else 0):
                try:
                    os.rmdir(path)
                    break
                except OSError:
                    time.sleep(0.02)


def machine_cpu():
    """Returns the CPU seconds of all processes of the machine since it started."""
    user, nice, system, _, _, irq, softirq = map(int, open("/proc/stat").readline().split()[1:8])
    return (user + nice + system + irq + softirq) / CLOCK_TICK


def run_time(pid):
    """Returns (CPU s, peak resident KiB, name) of a process and its live threads."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
    name, peak = "?", 0
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("Name:"):
            name = line.split()[1]
        elif line.startswith("VmHWM:"):
            peak = int(line.split()[1])
    return total / 1e9, peak, name


class Sampler(threading.Thread):
    """Samples every process of the groups every `interval` s: CPU and peak memory by program, from the last sample."""

    def __init__(self, groups, standing, interval=0.02):
        super().__init__(daemon=True)
        self.groups, self.standing, self.interval = groups, standing, interval
        self.done, self.seen = threading.Event(), {}

    def run(self):
        while not self.done.wait(self.interval):
            self.look()

    def look(self):
        for group in self.groups:
            for pid in set(group.processes()) - self.standing:
                try:
                    self.seen[pid] = run_time(pid)
                except (OSError, ValueError):
                    continue

    def by_program(self):
        """Returns {name: (processes, CPU s, largest peak MiB)}."""
        result = {}
        for cpu, peak, name in self.seen.values():
            count, so_far, largest = result.get(name, (0, 0.0, 0.0))
            result[name] = (count + 1, so_far + cpu, max(largest, peak / 1024))
        return result


@dataclass
class Run:
    code: object
    wall: float
    cpu: float                 # launching side and nodes' side
    nodes_cpu: float = 0.0
    foreign: float = 0.0       # CPU of other processes of the machine, as a share of one core
    programs: dict = field(default_factory=dict)


class Bench:
    """Owns the two groups. `standing` are processes that stay in the nodes' group between runs (sshd, slurmd)."""

    def __init__(self):
        self.launcher, self.nodes, self.standing = Group("launcher"), Group("nodes"), set()

    def settle(self, limit=5.0):
        """Waits until the processes of the nodes' side have ended too."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if not self.launcher.processes() and not set(self.nodes.processes()) - self.standing:
                return
            time.sleep(0.005)
        self.launcher.clear()
        self.nodes.clear(self.standing)

    def run(self, argv, env=None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, sample=False, cwd=None):
        groups = [self.launcher, self.nodes]
        before, nodes_before, machine_before = self.launcher.cpu(), self.nodes.cpu(), machine_cpu()
        children_before = os.times()
        sampler = Sampler(groups, self.standing) if sample else None
        began = time.perf_counter()
        process = subprocess.Popen(argv, env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL, stdout=stdout,
                                   stderr=stderr, cwd=cwd, start_new_session=True, preexec_fn=self.launcher.enter)
        if sampler:
            sampler.start()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = "hangs"
        wall = time.perf_counter() - began
        self.settle()
        if sampler:
            sampler.done.set()
            sampler.join()
        children = os.times()
        nodes_cpu = self.nodes.cpu() - nodes_before
        cpu = self.launcher.cpu() - before + nodes_cpu
        if not self.launcher.ok:
            cpu = (children.children_user - children_before.children_user
                   + children.children_system - children_before.children_system)
        foreign = max(0.0, machine_cpu() - machine_before - cpu) / wall
        return Run(code, wall, cpu, nodes_cpu, foreign, sampler.by_program() if sampler else {})

    def close(self):
        self.launcher.remove()
        self.nodes.remove()
