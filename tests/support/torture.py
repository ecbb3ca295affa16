"""Sends signals to random processes of jobs over SSH, and then counts the processes that are left.

A lane is a process with four emulated nodes and an sshd of its own. It is a subreaper: all processes of a job stay below the
lane, however they detach themselves. The count therefore needs no mark that a process could remove. Lanes run side by side.

A case depends on (seed, number, play) alone: `draw` returns the same case in every lane and every run. A case whose victim ends before its
signal is played again, with other workers and another moment.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.census import (Victim, all_processes, become_subreaper, below, environment, kill_below, alive_below, leads_session,
                                  named, number_of)
from tests.support.launch import BIN, DDPLAUNCH, SKIP, Nodes

UNRULY_WORKER = BIN.parent / "tests/unruly_worker"
NODES = 4
PLAYS = 6  # at most, until the signal hits its victim
GRACE = 1.0  # --stop-grace
PATIENCE = 2.0  # --node-timeout and --master-timeout
TICK = 1.0  # silence is checked once a second
SLACK = float(os.environ.get("DDP_TORTURE_SLACK", "3"))  # added to the grace in the bound that a job must keep
SIGNAL_PATIENCE = 2.0  # of a master whose node was stopped by a signal: the master may get the same one (docs/developers/states.md)
FIRST_PATIENCE = 15.0  # of an agent that does not know the master's timeout yet
START_LIMIT = 6.0  # --start-timeout
KINDS = ("plain", "stubborn", "slow", "plain+child+session", "stubborn+session+pipes", "stubborn+daemon",
         "plain+daemon+pipes+session", "storm", "stubborn+storm", "stopped", "stubborn+stopped+child")
SIGNALS = {"worker": "KILL TERM INT STOP USR1 SEGV", "agent": "KILL TERM INT STOP", "keeper": "KILL TERM INT STOP",
           "master": "KILL TERM INT HUP STOP", "sshd": "KILL TERM STOP"}
PHASES = ("start", "running", "stopping")
CELLS = [(phase, victim, name) for phase in PHASES for victim in SIGNALS for name in SIGNALS[victim].split()
         if re.search(os.environ.get("DDP_TORTURE_CELLS", ""), f"{phase}/{victim}/{name}")]
NODE_LOST = r"node 127\.0\.0\.\d+: "
NOT_STARTED = {111: ".*", 112: ".*", 113: ".*", 114: ".*"}


@dataclasses.dataclass
class Case:
    number: int
    phase: str
    victim: str
    signal: str
    kinds: str  # kinds of unruly_worker, one for each rank
    per_node: int
    delay: float  # 0 … 1: position of the signal in its phase
    node: int  # node of the victim
    rank: int  # index of the victim among the workers of its node
    before: str  # phase "stopping": what made the job stop, a signal to the master or "worker"
    after: str  # signal to the master when the job survives the first one

    def text(self):
        stop = f" (stopping by {self.before})" if self.phase == "stopping" else ""
        return (f"case {self.number}: {self.signal} to {self.victim} while {self.phase}{stop}, "
                f"{self.per_node} per node, {self.kinds}")


def draw(seed, number, play=0):
    """Returns a case. Each round of len(CELLS) cases contains every cell once, in an order that depends on the seed."""
    order = list(CELLS)
    random.Random(f"{seed}/round {number // len(CELLS)}").shuffle(order)
    phase, victim, name = order[number % len(CELLS)]
    chance = random.Random(f"{seed}/case {number}/{play}")
    per_node = chance.choice((1, 1, 2))
    kinds = [chance.choice(KINDS) for _ in range(NODES * per_node)]
    if phase == "stopping":  # makes the stop last long enough for the signal to hit it
        for rank in range(len(kinds)) if victim == "worker" else [chance.randrange(len(kinds))]:
            kinds[rank] = chance.choice(("stubborn", "stubborn+session+pipes", "stubborn+storm"))
    return Case(number, phase, victim, name, ",".join(kinds), per_node, chance.random(), chance.randrange(NODES),
                chance.randrange(per_node), chance.choice(("INT", "TERM", "HUP", "worker", "worker")),
                chance.choice(("INT", "TERM", "HUP")))


class Job:
    """One run of ddplaunch below the lane, from its start to the proof that nothing is left."""

    def __init__(self, lane, case):
        self.lane, self.case = lane, case
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="job-", dir=lane.dir))
        os.mkfifo(self.dir / "all")
        self.reader = os.open(self.dir / "all", os.O_RDONLY | os.O_NONBLOCK)
        self.world = NODES * case.per_node
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DDPLAUNCH_", "PET_"))}
        env.update(XDG_STATE_HOME=str(self.dir), XDG_RUNTIME_DIR=str(self.dir), OMP_NUM_THREADS="1")
        argv = [DDPLAUNCH, "--job-id", f"{lane.name}-{case.number}", "--job-dir", self.dir / "files",
                "--hostfile", lane.nodes.hostfile, "--ssh-config", lane.nodes.ssh_config, "--nproc-per-node",
                case.per_node, "--stop-grace", f"{GRACE:g}s", "--node-timeout", f"{PATIENCE:g}s",
                "--master-timeout", f"{PATIENCE:g}s", "--start-timeout", f"{START_LIMIT:g}s", "--",
                UNRULY_WORKER, self.dir, case.kinds]
        with open(self.dir / "out", "wb") as out, open(self.dir / "err", "wb") as err:
            self.process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, env=env, cwd=self.dir)
        self.began = time.monotonic()
        self.master = Victim(self.process.pid, "")

    def close(self):
        os.close(self.reader)
        self.master.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def events(self, name):
        with contextlib.suppress(OSError):
            return [line.split() for line in (self.dir / "events").read_text().splitlines() if line.startswith(name)]
        return []

    def wait(self, condition, seconds, pause=0.005):
        """Polls a condition that no notification announces. Ends early when the master has ended."""
        end = time.monotonic() + seconds
        while not (value := condition()) and time.monotonic() < end and not self.master.ended():
            time.sleep(pause)
        return value

    def all_up(self):
        return len(self.events("up")) == self.world

    # ---- finding the processes of a job

    def find(self, what, any_will_do=False):
        """Returns the present victim of kind `what`, or None."""
        if what == "master":
            return self.master
        table = all_processes()
        listener = self.lane.listener
        mine = below(listener, table)
        keepers = {}
        for pid, (_, name, state) in mine.items():
            if name == "ddp-keeper" and state != "Z":
                connection = (environment(pid, "SSH_CONNECTION") or "").split(" ")
                if len(connection) == 4:  # else the process is ending
                    keepers[connection[2]] = pid
        host = self.lane.nodes.hosts[self.case.node]
        if what == "sshd" and not keepers:
            sessions = sorted(pid for pid, (parent, _, state) in mine.items() if parent == listener and state != "Z")
            return self.hold(sessions[self.case.node % len(sessions)], "") if sessions else None
        if host not in keepers and any_will_do and keepers:
            host = sorted(keepers)[0]
        keeper = keepers.get(host)
        if keeper is None:
            return None
        if what == "keeper":
            return self.hold(keeper, host)
        if what == "sshd":
            # The lowest of sshd's processes holds the connection. Newer sshd also has a monitor above it.
            session = keeper
            while session in table and not table[session][1].startswith("sshd"):
                session = table[session][0]
            return self.hold(session, host) if session in table and session != listener else None
        agents = [pid for pid, (parent, name, state) in mine.items()
                  if parent == keeper and name == "ddplaunchd" and state != "Z"]
        if not agents:
            return None
        if what == "agent":
            return self.hold(agents[0], host)
        workers = {}
        for pid, (parent, name, state) in mine.items():
            if parent == agents[0] and name == "unruly_worker" and state != "Z" and leads_session(pid):
                rank = environment(pid, "RANK")
                if rank is not None:
                    workers[int(rank)] = pid
        if not workers:
            return None
        rank = sorted(workers)[self.case.rank % len(workers)]
        kinds = self.case.kinds.split(",")
        return self.hold(workers[rank], host, rank, kinds[rank % len(kinds)])

    @staticmethod
    def hold(pid, *words):
        with contextlib.suppress(OSError):
            return Victim(pid, *words)
        return None

    # ---- the end

    def left(self, aside=()):
        """Returns the live processes of the job. `aside` are processes that the case itself keeps from ending."""
        return alive_below((self.lane.listener, *aside), (self.process.pid,))

    def fifo_is_held(self):
        """Returns whether a process lives that inherited the FIFO, at any place in the process tree."""
        return not any(flags & select.POLLHUP for _, flags in poll_once(self.reader)) and bool(self.events("up"))

    def wait_for_nothing(self, until, aside=()):
        """Waits until `until` or until no process is left; returns the processes that are left. Processes of an sshd that the
        case has stopped do not count."""
        while True:
            left = {pid: stat for pid, stat in self.left(aside).items()
                    if (self.case.victim, self.case.signal) != ("sshd", "STOP") or not stat[1].startswith("sshd")}
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.02)


def poll_once(fd):
    watch = select.poll()
    watch.register(fd, select.POLLIN)
    return watch.poll(0)


class Lane:
    def __init__(self, name):
        self.name = name
        become_subreaper()
        self.stack = contextlib.ExitStack()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-torture-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        # LeakSanitizer traces a process at its end through a child of it, which a kill at that moment may leave behind. Other tests
        # look for leaks in agents.
        self.nodes = Nodes(self, NODES, NODES_SET_ENV="ASAN_OPTIONS=detect_leaks=0")
        self.listener = int((self.nodes.dir / "sshd.pid").read_text())
        self.start_time = 0.3  # seconds from a job's start until all workers are up, a moving average

    def addCleanup(self, call, *args, **kwargs):  # the name that unittest uses, for Nodes
        self.stack.callback(call, *args, **kwargs)

    def run(self, case, before=None, after=None):
        """Runs one case and returns its result as a dict. Tests of this file pass `before(victim)` and `after(job)`, which
        are called around the signal."""
        job = Job(self, case)
        try:
            result = play(self, job, case, before, after)
        finally:
            if job.process.poll() is None:
                job.process.kill()
            job.process.wait()
            kill_below((self.listener,))
            job.close()
        return result


# ---- one case


def play(lane, job, case, before=None, after=None):
    reported = {"number": case.number, "case": case.text(), "hits": 0, "problems": []}
    codes = {}  # exit code → pattern of the last line
    if case.phase == "start":
        time.sleep(case.delay * 1.5 * lane.start_time)
    elif job.wait(job.all_up, 20):
        lane.start_time += 0.2 * (time.monotonic() - job.began - lane.start_time)
        time.sleep(case.delay * 0.1)
    else:
        reported["problems"].append(f"the job did not start: {tail(job)}")
        return reported

    if case.phase == "stopping":
        begin_stop(job, case, codes, reported)
    victim = job.wait(lambda: job.find(case.victim, case.phase == "start"), 3, 0.002)
    if before:
        before(victim)
    hit_at = time.monotonic()
    if victim:
        with contextlib.suppress(ProcessLookupError):
            victim.hit(case.signal)
            reported["hits"] += 1
            reported["victim"] = f"pid {victim.pid} {victim.host} {'' if victim.rank is None else victim.rank}".strip()
    if after:
        after(job)
    last = follow(job, case, victim, codes, hit_at, reported)
    finish(job, case, victim, codes, last, reported)
    return reported


def begin_stop(job, case, codes, reported):
    if case.before == "worker":
        first = job.find("worker")
        if first is None:
            return
        first.hit("USR1")
        reported["hits"] += 1
        codes[21 + first.rank % 40] = f"rank {first.rank} on {first.host} exited {21 + first.rank % 40}"
        if first.kind and "stopped" in first.kind:
            first.hit("CONT")
        first.close()
    else:
        job.master.hit(case.before)
        codes[128 + number_of(case.before)] = "stopped "
    time.sleep(case.delay * 1.3 * GRACE)


def follow(job, case, victim, codes, hit_at, reported):
    """Adds the allowed ends to `codes`, and ends a job that survives the signal. Returns the time from which the bound of the
    end counts; it includes a silence that the job has to tolerate."""
    stopping = bool(codes)
    if case.victim == "master":
        return follow_master(job, case, codes, hit_at, reported)
    if case.victim == "worker" and victim:
        ended = victim.ended(0.2 * case.delay if expect_survivor(case, victim) else 1.5)
        if ended and not stopping:
            expect_worker(case, victim, codes)
        if ended or stopping:
            return hit_at
    elif victim and (case.victim, case.signal) != ("keeper", "STOP"):
        return follow_node(job, case, victim, codes, hit_at, stopping, reported)
    elif stopping:
        return hit_at
    return end_as_user(job, case, codes)


def expect_survivor(case, victim):
    """Returns whether the worker ignores the signal, is stopped by it, or is stopped and receives it only when it continues."""
    return case.signal == "STOP" or (case.signal in ("TERM", "INT") and "stubborn" in victim.kind) or (
        case.signal in ("TERM", "INT", "USR1", "SEGV") and "stopped" in victim.kind)


def follow_node(job, case, victim, codes, hit_at, stopping, reported):
    """Handles a signal to the agent, the keeper or the sshd session of a node."""
    # A node whose machine answers has the time that TCP may need after an outage.
    borne = 2 * PATIENCE + 2 + TICK if case.signal == "STOP" else 0.0
    if case.signal in ("TERM", "INT") and case.victim != "sshd":
        borne = SIGNAL_PATIENCE  # the grace of the other nodes' workers begins afterwards
    if case.phase == "start":
        codes.update(NOT_STARTED)
        if case.signal == "STOP":  # without a job both the agent and the start have longer timeouts
            borne = max(FIRST_PATIENCE, START_LIMIT) + TICK
    elif not stopping or (case.before == "worker" and case.delay < 0.2):  # else the worker's report has arrived by this time
        codes[113] = f"node {re.escape(victim.host)}: "
    if stopping or job.master.ended(borne + GRACE + SLACK + 1):
        return hit_at + borne
    if case.phase != "start":
        reported["problems"].append(f"the job went on for {time.monotonic() - hit_at:.1f} s after it")
    return end_as_user(job, case, codes)  # the launcher retries an interrupted login


def end_as_user(job, case, codes):
    now = time.monotonic()
    if not job.master.ended():
        with contextlib.suppress(ProcessLookupError):
            job.master.hit(case.after)
        codes[128 + number_of(case.after)] = "stopped "
        if case.phase == "start":  # it may not have installed its handler yet
            codes[-number_of(case.after)] = None
    return now


def expect_worker(case, victim, codes):
    who = f"rank {victim.rank} on {victim.host} "
    number = number_of(case.signal)
    own = {"USR1": 21 + victim.rank % 40}.get(case.signal)
    if case.signal == "TERM" and "slow" in victim.kind:
        own = 7
    if own is not None:
        codes[own] = f"{who}exited {own}"
    if own is None or case.phase == "start":  # during the start the worker may not have its handler yet
        codes[128 + number] = f"{who}killed by SIG{case.signal}"


def follow_master(job, case, codes, hit_at, reported):
    if case.signal == "KILL":  # the process may have ended just before
        codes[-number_of("KILL")] = None
        return hit_at
    if case.signal != "STOP":
        if not codes:
            codes[128 + number_of(case.signal)] = "stopped "
            if case.phase == "start":
                codes[-number_of(case.signal)] = None
        return hit_at
    # A stopped master sends no message. The agents tolerate that for a while, and then end the job by themselves.
    until = hit_at + PATIENCE + TICK + GRACE + SLACK
    if case.phase == "start":
        until += FIRST_PATIENCE - PATIENCE
    left = job.wait_for_nothing(until, aside=(job.process.pid,))
    left = {pid: stat for pid, stat in left.items() if not stat[1].startswith("sshd")}
    if left:
        reported["problems"].append(f"left while the master was stopped: {named(left)}")
    if not codes:
        codes.update(NOT_STARTED if case.phase == "start" else {113: NODE_LOST})
    else:
        codes[113] = NODE_LOST
    if case.delay < 0.3:
        codes.clear()
        codes[-number_of("KILL")] = None
        job.master.hit("KILL")
    else:
        job.master.hit("CONT")
        if case.phase == "start" and not job.master.ended(2.0):  # no agent existed before the stop, so no agent can leave
            return end_as_user(job, case, codes)
    return time.monotonic()


def finish(job, case, victim, codes, last, reported):
    bound = GRACE + SLACK
    aside = ()
    if victim and case.victim == "sshd" and case.signal == "STOP":
        aside = (victim.pid,)
    until = last + bound
    job.master.ended(max(0.0, until - time.monotonic()))
    left = job.wait_for_nothing(until, aside)
    reported["seconds"] = round(time.monotonic() - last, 3)
    if left:
        words = named(left)
        later = job.wait_for_nothing(until + 4, aside)
        reported["seconds"] = round(time.monotonic() - last, 3)
        reported["problems"].append(f"left {bound:g} s after the last event: {words}" +
                                (f"; still there {reported['seconds']:.1f} s after it: {named(later)}" if later else
                                 f"; all gone {reported['seconds']:.1f} s after it"))
    elif job.fifo_is_held() and not aside:
        reported["problems"].append("something outside the tree holds the job's FIFO")
    if victim and aside:
        with contextlib.suppress(ProcessLookupError):
            victim.hit("CONT")
        if rest := job.wait_for_nothing(time.monotonic() + 3):
            reported["problems"].append(f"left after the sshd session went on: {named(rest)}")
    check_end(job, codes, reported)


def check_end(job, codes, reported):
    code = job.process.poll()
    reported["code"] = code
    words = (job.dir / "err").read_text(errors="replace").splitlines()
    reported["last"] = words[-1] if words else ""
    if code is None:
        reported["problems"].append(f"ddplaunch has not ended: {tail(job)}")
    elif code not in codes:
        reported["problems"].append(f"exit code {code}, not one of {sorted(codes)}: {tail(job)}")
    elif codes[code] is not None and code >= 0:
        wanted = f"ddplaunch: exit {code}: {codes[code]}"
        if not re.match(wanted, reported["last"]):
            reported["problems"].append(f"last line is {reported['last']!r}, not {wanted!r}: {tail(job)}")


def tail(job):
    with contextlib.suppress(OSError):
        return " / ".join((job.dir / "err").read_text(errors="replace").splitlines()[-12:])
    return ""


def control_groups_of(lane):
    return [os.path.join(path, name) for path, names, _ in os.walk("/sys/fs/cgroup") for name in names
            if f"{lane}-" in name]


def main():
    """Runs the cases FIRST, FIRST + STEP, … below END. Arguments: NAME SEED FIRST END STEP. Prints one JSON line per case."""
    name, seed, first, end, step = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    lane = Lane(name)
    with lane.stack:
        for number in range(first, end, step):
            for again in range(PLAYS):
                result = lane.run(draw(seed, number, again))
                print(json.dumps(result), flush=True)
                if "victim" in result or result["problems"]:
                    break
        groups = control_groups_of(name)
        problems = [f"control groups are left: {' '.join(groups)}"] if groups else []
        print(json.dumps({"case": f"all of lane {name}", "hits": 0, "problems": problems}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # includes unittest's SkipTest; the parent prints the error
        print(json.dumps({"skip" if type(error).__name__ == "SkipTest" else "error": str(error)}), flush=True)
        if type(error).__name__ != "SkipTest":
            raise
        raise SystemExit(SKIP)
