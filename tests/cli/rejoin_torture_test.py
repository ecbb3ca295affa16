#!/usr/bin/env python3
"""Tests many faults in one training over SSH nodes: it ends with the losses of an undisturbed one, and uses each sample once.

DDP_REJOIN_SEED=N repeats a run (the seed is printed), DDP_REJOIN_FAULTS=N sets the number of faults (25).
"""

import collections
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import samples
from tests.support.launch import main
from tests.support.rejoin import BATCH, LIMIT, RejoinTest, kill, step_records, stopped

FAULTS = int(os.environ.get("DDP_REJOIN_FAULTS", "15"))
SEED = os.environ.get("DDP_REJOIN_SEED") or str(random.SystemRandom().randrange(1_000_000))
STEPS_OF_EPOCH = LIMIT // (4 * BATCH)

Fault = collections.namedtuple("Fault", "kind step delay draw")


def faults(seed, count):
    """Returns the faults in order of their steps. A fault hits at its step or as soon as possible after it. Each kind has a
    fixed share."""
    chance = random.Random(seed)
    kinds = ["stop"] * (count // 8) + ["agent"] * (count // 8) + ["two"] * (count // 6) + ["again"] * (count // 6)
    kinds += ["rank"] * (count - len(kinds))
    chance.shuffle(kinds)
    step, found = 10, []
    for kind in kinds:
        step += chance.randrange(10, 40)
        found.append(Fault(kind, step, chance.random(), chance.randrange(1 << 30)))
    return found


class RejoinTorture(RejoinTest):
    nodes_wanted = 2

    def strike(self, fault, process):
        """Executes the fault, and returns a description of its victim."""
        # All ranks must hold the state first, since a fault that hits its last two holders loses it.
        self.wait_for_step(max(fault.step, self.struck_at + 3), process)
        time.sleep(0.03 * fault.delay)  # any moment of a step
        chance = random.Random(fault.draw)
        alive = sorted(self.workers().values(), key=lambda worker: (worker.rank, worker.pid))
        chance.shuffle(alive)
        if fault.kind == "stop":
            os.kill(alive[0].pid, signal.SIGSTOP)
        elif fault.kind == "agent":
            kill(alive[0].agent)
        elif fault.kind == "two":
            kill(*(worker.pid for worker in alive[:2]))
        else:
            kill(alive[0].pid)
        if fault.kind == "again":
            time.sleep(0.15 * fault.delay)  # any moment of the recovery
            kill(alive[1].pid)
        self.struck_at = self.step()
        return f"step {fault.step} {fault.kind} rank {alive[0].rank} pid {alive[0].pid}"

    def undisturbed(self, *training):
        metrics, self.metrics = self.metrics, self.dir / "undisturbed"
        lists, self.samples = self.samples, self.dir / "undisturbed-samples"
        self.samples.mkdir()
        self.assert_code(self.finish(self.on_nodes(*self.train(*training)), 300), 0)
        found = losses(self.metrics)
        self.metrics, self.samples = metrics, lists
        return found

    def train(self, *args):
        return self.training("--dtype", "float64", *args, epochs=self.epochs)

    def test_many_faults_in_one_training(self):
        print(f"seed {SEED} (DDP_REJOIN_SEED={SEED} repeats it)", flush=True)
        plan = faults(SEED, FAULTS)
        self.epochs = (plan[-1].step + 20) // STEPS_OF_EPOCH + 2
        self.struck_at = 0
        began = time.monotonic()
        process = self.on_nodes("--max-restarts", 4 * FAULTS, *self.train("--comm-timeout", "2s"))
        struck = []
        try:
            for fault in plan:
                struck.append(self.strike(fault, process))
        finally:
            print(*struck, sep="\n", flush=True)
        done = self.finish(process, 300)
        print(f"{FAULTS} faults, {done.err.count(' continue from step ')} new attempts, {time.monotonic() - began:.0f} s", flush=True)
        self.assert_trained(done, 4, self.epochs)
        self.assertEqual(losses(self.metrics), self.undisturbed())

    def test_nodes_leave_and_return(self):
        self.epochs = 44
        process = self.on_nodes("--max-restarts", 20, "--scale-up", "now", *self.train(), nodes="1:2")
        for node in (1, 0):
            attempt = 2 * (1 - node)
            self.wait_for_step(self.step() + 20, process)
            kill(next(worker for worker in self.workers().values() if worker.node == node).agent)
            self.assertEqual(self.wait_until_trained_on(attempt + 1, process)[0], 2)
            with stopped(*self.workers()):
                self.wait_until_said(rf"{re.escape(self.nodes.hosts[node])} joined")  # it is tried again after 5 s
            self.assertEqual(self.wait_until_trained_on(attempt + 2, process)[0], 4)
        self.assert_trained(self.finish(process, 300), 4, self.epochs)


def losses(path):
    """Returns {step: loss}. Equal bits give equal text. Running statistics, which are lost with a rank, do not affect it."""
    return {record["step"]: record["loss"] for record in step_records(path)}


class CheckerTest(unittest.TestCase):
    """Tests that the check of the sample lists finds errors."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, **files):
        for name, text in files.items():
            (self.folder / name.replace("_attempt_", ".attempt-").replace("_", "-")).write_text(text)
        return samples.problems(self.folder, 8, 1)

    def test_a_complete_training_has_no_problem(self):
        self.assertEqual(self.write(rank_0="0 1: 0 1\n0 2: 2 3\n", rank_1="0 1: 4 5\n0 2: 6 7\n"), [])

    def test_a_dropped_step_and_a_truncated_line_are_no_problem(self):
        self.assertEqual(self.write(rank_0="0 1: 0 1\n0 2: 2 3\n", rank_1="0 1: 4 5\n0 2: 6",
                                    rank_0_attempt_2="0 2: 2 3\n", rank_1_attempt_2="0 2: 6 7\n"), [])

    def test_fewer_ranks_and_padding_are_no_problem(self):
        self.assertEqual(self.write(rank_0="0 1: 0\n", rank_1="0 1: 1\n", rank_2="0 1: 2\n", rank_0_attempt_1="0 2: 3 4 5\n",
                                    rank_1_attempt_1="0 2: 6 7 0\n"), [])

    def test_each_fault_is_found(self):
        whole = {"rank_0": "0 1: 0 1\n0 2: 2 3\n", "rank_1": "0 1: 4 5\n0 2: 6 7\n"}
        for name, text, words in (
                ("rank_0", "0 1: 0 1\n0 2: 2 2\n", ["1 of 8 samples were not used: [3]"]),
                ("rank_0", "0 1: 0 1 4 5\n0 2: 2 3\n", ["2 uses more than samples, 1 may pad it: [4, 5]"]),
                ("rank_0", "0 1: 0 1\n", ["2 of 8", "step 2 of attempt 0 was made by ranks [1]"]),
                ("rank_1", "0 1: 4 5\n", ["2 of 8", "step 2 of attempt 0 was made by 1 of 2 ranks"]),
                ("rank_0", "0 1: 0 1\n0 2: 2 9\n", ["no samples of this training: [9]", "[3]"]),
                ("rank_0_attempt_1", "0 4: 0\n", ["1 of 4 steps are missing: [3]"]),
                ("rank_0_attempt_1", "1 3: 0\n", ["epochs beyond the last one: [1]"])):
            with self.subTest(text):
                for path in self.folder.iterdir():
                    path.unlink()
                reported = "\n".join(self.write(**{**whole, name: text}))
                for word in words:
                    self.assertIn(word, reported)

    def test_an_empty_log_is_a_problem(self):
        self.assertIn("there is no step", self.write())


if __name__ == "__main__":
    main()
