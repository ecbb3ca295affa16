#!/usr/bin/env python3
"""Tests faults of the network between machines: links drop all packets in one or both directions or are slow, and agents are frozen."""

import os
import pathlib
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import live_processes_with, wait_until
from tests.support.machines import MachinesTest, main_side_by_side
from tests.support.rejoin import worker_of

WAITING = """#!/bin/sh
echo "attempt $TORCHELASTIC_RESTART_COUNT rank $RANK/$WORLD_SIZE node $GROUP_RANK/$GROUP_WORLD_SIZE master $MASTER_ADDR"
[ "$TORCHELASTIC_RESTART_COUNT" -ge "$1" ] && exit 0
exec sleep 1000
"""


class Partition(MachinesTest):
    """The hosts are given by address, as the messages and the workers' MASTER_ADDR show them."""

    count = 3

    def deafen(self, name, to):
        """Drops packets from `to` to `name`; the other direction works."""
        address = self.machines.address(name)
        self.machines.ip(to, f"neigh replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent")

    def hosts(self):
        return ",".join(f"{self.machines.address(name)}:1" for name in self.machines.names)

    def command(self, *args):
        return super().command("--env", "OMP_NUM_THREADS=1", *args)

    def launch(self, *args, ends=1):
        return self.start(*args, self.script("waiting.sh", WAITING), ends)

    def workers(self, attempt):
        """Returns the pids of the live workers of an attempt."""
        found = []
        for pid, words in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0"):
            try:
                env = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if f"TORCHELASTIC_RESTART_COUNT={attempt}\0".encode() in env and "ddplaunchd" not in words:
                found.append(pid)
        return found

    def workers_of_the_start(self):
        """Returns the pids of the three workers of attempt 0. A worker shows no environment for a moment within its exec."""
        found = []

        def all_are_there():
            found[:] = sorted(self.workers(0))
            return len(found) == 3

        self.assertTrue(wait_until(all_are_there), found)
        return found

    def running(self, process, attempt, world):
        lines = []
        while len(lines) < world:
            line = process.stdout.readline()
            if not line:
                self.fail("".join(lines) + process.stderr.read())
            if line.startswith(f"attempt {attempt} "):
                if not lines and attempt > 0:
                    self.assertEqual(self.workers(attempt - 1), [], "two attempts run beside each other")
                lines.append(line)
        return sorted(lines)

    def lost_and_replaced(self, process, seconds):
        """Checks that attempt 1 begins in time on the two remaining nodes, and that the job ends with code 0."""
        began = time.monotonic()
        lines = self.running(process, 1, 2)
        self.assertLess(time.monotonic() - began, seconds)
        self.assertEqual([re.sub(" master.*", "", line.strip()) for line in lines],
                         ["attempt 1 rank 0/2 node 0/2", "attempt 1 rank 1/2 node 1/2"])

    # The lease is master-timeout + stop-grace for the agent to end its workers + 5 s for its keeper, after the last message.
    TIMES = ("--node-timeout", "3s", "--master-timeout", "3s", "--stop-grace", "1s", "--nnodes", "2:3")

    def test_a_node_that_is_cut_off(self):
        process = self.launch(*self.TIMES)
        self.running(process, 0, 3)
        self.machines.cut("n2")
        self.lost_and_replaced(process, 3 + 1 + 5 + 8)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertRegex(done.err, r"node 10\.76\.0\.2: no heartbeat for [5-9](\.\d)? s \(--node-timeout\)")

    def test_node_0_is_cut_off(self):
        process = self.launch(*self.TIMES)
        lines = self.running(process, 0, 3)
        self.assertIn("master 10.76.0.1\n", lines[0])
        self.machines.cut("n1")
        self.lost_and_replaced(process, 3 + 1 + 5 + 8)
        self.assert_code(self.finish(process), 0)

    def test_a_node_does_not_hear_the_master(self):
        process = self.launch(*self.TIMES)
        self.running(process, 0, 3)
        self.deafen("n3", to="n0")
        self.lost_and_replaced(process, 3 + 1 + 5 + 8)
        self.assert_code(self.finish(process), 0)

    def test_a_short_partition_restarts_nothing(self):
        process = self.launch("--node-timeout", "15s", "--nnodes", "2:3", ends=0 + 9)
        self.running(process, 0, 3)
        before = self.workers_of_the_start()
        self.machines.cut("n2")
        time.sleep(4)  # longer than a suspicion takes, shorter than the timeout
        self.machines.rejoin("n2")
        reported = []
        for line in process.stderr:
            reported.append(line)
            if "responds again" in line:
                break
        self.assertRegex("".join(reported), r"10\.76\.0\.2 has been silent for [34](\.\d)? s; it counts as lost after 17 s\n")
        self.assertEqual(sorted(self.workers(0)), before)
        self.interrupt(process)
        self.assert_code(self.finish(process), 130)

    def test_a_host_that_was_cut_off_returns(self):
        process = self.launch(*self.TIMES, "--scale-up", "now", ends=2)
        self.running(process, 0, 3)
        self.machines.cut("n2")
        self.lost_and_replaced(process, 3 + 1 + 5 + 8)
        self.machines.rejoin("n2")
        lines = self.running(process, 2, 3)
        self.assertEqual(len(lines), 3)
        self.assert_code(self.finish(process, timeout=90), 0)

    def frozen_agent(self, process, node):
        agent = next(worker.agent for worker in map(worker_of, self.workers_of_the_start()) if worker.node == node)
        self.freeze(agent)
        return agent

    def freeze(self, pid):
        os.kill(pid, signal.SIGSTOP)
        self.assertTrue(wait_until(lambda: "T" in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]))

    def test_an_agent_that_is_frozen_for_a_while(self):
        process = self.launch("--nnodes", "2:3", ends=9)
        self.running(process, 0, 3)
        before = self.workers_of_the_start()
        agent = self.frozen_agent(process, 1)
        time.sleep(3)
        os.kill(agent, signal.SIGCONT)
        time.sleep(1)
        self.assertEqual(sorted(self.workers(0)), before)
        self.interrupt(process)
        done = self.finish(process)
        self.assert_code(done, 130)
        self.assertNotRegex(done.err, "no heartbeat|closed the connection")  # the agent may have been silent for a little more than 3 s

    def test_an_agent_that_stays_frozen(self):
        # With a stop grace of 1 s attempt 1 begins before the host has a new agent.
        process = self.launch("--node-timeout", "3s", "--master-timeout", "3s", "--nnodes", "2:3")
        self.running(process, 0, 3)
        self.frozen_agent(process, 1)
        began = time.monotonic()
        lines = self.running(process, 1, 2)  # the host is reachable, so the master proves at once that no worker is left there
        self.assertLess(time.monotonic() - began, 3 + 2 + 14)  # the lease would last 3 + 15 + 5
        self.assertRegex(lines[1], "attempt 1 rank 1/2 node 1/2 ")
        self.assert_code(self.finish(process), 0)

    def test_the_master_is_frozen_for_a_while(self):
        process = self.launch("--nnodes", "2:3", ends=9)
        self.running(process, 0, 3)
        before = self.workers_of_the_start()
        master = self.master(process)
        self.freeze(master)
        time.sleep(5)  # the freeze itself
        self.resume(process)
        time.sleep(2)
        self.assertEqual(sorted(self.workers(0)), before)
        self.interrupt(process)
        done = self.finish(process)
        self.assert_code(done, 130)
        self.assertNotIn("was lost", done.err)

    def test_the_master_is_frozen_for_too_long(self):
        process = self.launch("--node-timeout", "3s", "--master-timeout", "3s")
        self.running(process, 0, 3)
        master = self.master(process)
        self.freeze(master)
        self.assertTrue(wait_until(lambda: not self.workers(0)), self.workers(0))
        self.resume(process)
        done = self.finish(process)
        self.assert_code(done, 113)
        self.assertIn("its agent heard nothing from this ddplaunch for --master-timeout, or lost the link, and ended its workers", done.err)

    def test_a_slow_link(self):
        for machine in self.machines.machines.values():
            done = machine.run("tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "150ms", user="root", check=False)
            if done.returncode != 0:
                self.skipTest(f"no netem here: {done.stderr.strip()}")
        done = self.finish(self.launch(ends=0))
        self.assert_code(done, 0)
        self.assertEqual(done.out.count("attempt 0 rank"), 3)

    def test_the_trainer_continues_from_its_checkpoint(self):
        shared = self.directory("checkpoints")
        process = self.start(*self.TIMES, "train", "--device", "cpu", "--data", "synthetic", "--limit", 30000, "--batch-size", 20, "--epochs", 1,
                             "--checkpoint-dir", shared, "--checkpoint-every", 20, "--resume", "auto")
        self.assertTrue(wait_until(lambda: len(list(shared.iterdir())) > 1))
        self.machines.cut("n2")
        done = self.finish(process, timeout=200)
        self.assert_code(done, 0)
        self.assertIn("attempt 1: 2 nodes, 2 workers; without 10.76.0.2\n", done.err)
        self.assertRegex(done.out + done.err, r"resuming from")
        self.assertIn("weights equal on 2 ranks", done.out)

    def test_survivors_wait_for_a_rank_0_that_is_cut_off(self):
        # survivors_fence_off.txt has the job that does not wait.
        shared = self.directory("checkpoints")
        # The agent ends rank 0 9 s after the last message; the others notice the loss after 3 s.
        process = self.start("--node-timeout", "3s", "--master-timeout", "9s", "--nnodes", "2:3", "--max-restarts", 2, "train", "--device", "cpu",
                             "--on-peer-loss", "rejoin", "--data", "synthetic", "--limit", 60000, "--batch-size", 20, "--epochs", 100,
                             "--checkpoint-dir", shared, "--checkpoint-every", 20)
        self.assertTrue(wait_until(lambda: len(list(shared.iterdir())) > 1))
        rank0 = next(pid for pid in self.workers_of_the_start() if b"\0RANK=0\0" in pathlib.Path(f"/proc/{pid}/environ").read_bytes())
        self.machines.cut("n1")
        said = ""
        for line in process.stderr:
            said += line
            if "attempt 1: 2 nodes, 2 workers; without 10.76.0.1" in line:
                break
        self.assertNotIn(rank0, self.workers(0), f"rank 0 of attempt 0 may write a checkpoint beside attempt 1\n{said}")
        self.assertIn("waiting for the end of the lease of 10.76.0.1, whose workers may still write a checkpoint (--fence)\n", said)
        self.interrupt(process)
        self.assert_code(self.finish(process, timeout=90), 130)


if __name__ == "__main__":
    main_side_by_side(4)
