#!/usr/bin/env python3
"""Tests ranks that survive the loss of others, as whole jobs: `train --on-peer-loss rejoin` over SSH nodes (testing.md says what the other
places test). Many faults hit one training, which ends with the losses of an undisturbed one, and uses each sample once.

DDP_REJOIN_SEED=N repeats a run (the seed is printed), DDP_REJOIN_FAULTS=N sets the number of faults (15).
"""

import collections
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, enter_own_pids, main, wait_until
from tests.support.rejoin import BATCH, LIMIT, RejoinTest, kill, samples, socket_folder, step_records, stopped

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


class ManyFaults(RejoinTest):
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
        self.epochs = 32
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


class LostRanks(RejoinTest):
    def begun(self, *args, workers=4, step=30, training=(), epochs=6, **named):
        """Starts a job and waits for the step. Returns its process and its workers by rank."""
        process = self.on_nodes(*args, *self.training(*training, epochs=epochs), **named)
        self.wait_for_step(step, process)
        return process, self.by_rank(self.wait_for_workers(workers))

    def test_a_killed_rank_is_replaced_and_the_others_survive(self):
        process, first = self.begun("--max-restarts", 3)
        kill(first[3].pid)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 4)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual([second[rank] for rank in range(3)], [first[rank] for rank in range(3)])
        self.assertNotEqual(second[3].pid, first[3].pid)
        done = self.finish(process)
        self.assert_trained(done, 4)
        self.assertIn("rank 3 on 127.0.0.3 killed by SIGKILL; the other ranks survive: restart 1 of 3\n", done.err)
        self.assertRegex(done.err, r"attempt 1: 4 ranks continue from step \d+ \(state of rank [0-2]\), recovered in \d+ ms\n")
        self.assertNotIn(self.WARNING, done.err)

    WARNING = ("train: the first lost rank will end the job, although --on-peer-loss rejoin is given: --max-restarts is 0; "
               "give ddplaunch --max-restarts N")

    def test_without_restarts_the_first_loss_will_end_the_job(self):
        done = self.finish(self.here("--max-restarts", 0, *self.training(epochs=1), nproc=2))
        self.assert_code(done, 0)
        self.assertEqual(done.err.count(self.WARNING), 1, done.err)

    def test_all_ranks_of_a_node_are_replaced_while_stdout_is_not_read(self):
        flood = f'{BIN.parent}/tests/bench_lines - 60000 & exec {BIN}/train "$@" >/dev/null'
        process = self.on_nodes("--max-restarts", 1, "sh", "-c", flood, *self.training())
        self.wait_for_step(30, process)
        first = self.by_rank(self.wait_for_workers(4))
        sizes = [0]

        def blocked():
            sizes.append(sum(path.stat().st_size for path in self.job_dir.glob("attempt_0/*.stdout")))
            time.sleep(0.3)
            return sizes[-1] > 0 and sizes[-1] == sizes[-2]
        with stopped(*(worker.pid for worker in first.values())):
            self.assertTrue(wait_until(blocked), sizes)
            kill(first[2].pid, first[3].pid)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 4)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual((second[0], second[1]), (first[0], first[1]))
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(samples.problems(self.samples, LIMIT, 6), [], done.err)
        self.assertNotRegex(done.err, "credit|no surviving rank|was lost|in time")

    def test_a_node_with_a_process_that_cannot_be_killed_starts_no_next_attempt(self):
        freezer = pathlib.Path("/sys/fs/cgroup/freezer/" + self.job)
        try:
            freezer.mkdir()
        except OSError as error:
            self.skipTest(f"no freezer (control groups of version 1) here: {error}")

        def remove_freezer():
            wait_until(lambda: not (freezer / "cgroup.procs").read_text())
            freezer.rmdir()
        self.addCleanup(remove_freezer)
        pid_file = self.dir / "pid"
        script = (f'[ $GROUP_RANK != 1 ] || [ $TORCHELASTIC_RESTART_COUNT != 0 ] || {{ setsid sleep 60 >/dev/null 2>&1 </dev/null & '
                  f'echo $! > {pid_file}; }}; exec {BIN}/train "$@"')
        process = self.on_nodes("--max-restarts", 3, "sh", "-c", script, *self.training("--comm-timeout", "60s", epochs=60))
        self.wait_for_step(20, process)
        first = self.by_rank(self.wait_for_workers(4))
        frozen = int(pid_file.read_text().split()[0])
        (freezer / "cgroup.procs").write_text(str(frozen))
        (freezer / "freezer.state").write_text("FROZEN")
        try:
            # Node 0 takes 5 s to leave the attempt. Meanwhile the survivors of node 1 die, as a rule after they have left it; the
            # promise holds in any order.
            os.kill(first[1].pid, signal.SIGSTOP)
            kill(first[0].pid)
            time.sleep(1)
            kill(first[2].pid, first[3].pid)
            self.wait_until_said(rf"127\.0\.0\.3.*: {frozen} \(sleep, state D")
            self.assertEqual({worker.node for worker in self.workers().values()} - {0}, set())
        finally:
            (freezer / "freezer.state").write_text("THAWED")
            with contextlib.suppress(ProcessLookupError):  # its SIGKILL may have waited
                os.kill(frozen, signal.SIGKILL)
        process.terminate()
        self.assertIn(self.finish(process).code, (137, 143))

    def test_all_ranks_are_lost_and_the_last_checkpoint_is_used(self):
        saved = self.dir / "saved"
        process, first = self.begun("--max-restarts", 1, step=50, training=("--checkpoint-dir", saved, "--checkpoint-every", 20,
                                                                           "--resume", "auto"))
        kill(*(worker.pid for worker in first.values()))
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertRegex(done.out, r"(?m)^resuming from .*/step-000000[2-9]0: step \d+")
        self.assertRegex(done.out, r"(?m)^weights equal on 4 ranks")
        self.assertEqual(samples.problems(self.samples, LIMIT, 6), [])

    def test_node_0_is_lost_with_agent_keeper_and_workers(self):
        # No process is left that could report the death of its workers.
        process, first = self.begun("--max-restarts", 3, "--fence", "off", nodes="1:2")
        self.addCleanup(shutil.rmtree, socket_folder(first[0]), ignore_errors=True)
        self.seen -= {first[0], first[1]}  # no process is left that could remove their sockets
        kill(first[0].keeper, first[0].agent, first[0].pid, first[1].pid)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 2)
        self.assertEqual(sorted(self.workers()), sorted((first[2].pid, first[3].pid)))
        self.assert_trained(self.finish(process), 2)

    def test_a_node_without_agent_and_keeper_returns_within_its_lease(self):
        process, first = self.begun("--max-restarts", 3)
        self.addCleanup(shutil.rmtree, socket_folder(first[2]), ignore_errors=True)
        self.seen -= {first[2], first[3]}
        began = time.monotonic()
        kill(first[2].keeper, first[2].agent)
        self.assertEqual(self.wait_until_trained_on(1, process, 80)[0], 4)
        # A search that a busy machine stops proves nothing. Then the lease of 45 s must end.
        self.assertLess(time.monotonic() - began, 80 if "may live there" in self.said() else 40)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual((second[0], second[1]), (first[0], first[1]))  # they run on the other node, which is the same machine
        self.assert_trained(self.finish(process), 4)


if __name__ == "__main__":
    enter_own_pids()
    main()
