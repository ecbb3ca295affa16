"""Observes a training whose ranks survive a failure: its workers, its steps, and the launcher's messages."""

import collections
import contextlib
import json
import os
import pathlib
import re
import signal

from tests.support import census, samples
from tests.support.launch import LaunchTest, Nodes, Outcome, live_processes_with, wait_until

Worker = collections.namedtuple("Worker", "pid rank node agent keeper control")
# The training is small enough for two processors, and long enough that faults hit its middle.
LIMIT, BATCH = 2000, 10


def worker_of(pid):
    """Returns the Worker of a process, or None if it has ended. Rank and node are those of its first attempt."""
    stat = census.stat_of(pid)
    rank, node = census.environment(pid, "RANK"), census.environment(pid, "GROUP_RANK")
    agent = census.stat_of(stat[0]) if stat else None
    control = census.environment(pid, "DDPLAUNCH_CONTROL")
    if not agent or agent[1] != "ddplaunchd" or None in (rank, node, control):
        return None
    return Worker(pid, int(rank), int(node), stat[0], agent[0], control)


def workers_of(job):
    """Returns the Workers of a job."""
    return [worker for pid, _ in live_processes_with(f"DDPLAUNCH_JOB_ID={job}\0") if (worker := worker_of(pid))]


def socket_folder(worker):
    return pathlib.Path(worker.control.removeprefix("unix:")).parent


class RejoinTest(LaunchTest):
    """Runs jobs on two SSH nodes."""

    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes.of_class(cls, 2)

    def setUp(self):
        super().setUp()
        self.metrics, self.samples = self.dir / "metrics", self.dir / "samples"
        self.said_file = self.dir / "stderr"
        self.samples.mkdir()
        (self.dir / "tmp").mkdir()
        self.env["TMPDIR"] = str(self.dir / "tmp")  # for a job on this machine
        self.seen = set()

    # ---- starting

    def on_nodes(self, *args, nodes=2, nproc=2):
        return self.begin("--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config, "--nnodes", nodes,
                          "--nproc-per-node", nproc, *args)

    def here(self, *args, nproc=4):
        return self.begin("--host", f"localhost:{nproc}", "--nproc-per-node", nproc, *args)

    def begin(self, *args):
        with open(self.said_file, "wb") as said:
            return self.start("--restart-backoff", "50ms", "--label", "none", "--env", "OMP_NUM_THREADS=1", *args, stderr=said)

    def training(self, *args, epochs=6):
        """Returns the command line of the worker. The loss falls slowly, so that a lost state would show."""
        return ("train", "--device", "cpu", "--on-peer-loss", "rejoin", "--data", "synthetic", "--batch-size", BATCH, "--limit", LIMIT, "--epochs",
                epochs, "--lr", "0.0005", "--momentum", 0, "--metrics-file", self.metrics, "--sample-log", self.samples, *args)

    # ---- watching

    def workers(self, name="train"):
        """Returns {pid: Worker} of the live workers."""
        found = {}
        for pid, words in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0"):
            if name in words and census.leads_session(pid) and (worker := worker_of(pid)):
                found[pid] = worker
                self.seen.add(worker)
        return found

    def wait_for_workers(self, count, name="train"):
        self.assertTrue(wait_until(lambda: len(self.workers(name)) == count), self.said())
        return self.workers(name)

    def step(self):
        return last_step(self.metrics)

    def wait_for_step(self, step, process):
        reached = wait_until(lambda: self.step() >= step or process.poll() is not None, 60)
        self.assertTrue(reached and process.poll() is None, f"step {step} was not reached:\n{self.said()}")

    def said(self):
        return self.said_file.read_text(errors="replace")

    def wait_until_said(self, pattern, seconds=30):
        found = wait_until(lambda: re.search(pattern, self.said()), seconds)
        self.assertTrue(found, f"{pattern} was not printed:\n{self.said()}")
        return found

    def wait_until_trained_on(self, attempt, process, seconds=30):
        """Waits until the attempt has made some steps. Returns (ranks, step) of the line that announces the attempt."""
        line = self.wait_until_said(rf"attempt {attempt}: (\d+) ranks? continues? from step (\d+)", seconds)
        ranks, step = map(int, line.groups())
        self.wait_for_step(step + 5, process)
        return ranks, step

    def by_rank(self, workers=None):
        return {worker.rank: worker for worker in (workers or self.workers()).values()}

    # ---- the end

    def finish(self, process, timeout=90, began=None):
        done = super().finish(process, timeout, began)
        return Outcome(done.code, done.out, self.said(), done.seconds)

    def assert_nothing_left(self):
        super().assert_nothing_left()
        self.assertEqual(os.listdir(self.dir / "tmp"), [], "files are left in TMPDIR")
        left = {str(socket_folder(worker)) for worker in self.seen if socket_folder(worker).exists()}
        self.assertEqual(left, set(), "sockets of workers are left")

    def assert_trained(self, done, ranks, epochs=6):
        """Checks a training that ended with `ranks` ranks: it used each sample once, and the loss never jumped."""
        self.assert_code(done, 0)
        self.assertRegex(done.out, rf"(?m)^weights equal on {ranks} ranks: [0-9a-f]{{16}}$")
        self.assertEqual(samples.problems(self.samples, LIMIT, epochs), [], done.err)
        begins = {int(step) for step in re.findall(r"continues? from step (\d+)", done.err)}
        self.assertEqual(problems_of_records(self.metrics, begins), [], done.err)


def last_step(path):
    """Returns the last step in the records of --metrics-file, or 0 if none is there."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 4096))
            tail = file.read().decode(errors="replace")
    except OSError:
        return 0
    steps = re.findall(r'"kind":"step".*?"step":(\d+)', tail)
    return int(steps[-1]) if steps else 0


def step_records(path):
    lines = pathlib.Path(path).read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "step"]


def problems_of_records(path, begins=()):
    """Lists the problems in the records of a training that lost no step. Step numbers must increase by one. After an attempt
    that continues from a step in `begins`, the loss must not jump, and a new rank 0 reports that step again: the lost
    rank 0 may have died before that report, or have reported one step more, which no other rank had completed."""
    reported, before = [], []
    for record in step_records(path):
        step, loss = record["step"], record["loss"]
        last = before[-1][0] if before else step - 1
        if step not in (last, last + 1) and not (step == last - 1 and step in begins):
            reported.append(f"step {step} follows step {last}")
        mean = sum(loss for _, loss in before[-20:]) / 20
        if len(before) >= 20 and step - 1 in begins and loss > 1.5 * mean + 0.1:
            reported.append(f"the loss of step {step} is {loss:.3f}, the mean of the 20 before it {mean:.3f}")
        before.append((step, loss))
    return reported


@contextlib.contextmanager
def stopped(*pids):
    """Stops a training while a test waits for another event. On a fast machine the training would end before that."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the test has killed it
            os.kill(pid, signal.SIGCONT)


def kill(*pids):
    """Kills all processes at one moment: all are stopped first, so that none runs between the first KILL and the last."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
