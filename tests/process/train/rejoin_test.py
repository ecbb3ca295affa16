#!/usr/bin/env python3
"""Tests `train --on-peer-loss rejoin`, with the real store and a small agent in this file: survivors continue.

usage: rejoin_test.py PATH_OF_TRAIN PATH_OF_STORE_SERVER [unittest options]"""
import collections
import json
import os
import pathlib
import random
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from tests.support import samples
from tests.support.ports import free_port
from tests.support.train_ranks import own_environment, write_images

TRAIN = STORE = ""
SHORT = "DDP_SHORT_TESTS" in os.environ
# 25 steps an epoch on 4 ranks.
TASK = ("--data", "synthetic", "--limit", "800", "--batch-size", "8", "--dtype", "float64")
SMALL = (*TASK, "--epochs", "3")
OF_MLP = ("--model", "mlp", "--mlp-width", "512")
MLP = (*SMALL, *OF_MLP)


class Store:
    def __init__(self):
        self.process = subprocess.Popen([STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[1])

    def close(self):
        self.process.communicate()


class Worker:
    """A process of `train`, and its output."""

    def __init__(self, job, rank, serial):
        self.rank, self.step, self.phase = rank, None, ""
        self.hello = self.answer = None
        self.ready, self.failed, self.buffer, self.connection = -1, [], b"", None
        path = job.folder / f"w{serial}.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.out = open(job.folder / f"out{serial}", "w+")
        self.err = open(job.folder / f"err{serial}", "w+")
        env = own_environment() | {k: str(v) for k, v in job.place(rank).items()} | {"DDPLAUNCH_CONTROL": f"unix:{path}"}
        self.process = subprocess.Popen([TRAIN, *map(str, job.arguments), "--on-peer-loss", "rejoin"], env=env,
                                        stdout=self.out, stderr=self.err)

    def texts(self):
        self.out.seek(0)
        self.err.seek(0)
        return self.out.read().splitlines(), self.err.read()

    def hear(self, word):
        if "hello" in word:
            self.hello = word
        elif "step" in word and "revoked" not in word:
            self.step, self.phase = word["step"], word.get("in", "")
        elif "revoked" in word:
            self.answer = word
        elif "ready" in word:
            self.ready = word["ready"]
        elif "failed" in word:
            self.failed.append(word)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for one in (self.listener, self.connection, self.out, self.err):
            if one:
                one.close()


class Job:
    """The ranks of a job and their agent, which orders attempts and takes answers. All ranks end with the `with` block."""

    def __init__(self, world, *arguments, nodes=1, agent_store=True):
        self.temporary = tempfile.TemporaryDirectory(prefix="ddp-rejoin-")
        self.folder = pathlib.Path(self.temporary.name)
        self.arguments, self.nodes, self.world, self.attempt, self.serial = arguments, nodes, world, 0, 0
        self.agent_store = agent_store
        self.selector = selectors.DefaultSelector()
        self.store = Store()
        self.port = self.store.port if agent_store else free_port()
        self.workers = []
        self.reached = 0  # the highest step of all attempts
        for rank in range(world):
            self.spawn(rank)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.close()
        self.store.close()
        self.temporary.cleanup()

    def place(self, rank):
        size = max(self.world // self.nodes, 1)
        return {"RANK": rank, "WORLD_SIZE": self.world, "LOCAL_RANK": rank % size, "LOCAL_WORLD_SIZE": size,
                "GROUP_RANK": rank // size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port,
                "TORCHELASTIC_USE_AGENT_STORE": str(self.agent_store), "TORCHELASTIC_RESTART_COUNT": self.attempt,
                "TORCHELASTIC_RUN_ID": "rejoin-test"}

    def spawn(self, rank):
        self.serial += 1
        worker = Worker(self, rank, self.serial)
        self.workers.append(worker)
        self.selector.register(worker.listener, selectors.EVENT_READ, worker)
        return worker

    def serve(self, timeout):
        for key, _ in self.selector.select(timeout):
            worker = key.data
            if key.fileobj is worker.listener:
                worker.connection, _ = worker.listener.accept()
                self.selector.unregister(worker.listener)
                self.selector.register(worker.connection, selectors.EVENT_READ, worker)
                continue
            try:
                data = worker.connection.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                self.selector.unregister(worker.connection)
                continue
            *lines, worker.buffer = (worker.buffer + data).split(b"\n")
            for line in lines:
                worker.hear(json.loads(line))
            self.reached = max(self.reached, worker.step or 0)

    def until(self, condition, what, timeout=60):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} was not reached; " +
                                     "; ".join(f"rank {w.rank}: {w.process.poll()} {w.phase} {w.step} {w.texts()[1]}" for w in self.workers))
            self.serve(0.02)

    def of(self, rank):
        return next(worker for worker in self.workers if worker.rank == rank)

    def order(self, source=None):
        """Sends the order of the present attempt to all workers, after each has sent its hello."""
        self.until(lambda: all(worker.hello for worker in self.workers), "a hello")
        for worker in self.workers:
            place = self.place(worker.rank)
            worker.answer = None
            worker.step = None
            self.say(worker, {"attempt": self.attempt, "rank": worker.rank, "world": self.world, "local_rank": place["LOCAL_RANK"],
                              "local_world": place["LOCAL_WORLD_SIZE"], "node_rank": place["GROUP_RANK"], "nodes": self.nodes,
                              "store": f"127.0.0.1:{self.port}", "agent_store": self.agent_store, "from": source})

    def say(self, worker, word):
        worker.connection.sendall(json.dumps(word).encode() + b"\n")

    def start(self):
        self.order()
        return self

    def reach(self, step):
        self.until(lambda: max((w.step or 0) for w in self.workers) >= step, f"step {step}")

    def kill(self, rank):
        """Kills a worker as the agent sees it: no rest of the process is left when the others are notified."""
        worker = self.of(rank)
        worker.process.kill()
        worker.process.wait()
        self.workers.remove(worker)
        for fd in (worker.connection, worker.listener):
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        worker.close()

    def revoke(self):
        """Revokes the attempt. Returns the seconds until all workers have answered."""
        begin = time.monotonic()
        for worker in self.workers:
            self.say(worker, {"revoke": self.attempt, "reason": "a rank was killed", "deadline_ms": 5000})
        self.until(lambda: all(worker.answer for worker in self.workers), "an answer to the revoke", 30)
        assert all(worker.answer["revoked"] == self.attempt for worker in self.workers)
        return time.monotonic() - begin

    def go_on(self, world=None):
        """Starts the next attempt. New processes fill the gaps, or a smaller world has the survivors in their order."""
        world = world or self.world
        survivors = sorted(self.workers, key=lambda worker: worker.rank)
        steps = {worker: worker.answer["step"] for worker in survivors}
        if world < self.world:
            for rank, worker in enumerate(survivors):
                worker.rank = rank
        self.world, self.attempt = world, self.attempt + 1
        if not self.agent_store:
            self.port = free_port()
        held = [worker for worker in survivors if steps[worker] is not None]
        source = None
        if held:
            most = max(steps[worker] for worker in held)
            source = min(worker.rank for worker in held if steps[worker] == most)
        for rank in sorted(set(range(world)) - {worker.rank for worker in survivors}):
            self.spawn(rank)
        self.order(source)
        return source

    def are_ready(self):
        self.until(lambda: all(worker.ready == self.attempt for worker in self.workers), "ready")

    def lose(self, rank, world=None):
        self.kill(rank)
        took = self.revoke()
        self.go_on(world)
        return took

    def finish(self, timeout=120):
        """Returns the stdout lines of each rank, and checks that all have exited with 0."""
        self.until(lambda: all(worker.process.poll() is not None for worker in self.workers), "the end", timeout)
        for worker in self.workers:
            _, errors = worker.texts()
            if worker.process.returncode != 0 or errors:
                raise AssertionError(f"rank {worker.rank} ended with {worker.process.returncode}: {errors}")
        return [worker.texts()[0] for worker in sorted(self.workers, key=lambda worker: worker.rank)]


def weights(lines):
    return next(line for line in lines[0] if line.startswith("weights equal on")).rsplit(" ", 1)[1]


def parameters(path):
    """Returns the tensors of a safetensors file except running statistics, which differ between ranks."""
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    return {name: data[8 + size + one["data_offsets"][0]:8 + size + one["data_offsets"][1]]
            for name, one in header.items() if name != "__metadata__" and "running" not in name}


class Rejoin(unittest.TestCase):
    task, images, epochs = MLP, 800, 3

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-rejoin-out-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "samples"
        self.log.mkdir()

    undisturbed = {}  # the weights of trainings without a loss

    def whole(self, world, *arguments, nodes=1):
        """Returns the weights of the same training without a loss."""
        fakes = sorted((name, value) for name, value in os.environ.items() if name.startswith("FAKE_") and name != "FAKE_NCCL_DIR")
        key = (world, nodes, *arguments, *fakes)
        if key not in self.undisturbed:
            with Job(world, *arguments, nodes=nodes) as job:
                self.undisturbed[key] = weights(job.start().finish())
        return self.undisturbed[key]

    def check_samples(self):
        """Checks that each epoch used each sample once, apart from padding. Then the log is empty again."""
        self.assertEqual(samples.problems(self.log, self.images, self.epochs), [])
        for path in self.log.iterdir():
            path.unlink()

    def check_records(self, path):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        steps = [record["step"] for record in records if record["kind"] == "step"]
        unique = sorted(set(steps))
        self.assertEqual(unique, list(range(1, unique[-1] + 1)))
        self.assertLessEqual(len(steps) - len(unique), 2)

    @unittest.skipIf(SHORT, "DDP_SHORT_TESTS is set")
    def test_a_replaced_rank_changes_no_bit_of_the_training(self):
        expected = self.whole(4, *MLP)
        for victim in (3, 0):
            with self.subTest(victim=victim), Job(4, *MLP, "--sample-log", self.log, "--metrics-file", self.folder / f"m{victim}") as job:
                job.start().reach(random.randrange(3, 25))
                pids = {worker.rank: worker.process.pid for worker in job.workers}
                self.assertLess(job.lose(victim), 20)  # --comm-timeout is longer
                job.are_ready()
                lines = job.finish()
                self.assertEqual(weights(lines), expected)
                self.assertEqual({w.rank: w.process.pid for w in job.workers if w.rank != victim},
                                 {rank: pid for rank, pid in pids.items() if rank != victim})
                said = [line for line in lines[0] if line.startswith("attempt ")]
                self.assertEqual(len(said), 1)
                self.assertRegex(said[0], r"^attempt 1: 4 ranks continue from step \d+ \(state of rank [0-3]\)$")
                self.check_samples()
                self.check_records(self.folder / f"m{victim}")

    @unittest.skipIf(SHORT, "DDP_SHORT_TESTS is set")
    def test_a_replaced_rank_changes_no_bit_of_the_convnet(self):
        tcp = (*SMALL, "--comm", "tcp", "--export")
        self.whole(4, *tcp, self.folder / "whole")
        with Job(4, *tcp, self.folder / "rejoined") as job:
            job.start().reach(random.randrange(3, 25))
            job.lose(2)
            job.finish()
        self.assertEqual(parameters(self.folder / "rejoined"), parameters(self.folder / "whole"))

    @unittest.skipIf(SHORT, "DDP_SHORT_TESTS is set")
    def test_fewer_and_then_more_ranks(self):
        with Job(4, *MLP, "--sample-log", self.log) as job:
            job.start().reach(8)
            job.lose(1, world=3)
            job.are_ready()
            job.reach(20)
            job.revoke()
            job.go_on(world=4)
            lines = job.finish()
        self.assertRegex("\n".join(lines[0]), r"attempt 1: 3 ranks continue from step \d+ .*\n(.*\n)*attempt 2: 4 ranks continue "
                                              r"from step \d+ ")
        self.check_samples()

    def test_down_to_one_rank_and_up_again(self):
        with Job(2, *self.task, "--sample-log", self.log) as job:
            job.start().reach(5)
            job.lose(0, world=1)
            job.are_ready()
            job.reach(max(worker.step or 0 for worker in job.workers) + 5)
            job.revoke()
            job.go_on(world=3)
            lines = job.finish()
        self.assertRegex("\n".join(lines[0]), r"attempt 1: 1 rank continues from step \d+ .*\n(.*\n)*attempt 2: 3 ranks continue")
        self.check_samples()

    def test_rank_0_serves_the_store_when_the_agent_does_not(self):
        with Job(3, *MLP, agent_store=False) as job:
            job.start().reach(5)
            for victim in (1, 0):
                job.lose(victim)
                job.are_ready()
            job.finish()

    def test_ranks_are_killed_repeatedly_at_any_moment(self):
        expected, kills = self.whole(4, *MLP), 0
        for seed in range(1 if SHORT else 4):
            with self.subTest(seed=seed), Job(4, *MLP, "--sample-log", self.log) as job:
                dice = random.Random(seed)
                job.start()
                for _ in range(4):
                    # The kill hits while ranks join, exchange the state, train or test.
                    end = time.monotonic() + dice.random() * 0.25
                    while time.monotonic() < end and job.reached < 50:
                        job.serve(0.01)
                    if job.reached >= 50:  # of 75: no rank may be done when another one is lost
                        break
                    job.lose(dice.randrange(4))
                    kills += 1
                self.assertEqual(weights(job.finish()), expected)
                self.check_samples()
        self.assertGreater(kills, 0)

    def test_a_rank_is_killed_while_a_large_model_is_handed_over(self):
        large = ("--data", "synthetic", "--limit", "512", "--batch-size", "4", "--max-steps", "12", "--model", "mlp",
                 "--mlp-width", "1024", "--mlp-depth", "6")
        expected = self.whole(3, *large)
        with Job(3, *large) as job:
            job.start().reach(3)
            job.lose(2)
            for victim in (2, 0, 1):
                job.until(lambda: any(worker.phase == "state" for worker in job.workers), "the hand-over")
                job.lose(victim)
            self.assertEqual(weights(job.finish()), expected)

    def test_a_revoke_without_a_death_loses_nothing(self):
        expected = self.whole(3, *MLP)
        for comm in ("tcp", "shm"):
            with self.subTest(comm=comm), Job(3, *MLP, "--comm", comm, "--sample-log", self.log) as job:
                job.start()
                for step in (5, 11, 40):
                    job.reach(step)
                    self.assertLess(job.revoke(), 20)
                    job.go_on()
                    job.are_ready()
                self.assertEqual(weights(job.finish()) == expected, comm == "shm")  # transports add in different orders
                self.check_samples()

    def test_a_frozen_rank_is_named_by_the_ranks_that_wait_for_it(self):
        for comm, timeout in (("tcp", "3s"), ("shm", "3s" if SHORT else "10s")):  # the job that goes on must not time out again
            with self.subTest(comm=comm), Job(3, *MLP, "--comm", comm, "--comm-timeout", timeout) as job:
                job.start().reach(5)
                job.of(1).process.send_signal(signal.SIGSTOP)
                others = [worker for worker in job.workers if worker.rank != 1]
                job.until(lambda: all(worker.failed for worker in others), "evidence")
                for worker in others:
                    self.assertEqual((worker.failed[0]["failed"], worker.failed[0]["peers"]), (0, [1]))
                    self.assertIn("lost rank 1", worker.failed[0]["error"])
                job.lose(1)
                job.are_ready()
                if timeout == "10s":
                    self.assertEqual(weights(job.finish()), self.whole(3, *MLP))

    def test_nodes_that_are_averaged_every_few_steps(self):
        slow = (*MLP, "--sync-every-inter", "4", "--sample-log", self.log)
        with Job(4, *slow, nodes=2) as job:
            job.start().reach(10)
            job.lose(3)
            job.are_ready()
            job.reach(30)
            job.lose(0)
            job.finish()
        # A node that was behind the other one drops samples that it has not trained with: less than K steps.
        epochs = collections.defaultdict(collections.Counter)
        for epoch, _, _, ranks in samples.counting(samples.read(self.log)):
            epochs[epoch].update(number for numbers in ranks.values() for number in numbers)
        for counts in epochs.values():
            self.assertLessEqual(800 - len(counts), 2 * 3 * 2 * 8)
            self.assertEqual(set(counts.values()), {1})

    def test_checkpoints_continue_when_rank_0_dies(self):
        saved = self.folder / "saved"
        with Job(3, *SMALL, "--checkpoint-dir", saved, "--checkpoint-every", "5", "--checkpoint-keep", "100") as job:
            job.start()
            for victim, step in ((0, 7), (1, 30), (0, 50)):
                job.reach(step)
                job.lose(victim)
                job.are_ready()
            job.finish()
        # 34 steps an epoch. The end is always written. A checkpoint that a killed rank 0 was writing is not there.
        written = {int(path.name[5:]) for path in saved.glob("step-*")}
        self.assertLessEqual(written, {*range(5, 103, 5), 102})
        self.assertIn(102, written)
        self.assertGreaterEqual(len(written), 19)
        for path in saved.glob("step-*"):
            self.assertEqual(json.loads((path / "state.json").read_text())["step"], int(path.name[5:]))

    def test_no_checkpoint_or_test_at_the_end_of_an_epoch_is_skipped(self):
        saved = self.folder / "saved"
        metrics = self.folder / "metrics"
        with Job(3, *TASK, *OF_MLP, "--epochs", "6", "--checkpoint-dir", saved, "--metrics-file", metrics,
                 "--checkpoint-keep", "9") as job:
            job.start()
            for _ in range(3):
                job.until(lambda: any(worker.phase in ("test", "checkpoint") for worker in job.workers), "a test")
                job.revoke()
                job.go_on()
                job.are_ready()
            job.finish()
        tests = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines() if '"kind":"epoch"' in line]
        self.assertEqual(sorted(set(tests)), [1, 2, 3, 4, 5, 6])
        self.assertEqual(sorted(path.name for path in saved.glob("step-*")), [f"step-{34 * epoch:08d}" for epoch in range(1, 7)])

    def test_a_rank_without_an_order_ends_with_its_own_error(self):
        with Job(2, *TASK, *OF_MLP, "--epochs", "10000") as job:  # more than a busy machine trains before the kill
            job.start().reach(3)
            job.kill(1)
            worker = job.of(0)
            job.until(lambda: worker.failed, "evidence")
            worker.connection.shutdown(socket.SHUT_RDWR)
            worker.process.wait(60)
            self.assertEqual(worker.process.returncode, 1)
            self.assertRegex(worker.texts()[1], r"^train: rank 0 lost rank 1 .* during .* of .*\n$")

    def test_a_user_s_error_ends_all_ranks(self):
        with Job(2, *MLP, "--resume", self.folder / "none") as job:
            job.start()
            for worker in job.workers:
                worker.process.wait(60)
                self.assertEqual(worker.process.returncode, 1)
                self.assertIn("none", worker.texts()[1])

    def test_a_rank_that_joins_with_other_data_ends_alone(self):
        for name, kinds, images in (("a", 7, 80), ("b", 3, 80), ("c", 7, 60)):
            folder = self.folder / name
            folder.mkdir()
            for part in ("train", "t10k"):
                write_images(folder, part, bytes(range(196)) * 4 * images, bytes(i % kinds for i in range(images)))
        task = ("--batch-size", "2", "--epochs", "4", *OF_MLP, "--data")
        expected = self.whole(4, *task, self.folder / "a", nodes=2)
        host = re.escape(socket.gethostname())
        with Job(4, *task, self.folder / "a", nodes=2) as job:
            job.start().reach(3)
            job.kill(3)
            for other, what in (("b", "training labels"), ("c", "training images")):
                job.revoke()
                job.arguments = (*task, self.folder / other)
                job.go_on()
                joined = job.of(3)
                job.until(lambda: joined.process.poll() is not None, "the end of the rank with other data")
                self.assertEqual(joined.process.returncode, 1)
                self.assertRegex(joined.texts()[1], rf"^train: the {what} \(.*\) of rank 3 \({host}\) have the CRC-32 [0-9a-f]{{8}}, and those of "
                                                    rf"rank \d \({host}\), with which the training was begun, [0-9a-f]{{8}}; "
                                                    r"give all nodes the same data\n$")
                job.kill(3)
            job.revoke()
            job.arguments = (*task, self.folder / "a")
            job.go_on()
            self.assertEqual(weights(job.finish()), expected)

    def test_a_rank_that_joins_with_other_options_ends_alone(self):
        task = (*TASK, *OF_MLP, "--epochs", "4")
        expected = self.whole(4, *task, nodes=2)
        with Job(4, *task, nodes=2) as job:
            job.start().reach(3)
            for rank, option, other, right in ((3, "--lr", "0.02", "0.01"), (0, "--lr", "0.02", "0.01"), (0, "--comm", "tcp", "auto")):
                job.kill(rank)
                job.revoke()
                job.arguments = (*task, option, other)
                job.go_on()
                joined = job.of(rank)
                job.until(lambda: joined.process.poll() is not None, "the end of the rank with other options")
                self.assertEqual(joined.process.returncode, 1)
                self.assertRegex(joined.texts()[1], rf"^train: {option} is {other} on rank {rank} and {right} on rank \d; "
                                                    r"give all ranks the same value\n$")
                job.kill(rank)
                job.revoke()
                job.arguments = task
                job.go_on()
                job.are_ready()
            self.assertEqual(weights(job.finish()), expected)

    def test_refused_combinations_of_options(self):
        for more, control, text in (
                (("--zero", "1"), "unix:/x", "--zero 1 cannot be used with --on-peer-loss rejoin: a lost rank's part of the "
                                             "optimizer's state has no copy"),
                ((), None, "--on-peer-loss rejoin needs a launcher that starts new attempts, but "
                           "DDPLAUNCH_CONTROL is not set; start train with ddplaunch")):
            done = subprocess.run([TRAIN, *MLP, "--on-peer-loss", "rejoin", *more], text=True, capture_output=True, timeout=30,
                                  env=own_environment() | ({"DDPLAUNCH_CONTROL": control} if control else {}))
            self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", f"train: {text}\n"))
        done = subprocess.run([TRAIN, *MLP, "--on-peer-loss", "perhaps"], text=True, capture_output=True, timeout=30, env=own_environment())
        self.assertEqual(done.returncode, 2)
        done = subprocess.run([TRAIN, *MLP, "--on-peer-loss", "rejoin"], text=True, capture_output=True, timeout=30,
                              env=own_environment() | {"DDPLAUNCH_CONTROL": "unix:/nonexistent/x"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/x", done.stderr)


if __name__ == "__main__":
    TRAIN, STORE = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
