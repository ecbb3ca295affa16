#!/usr/bin/env python3
"""Tests trainings whose ranks are killed (SIGKILL) two or three times at random moments and resume from their checkpoints.
Each ends with the weights hash of an undisturbed training.

DDP_TRAIN_RUNS=N sets the number of trainings (3; tests/bench/train_torture runs 12). DDP_TRAIN_SEED=N repeats a run (the seed
is printed).
"""

import os
import pathlib
import random
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, live_processes_with, main, wait_until

RUNS = int(os.environ.get("DDP_TRAIN_RUNS", "3"))
SEED = os.environ.get("DDP_TRAIN_SEED") or str(random.SystemRandom().randrange(1_000_000))
RANKS = 3
HYPERPARAMETERS = (("--clip-norm", 1),
           ("--model", "mlp", "--optimizer", "adamw", "--lr", 0.001, "--zero", 1),
           ("--dtype", "float64", "--accumulate", 2, "--lr-schedule", "cosine", "--warmup-steps", 30))


def is_rank(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "train"
    except OSError:
        return False


class TrainTorture(LaunchTest):
    def train(self, *args):
        return self.start("--nproc-per-node", RANKS, "--max-restarts", 9, "--restart-backoff", "20ms", "--label", "none", "train", "--device", "cpu", "--data",
                          "synthetic", "--limit", 601, "--batch-size", 5, "--epochs", 8, *args)

    def ranks(self):
        return {pid for pid, _ in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0") if is_rank(pid)}

    def end(self, process):
        """Waits for the end. Returns the lines of the weights and of the accuracy, and the seconds."""
        done = self.finish(process, 200)
        self.assert_code(done, 0)
        return re.findall(rf"(?m)^(?:weights equal on {RANKS} ranks: [0-9a-f]{{16}}|test accuracy .*)$", done.out), done.seconds

    def kill_one(self, chance, known, longest, process):
        """Kills a rank some time after the ranks of another attempt have begun to start."""
        self.assertTrue(wait_until(lambda: self.ranks() - known or process.poll() is not None, 60))
        time.sleep(chance.random() * longest)
        ranks = sorted(self.ranks() - known)
        # Between two attempts no rank may exist; then the next attempt's rank is killed.
        while not ranks and process.poll() is None:
            ranks = sorted(self.ranks() - known)
        self.assertIsNone(process.poll(), "the training ended before its kills")
        os.kill(chance.choice(ranks), signal.SIGKILL)
        return known | set(ranks)

    def test_killed_ranks_change_no_bit_of_the_weights(self):
        print(f"seed {SEED} (DDP_TRAIN_SEED={SEED} repeats it)", flush=True)
        undisturbed = {}
        for number in range(RUNS):
            chance = random.Random(f"{SEED}/{number}")
            hyperparameters = HYPERPARAMETERS[number % len(HYPERPARAMETERS)]
            if hyperparameters not in undisturbed:
                undisturbed[hyperparameters] = self.end(self.train(*hyperparameters))
            expected, seconds = undisturbed[hyperparameters]
            kills = chance.randint(2, 3)
            saved = self.dir / f"checkpoints-{number}"
            process = self.train(*hyperparameters, "--checkpoint-dir", saved, "--checkpoint-every", 3, "--resume", "auto")
            known = set()
            for _ in range(kills):
                known = self.kill_one(chance, known, seconds / (kills + 1), process)
            found, _ = self.end(process)
            print(f"run {number}: {kills} kills, {found[0]}", flush=True)
            self.assertEqual(found, expected, f"run {number} of seed {SEED}: {hyperparameters}")


if __name__ == "__main__":
    main()
