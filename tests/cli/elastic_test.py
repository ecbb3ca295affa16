#!/usr/bin/env python3
"""Tests nodes that are lost and nodes that join (docs/users/elastic.md): spares, fewer nodes, hosts that return, growth. Nodes are
sshds on 127.0.0.x. tests/machines tests how a loss appears on the network."""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, Nodes, enter_own_pids, is_running, live_processes_with, main, wait_until
from tests.support.rejoin import workers_of

# Ends with code 0 in the attempt $1. Before that attempt it waits to be stopped.
WAITING = """#!/bin/sh
echo "attempt $TORCHELASTIC_RESTART_COUNT rank $RANK/$WORLD_SIZE node $GROUP_RANK/$GROUP_WORLD_SIZE"
[ "$TORCHELASTIC_RESTART_COUNT" -ge "$1" ] && exit 0
exec sleep 1000
"""


class Elastic(LaunchTest):
    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes.of_class(cls, 3)

    def launch(self, *args):
        return self.start("--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config, "--restart-backoff",
                          "50ms", "--label", "none", "--nproc-per-node", 2, "--env", "OMP_NUM_THREADS=1", *args)

    def agents(self):
        """Returns {node: (pid of the agent, pid of its keeper)}."""
        return {worker.node: (worker.agent, worker.keeper) for worker in workers_of(self.job)}

    def running(self, process, attempt, world):
        """Waits until all ranks of the attempt have printed a line. Returns the lines."""
        lines = []
        while len(lines) < world:
            line = process.stdout.readline()
            if not line:
                self.fail("".join(lines) + process.stderr.read())
            if line.startswith(f"attempt {attempt} "):
                lines.append(line)
        return sorted(lines)

    def lose(self, node):
        self.assertTrue(wait_until(lambda: node in self.agents()))
        os.kill(self.agents()[node][0], signal.SIGKILL)

    def waiting(self, attempts):
        return self.script("waiting.sh", WAITING), attempts

    def test_a_spare_inherits_the_slot(self):
        process = self.launch("--nnodes", 2, "--spares", 1, *self.waiting(1))
        self.running(process, 0, 4)
        began = time.monotonic()
        self.lose(0)
        lines = self.running(process, 1, 4)
        self.assertLess(time.monotonic() - began, 24)  # the keeper has reported, so the job does not wait for the lease of 25 s
        self.assertEqual(lines, [f"attempt 1 rank {rank}/4 node {rank // 2}/2\n" for rank in range(4)])
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertIn(f"{self.nodes.hosts[2]} is a spare\n", done.err)
        self.assertRegex(done.err, r"node 127\.0\.0\.2: .*; restart 1 of 3 in 50 ms\n")
        self.assertIn("attempt 1: 2 nodes, 4 workers; without 127.0.0.2; with 127.0.0.4\n", done.err)

    def test_a_job_shrinks_and_the_host_returns(self):
        process = self.launch("--nnodes", "2:3", "--scale-up", "now", *self.waiting(2))
        self.running(process, 0, 6)
        self.lose(1)
        lines = self.running(process, 1, 4)
        self.assertEqual(lines, [f"attempt 1 rank {rank}/4 node {rank // 2}/2\n" for rank in range(4)])
        lines = self.running(process, 2, 6)  # the host is called back after 5 s and joins
        self.assertEqual(lines, [f"attempt 2 rank {rank}/6 node {rank // 2}/3\n" for rank in range(6)])
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertIn("127.0.0.3 joined\n", done.err)
        self.assertIn("the job grows from 2 to 3 nodes (--scale-up now)\n", done.err)

    def test_agent_and_keeper_are_killed_at_once(self):
        leaving = self.script("leaving.sh", WAITING.replace("exec sleep", "setsid tail -f /dev/null >/dev/null 2>&1 &\nexec sleep"))

        def left():
            return [pid for pid, words in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0") if "tail" in words]
        process = self.launch("--nnodes", 2, "--max-restarts", 1, leaving, 1)
        self.running(process, 0, 4)
        self.assertTrue(wait_until(lambda: 1 in self.agents() and len(left()) == 4))
        agent, keeper = self.agents()[1]
        began = time.monotonic()
        os.kill(keeper, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        os.kill(keeper, signal.SIGKILL)
        lines = self.running(process, 1, 4)
        self.assertLess(time.monotonic() - began, 24)  # the lease is 25 s, but the next agent has searched the host
        self.assertEqual(left(), [])
        self.assertEqual(lines, [f"attempt 1 rank {rank}/4 node {rank // 2}/2\n" for rank in range(4)])
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertNotIn("the lease", done.err)

    def test_the_job_starts_without_an_unreachable_host(self):
        hosts = self.dir / "hosts"
        hosts.write_text(self.nodes.hostfile.read_text() + "127.0.0.250\n")
        process = self.start("--hostfile", hosts, "--ssh-config", self.nodes.ssh_config, "--nnodes", "2:4", "--label", "none",
                             "--nproc-per-node", 1, "--env", "OMP_NUM_THREADS=1", *self.waiting(0))
        self.running(process, 0, 3)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertIn("warning: the job starts without 127.0.0.250: ", done.err)

    def test_standard_input_ends_with_the_node_that_read_it(self):
        reader = self.script("reader.sh", '#!/bin/sh\necho "attempt $TORCHELASTIC_RESTART_COUNT rank $RANK"\n'
                             '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && exec sleep 1000\n[ "$RANK" = 0 ] && cat\nexit 0\n')
        (self.dir / "in").write_text("one\n")
        with open(self.dir / "in", encoding="utf-8") as given:
            process = self.start("--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config, "--nnodes", 1, "--spares", 1,
                                 "--restart-backoff", "50ms", "--label", "none", "--nproc-per-node", 2, "--env", "OMP_NUM_THREADS=1",
                                 reader, stdin=given)
        self.running(process, 0, 2)
        self.lose(0)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertNotIn("one", done.out)

    def test_ctrl_c_while_the_job_grows_is_a_graceful_stop(self):
        slow = self.script("slow.sh", '#!/bin/sh\ntrap "sleep 1; echo saved $RANK; exit 0" TERM\n'
                           'echo "attempt $TORCHELASTIC_RESTART_COUNT rank $RANK"\nwhile :; do sleep 0.1; done\n')
        process = self.launch("--nnodes", "1:2", "--scale-up", "now", "--max-restarts", 2, slow)
        self.running(process, 0, 4)
        self.lose(1)
        self.running(process, 1, 2)
        for line in process.stderr:
            if "the job grows" in line:
                break
        process.send_signal(signal.SIGINT)
        done = self.finish(process)
        self.assert_code(done, 130)
        self.assertIn("saved 0", done.out)

    def launch_on_this_machine(self, *args):
        return self.start("--host", "localhost:1", "--max-restarts", 1, "--restart-backoff", "50ms", "--label", "none",
                          "--node-timeout", "3s", "--master-timeout", "3s", "--env", "OMP_NUM_THREADS=1", *args)

    def test_an_agent_that_freezes_as_its_workers_start(self):
        # The worker itself freezes the agent, before any heartbeat.
        frozen = self.dir / "frozen"
        freezing = self.script("freezing.sh", '#!/bin/sh\necho "attempt $TORCHELASTIC_RESTART_COUNT rank 0"\n'
                               f'[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && echo $$ >{frozen} && kill -STOP $PPID && exec sleep 1000\nexit 0\n')
        process = self.launch_on_this_machine(freezing)
        self.running(process, 1, 1)
        self.assertFalse(is_running(int(frozen.read_text())), "two attempts run beside each other")
        self.assert_code(self.finish(process), 0)

    def test_ctrl_c_while_a_node_is_waited_for(self):
        process = self.launch("--nnodes", 3, "--max-restarts", 2, *self.waiting(9))
        self.running(process, 0, 6)
        self.lose(1)
        for line in process.stderr:
            if "waiting for nodes" in line:
                break
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process), 130)


if __name__ == "__main__":
    enter_own_pids()
    main()
