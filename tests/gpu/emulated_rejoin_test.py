#!/usr/bin/env python3
"""Tests `train --on-peer-loss rejoin` over an emulated NCCL with whole steps on an emulated GPU. Survivors abort, undo the
step whose sum was lost, make a new communicator and capture new graphs.

usage: emulated_rejoin_test.py PATH_OF_EMULATED_TRAIN PATH_OF_LIBRARY PATH_OF_STORE_SERVER [unittest options]"""
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process/train"))
import rejoin_test  # noqa: E402
from rejoin_test import Job, weights  # noqa: E402

# 20 steps an epoch on 3 ranks; the last step is smaller.
TASK = ("--data", "synthetic", "--limit", "230", "--batch-size", "4", "--model", "mlp", "--mlp-width", "24",
        "--mlp-depth", "1", "--epochs", "8", "--device", "gpu", "--comm", "nccl", "--share-gpu")


class EmulatedRejoin(unittest.TestCase):
    task, images, epochs = TASK, 230, 8
    undisturbed, whole = {}, rejoin_test.Rejoin.whole
    check_samples = rejoin_test.Rejoin.check_samples
    test_down_to_one_rank_and_up_again = rejoin_test.Rejoin.test_down_to_one_rank_and_up_again

    def setUp(self):
        rejoin_test.Rejoin.setUp(self)
        rooms = tempfile.TemporaryDirectory()
        self.addCleanup(rooms.cleanup)
        os.environ |= {"DDPLAUNCH_NCCL_LIBRARY": LIBRARY, "FAKE_CUDA_GPUS": "1", "FAKE_NCCL_DIR": rooms.name}
        for name in ("FAKE_NCCL_TRANSPORT", "FAKE_NCCL_WINDOWS", "FAKE_CUDA_GRAPH_END"):
            os.environ.pop(name, None)

    def test_a_process_that_joins_takes_the_device_that_was_chosen(self):
        at = TASK.index("--device")
        task = TASK[:at] + TASK[at + 2:]
        os.environ |= {"FAKE_NCCL_TRANSPORT": "net", "FAKE_NCCL_WINDOWS": "0"}
        expected = self.whole(3, *TASK)
        with Job(3, *task) as job:
            job.start().reach(20)
            job.lose(1)
            job.are_ready()
            lines = job.finish()
        self.assertEqual(weights(lines), expected)
        chosen = [line for lines_of_rank in lines for line in lines_of_rank if line.startswith("device ")]
        self.assertEqual(chosen, ["device gpu, nccl"])

    def test_a_process_that_joins_with_the_gpu_of_another_ends_alone(self):
        task = TASK[:TASK.index("--device")]
        os.environ["FAKE_CUDA_GPUS"] = "4"
        self.addCleanup(os.environ.pop, "CUDA_VISIBLE_DEVICES", None)
        with Job(3, *task) as job:
            job.start().reach(20)
            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
            job.lose(1)
            late = job.of(1)
            job.until(lambda: late.process.poll() is not None, "the end of rank 1")
            self.assertEqual(late.process.returncode, 1)
            self.assertRegex(late.texts()[1], r"^train: rank 1 on \S+: its GPU is also that of rank 0, and the job uses NCCL; give it a GPU of its own\n$")
            del os.environ["CUDA_VISIBLE_DEVICES"]
            job.lose(1)
            job.are_ready()
            job.finish()

    def test_a_rank_whose_local_rank_changes_leaves_the_gpu_of_another(self):
        os.environ["FAKE_CUDA_GPUS"] = "3"
        with Job(3, *(option for option in TASK if option != "--share-gpu")) as job:
            job.start().reach(20)
            job.lose(0, world=2)  # ranks 1 and 2 become 0 and 1
            job.until(lambda: all(worker.process.poll() is not None for worker in job.workers), "the end")
            for rank in (0, 1):
                worker = job.of(rank)
                self.assertEqual(worker.process.returncode, 1)
                self.assertEqual(worker.texts()[1], f"train: rank {rank} holds its model on GPU {rank + 1}, but has GPU {rank} in attempt 1; a new "
                                                    "process must take its place\n")

    def test_a_replaced_rank_changes_no_bit_of_the_training(self):
        expected = {dtype: self.whole(3, *TASK, "--dtype", dtype) for dtype in ("float32", "float64", "bfloat16")}
        self.assertEqual(len(set(expected.values())), 3)
        # Over sockets NCCL reports a death. Inside a node NCCL reports nothing, and only the revoke ends the wait.
        for way, victim, dtype in (("net", 2, "bfloat16"), ("p2p", 1, "bfloat16"), ("p2p", 0, "float64"), ("net", 0, "float32")):
            os.environ |= {"FAKE_NCCL_TRANSPORT": way, "FAKE_NCCL_WINDOWS": "1" if way == "p2p" else "0",
                           "FAKE_CUDA_GRAPH_END": "waits" if victim == 0 else "defers"}
            with self.subTest(way=way, victim=victim), Job(3, *TASK, "--dtype", dtype, "--sample-log", self.log) as job:
                job.start().reach(random.randrange(3, 70))
                pids = {worker.rank: worker.process.pid for worker in job.workers if worker.rank != victim}
                job.lose(victim)
                job.are_ready()
                lines = job.finish()
                self.assertEqual({w.rank: w.process.pid for w in job.workers if w.rank != victim}, pids)
                self.assertEqual(weights(lines), expected[dtype])
                self.check_samples()

    def test_a_rejoin_leaks_no_memory_to_nccl(self):
        # An abort leaves windows, so none is made. The fake reports memory that is freed with a window, and the job checks stderr.
        os.environ |= {"FAKE_NCCL_WINDOWS": "1", "FAKE_CUDA_GPUS": "3"}
        task = tuple(option for option in TASK if option != "--share-gpu")
        with Job(3, *task) as job:
            job.start().reach(20)
            job.lose(1)
            job.are_ready()
            job.finish()

    def test_ranks_are_killed_repeatedly_at_any_moment(self):
        expected = self.whole(3, *TASK)
        for seed in range(3):
            with self.subTest(seed=seed), Job(3, *TASK, "--sample-log", self.log) as job:
                dice = random.Random(seed)
                job.start()
                for _ in range(5):
                    end = time.monotonic() + dice.random() * 0.3
                    while time.monotonic() < end and job.reached < 100:
                        job.serve(0.01)
                    if job.reached >= 100:  # of 160
                        break  # no rank may be done when another one is lost
                    job.lose(dice.randrange(3))
                self.assertGreater(job.attempt, 0)
                self.assertEqual(weights(job.finish()), expected)
                self.check_samples()

    def test_a_revoke_without_a_death_loses_nothing(self):
        expected = self.whole(3, *TASK)
        with Job(3, *TASK, "--sample-log", self.log) as job:
            job.start()
            for step in (5, 11, 30):
                job.reach(step)
                job.revoke()
                job.go_on()
                job.are_ready()
            self.assertEqual(weights(job.finish()), expected)
            self.check_samples()

    def test_a_frozen_rank_is_found_at_the_deadline(self):
        expected = self.whole(3, *TASK)
        with Job(3, *TASK, "--comm-timeout", "10s") as job:  # the job that goes on must not time out again
            job.start().reach(5)
            job.of(1).process.send_signal(signal.SIGSTOP)
            others = [worker for worker in job.workers if worker.rank != 1]
            job.until(lambda: all(worker.failed for worker in others), "evidence")
            for worker in others:
                self.assertRegex(worker.failed[0]["error"], rf"^rank {worker.rank} over NCCL: the other ranks did not join the "
                                                            rf"operation within 10 s during .+ step \d+$")
            job.lose(1)
            self.assertEqual(weights(job.finish()), expected)


if __name__ == "__main__":
    rejoin_test.TRAIN = sys.argv.pop(1)
    LIBRARY = sys.argv.pop(1)
    rejoin_test.STORE = sys.argv.pop(1)
    unittest.main(verbosity=2)
