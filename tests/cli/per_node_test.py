#!/usr/bin/env python3
"""Tests per-node mode: each of several ddplaunch processes on this machine is one node of a job."""

import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import census
from tests.support.launch import DDPLAUNCH, Outcome, live_processes_with, main, sender, wait_until
from tests.support.per_node import PerNodeTest
from tests.support.ports import free_port

TOKEN = "0123456789abcdef0123456789abcdef"
WHO = 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $GROUP_RANK"'


class PerNode(PerNodeTest):
    def setUp(self):
        super().setUp()
        self.nodes = 2

    def node(self, rank, *command, options=(), env=None, address="127.0.0.1", size=None, **popen):
        """Starts the ddplaunch of one node."""
        return self.start(*self.node_options(rank, size or self.nodes, address), *options, *command, env=dict(self.env, **(env or {})), **popen)

    def ends(self, *processes, timeout=60):
        """Waits for all processes, and until no process of the job is left. Returns their outcomes."""
        outcomes = []
        end = time.monotonic() + timeout
        for process in processes:
            out, err = process.communicate(timeout=max(1, end - time.monotonic()))
            outcomes.append(Outcome(process.returncode, out, err, 0))
        self.assertTrue(wait_until(lambda: not live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")),
                        "processes of the job are left")
        return outcomes

    def assert_codes(self, outcomes, *codes):
        self.assertEqual([one.code for one in outcomes], list(codes), repr(outcomes))

    def slurm_task(self, job, step, rank, nodes=("localhost", "n1")):
        """Returns the variables of one task of `srun -N 2 --ntasks-per-node=1` in a job of more nodes."""
        return {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": f"first,{','.join(nodes)}", "SLURM_STEP_ID": str(step),
                "SLURM_STEP_NODELIST": ",".join(nodes), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank), "SLURMD_NODENAME": nodes[rank]}

    def step_node(self, job, step, rank, *command, nodes=("localhost", "n1"), **more):
        """Starts the ddplaunch of one task, without a --job-id, so that job and step tell which nodes belong together."""
        env = dict(self.env, STEP=str(step), TEST_MARK=self.job, **self.slurm_task(job, step, rank, nodes), **more)
        self.job_dir = self.dir / f"job{self.runs}"
        self.runs += 1
        process = subprocess.Popen([DDPLAUNCH, "--job-dir", self.job_dir, *command], env=env, cwd=self.dir, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def agent_of(self, process):
        """Returns the agent below the keeper that `process` has become, or None if there is none yet."""
        return next((pid for pid, (parent, _, _) in census.all_processes().items() if parent == process.pid), None)

    def catches(self, pid, number):
        """Returns whether the process has a handler for that signal."""
        if pid is None:
            return False
        rows = dict(row.split(":", 1) for row in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(rows["SigCgt"], 16) >> (number - 1) & 1 == 1

    def connect(self):
        def attempt():
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=5)
            except ConnectionRefusedError:
                return None
        return wait_until(attempt)


class Jobs(PerNode):
    # ---- working jobs

    def test_ranks_and_world_over_all_nodes(self):
        self.nodes = 3
        command = ["--label", "", "sh", "-c", WHO]
        late = [self.node(rank, "--nproc-per-node", 2, *command) for rank in (2, 1)]
        outcomes = self.ends(self.node(0, "--nproc-per-node", 2, *command), *late)
        self.assert_codes(outcomes, 0, 0, 0)
        self.assertEqual(sorted(outcomes[0].out.splitlines()),
                         [f"{rank} of 6, {rank % 2} of 2, node {rank // 2}" for rank in range(6)])
        self.assertRegex(outcomes[1].err, rf"ddplaunch: joined job {self.job} at 127.0.0.1 port {self.port} as node 2; "
                                          "its output is shown there\n")
        self.assertEqual(outcomes[1].out, "")

    def test_each_node_runs_its_own_command_in_its_own_environment(self):
        show = 'import json, os; print(json.dumps(dict(os.environ)))'
        python = [sys.executable, "-c", show]
        master = self.node(0, "--label", "", "--env", "GIVEN=zero", *python, env={"OWN": "zero", "ONLY_ZERO": "1"})
        other = self.node(1, "--env", "GIVEN=one", "--nproc-per-node", 2, *python,
                          env={"OWN": "one", "DDPLAUNCH_TOKEN_OTHER": "x", "NODE_RANK": "7"})
        outcomes = self.ends(master, other)
        self.assert_codes(outcomes, 0, 0)
        seen = {one["RANK"]: one for one in map(json.loads, outcomes[0].out.splitlines())}
        self.assertEqual(sorted(seen), ["0", "1", "2"])
        self.assertEqual([seen[rank]["OWN"] for rank in "012"], ["zero", "one", "one"])
        self.assertEqual([seen[rank]["GIVEN"] for rank in "012"], ["zero", "one", "one"])
        self.assertNotIn("ONLY_ZERO", seen["1"])
        self.assertEqual({one["MASTER_PORT"] for one in seen.values()}, {seen["0"]["MASTER_PORT"]})
        self.assertNotEqual(seen["0"]["MASTER_PORT"], str(self.port), "the store has a port of its own")
        self.assertEqual([seen[rank]["NODE_RANK"] for rank in "012"], ["0", "1", "1"])
        self.assertEqual({one["DDPLAUNCH_JOB_ID"] for one in seen.values()}, {self.job})

    def test_all_nodes_end_with_the_code_of_the_job(self):
        outcomes = self.ends(self.node(0, "sleep", "60"), self.node(1, "sh", "-c", "exit 7"))
        self.assert_codes(outcomes, 7, 7)
        self.assertRegex(outcomes[1].err.splitlines()[-1], r"^ddplaunch: exit 7: ")
        self.assertRegex(outcomes[0].err.splitlines()[-1], r"^ddplaunch: exit 7: ")

    def test_nodes_without_a_rank_get_one(self):
        self.nodes = 3
        nodes = [self.node(None, "--label", "", "sh", "-c", WHO, address="localhost") for _ in range(3)]
        outcomes = self.ends(*nodes)
        self.assert_codes(outcomes, 0, 0, 0)
        shown = "".join(one.out for one in outcomes)
        self.assertEqual(sorted(shown.splitlines()), [f"{rank} of 3, 0 of 1, node {rank}" for rank in range(3)])

    def test_a_token_over_a_network_address(self):
        (self.dir / "token").write_text(TOKEN + "\n")
        (self.dir / "token").chmod(0o600)
        address = own_address()
        if address is None:
            self.skipTest("this machine has no address but loopback")
        master = self.node(0, "true", env={"DDPLAUNCH_TOKEN": TOKEN}, address=address)
        other = self.node(1, "true", options=["--token-file", self.dir / "token"], address=address)
        self.assert_codes(self.ends(master, other), 0, 0)
        self.assert_codes(self.ends(*[self.node(rank, "--insecure", "true", address=address) for rank in (0, 1)]), 0, 0)

    def test_the_token_is_not_visible_anywhere(self):
        secret = os.urandom(16).hex()
        command = ["sh", "-c", 'echo "${DDPLAUNCH_TOKEN-none}"; touch here.$RANK; while [ ! -e go ]; do sleep 0.05; done']
        nodes = [self.node(rank, "--label", "", *command, env={"DDPLAUNCH_TOKEN": secret}) for rank in (0, 1)]
        self.assertTrue(wait_until(lambda: len(list(self.dir.glob("here.*"))) == 2))
        self.assertEqual(live_processes_with(secret), [])
        (self.dir / "go").touch()
        outcomes = self.ends(*nodes)
        self.assert_codes(outcomes, 0, 0)
        self.assertEqual(outcomes[0].out, "none\nnone\n")

    # ---- environments of schedulers (node_options_test.cc has more of them)

    def test_variables_of_kubeflow(self):
        pods = [{"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)} for rank in (0, 1)]
        outcomes = self.ends(*[self.start("--label", "", "sh", "-c", WHO, env=dict(self.env, **pod)) for pod in pods])
        self.assert_codes(outcomes, 0, 0)
        self.assertEqual(sorted(line.split()[0] for line in "".join(one.out for one in outcomes).splitlines()), ["0", "1"])

    def test_srun_starts_one_ddplaunch_per_node(self):
        job = next(job for job in range(os.getpid(), os.getpid() + 1000) if all(is_free(slurm_port(job, step)) for step in (0, 1)))
        command = ["--label", "", "sh", "-c", f"{WHO}; env | grep -c ^SLURM_; touch here.$STEP.$RANK; "
                   "while [ ! -e go ]; do sleep 0.05; done"]
        for restart in ({}, {"SLURM_RESTART_COUNT": "1"}):  # a requeued job has the same ids, so the same ports
            steps = [[self.step_node(job, step, rank, *command, **restart) for rank in (1, 0)] for step in (0, 1)]
            self.assertTrue(wait_until(lambda: len(list(self.dir.glob("here.*"))) == 4), "two steps do not run at once")
            (self.dir / "go").touch()
            for step, nodes in enumerate(steps):
                other, master = self.ends(*nodes)
                self.assert_codes([other, master], 0, 0)
                self.assertEqual(sorted(master.out.splitlines()), ["0", "0", "0 of 2, 0 of 1, node 0", "1 of 2, 0 of 1, node 1"])
                self.assertIn(f"ddplaunch: in Slurm step {job}.{step}: each of its 2 nodes has its own ddplaunch, and they meet at "
                              f"localhost port {slurm_port(job, step)}; --launcher local runs on this machine only\n", master.err)
                self.assertRegex(other.err, f"^ddplaunch: joined job .* at localhost port {slurm_port(job, step)} as node 1;")
            self.assertTrue(wait_until(lambda: not live_processes_with(f"TEST_MARK={self.job}\0")), "processes are left")
            for mark in (self.dir / "go", *self.dir.glob("here.*")):
                mark.unlink()

    def test_all_nodes_have_the_same_names_in_any_order(self):
        command = ["--nproc-per-node", 1, "true"]
        late = self.node(1, *command)
        first = self.node(0, "--report", self.dir / "report", *command)
        self.assert_codes(self.ends(first, late), 0, 0)
        report = json.loads((self.dir / "report").read_text())
        self.assertEqual(report["job"]["nodes"], [socket.gethostname(), "node1"])

    # ---- refused peers (join_table_test.cc and join_transport_test.cc have more refusals)

    def test_another_token(self):
        master = self.node(0, "true", env={"DDPLAUNCH_TOKEN": TOKEN})
        other = self.end_of(self.node(1, "true", env={"DDPLAUNCH_TOKEN": TOKEN[::-1]}))
        self.assert_code(other, 111)
        self.assertIn("the token differs", other.err)
        self.assertRegex(other.err, r"DDPLAUNCH_TOKEN \(check [0-9a-f]{6}\)")
        master.send_signal(signal.SIGINT)
        outcomes = self.ends(master)
        self.assert_codes(outcomes, 130)
        self.assertIn("its token differs from ours", outcomes[0].err)
        self.assertNotIn(TOKEN, outcomes[0].err + other.err)

    def test_a_rank_in_use_is_refused(self):
        self.nodes = 3
        master = self.node(0, "true")
        first = self.node(1, "sh", "-c", "true")
        self.assertTrue(wait_until(lambda: self.joined(first)))
        second = self.node(1, "true")
        refused = self.end_of(second)
        self.assert_code(refused, 2)
        self.assertIn("node rank 1 has already joined, from 127.0.0.1; give each node its own --node-rank", refused.err)
        outcomes = self.ends(master, self.node(2, "true"))
        self.assert_codes(outcomes, 0, 0)
        self.assertIn("was refused: node rank 1 has already joined", outcomes[0].err)
        self.assertEqual(first.wait(timeout=60), 0)

    def test_unauthenticated_peers_do_not_disturb_the_job(self):
        master = self.node(0, "true")
        strangers = []
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"hello\n"):
            strangers.append(self.connect())
            strangers[-1].sendall(words)
        outcomes = self.ends(master, self.node(1, "true"))
        for one in strangers:
            one.close()
        self.assert_codes(outcomes, 0, 0)
        self.assertIn("sent HTTP", outcomes[0].err)

    def test_an_unauthenticated_peer_while_stderr_is_not_read(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
        wait = ["sh", "-c", "touch here.$RANK; while [ ! -e go ]; do sleep 0.05; done"]
        master = self.node(0, *wait, options=["--verbose"], stderr=writer)
        os.close(writer)
        with self.connect() as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.assertEqual(stranger.recv(100), b"")
        other = self.node(1, *wait)
        self.assertTrue(wait_until(lambda: len(list(self.dir.glob("here.*"))) == 2), "the master is blocked")
        (self.dir / "go").touch()
        said = b""
        while more := os.read(reader, 65536):
            said += more
        os.close(reader)
        master.communicate(timeout=60)
        self.assertEqual(master.returncode, 0)
        self.assertIn(b"sent HTTP", said)
        self.assert_codes(self.ends(other), 0)

    # ---- ends

    def waiting_nodes(self, count=2):
        """Starts a job whose workers wait to be stopped, and waits until all run."""
        self.nodes = count
        nodes = [self.node(rank, "sh", "-c", "touch here.$RANK; exec sleep 60") for rank in range(count)]
        self.assertTrue(wait_until(lambda: len(list(self.dir.glob("here.*"))) == count))
        return nodes

    def test_a_killed_node_ends_the_job_everywhere(self):
        nodes = self.waiting_nodes(3)
        os.kill(self.agent_of(nodes[2]), signal.SIGKILL)
        outcomes = self.ends(*nodes)
        self.assert_codes(outcomes, 113, 113, 113)

    def test_a_killed_ddplaunch_of_a_node_is_named(self):
        nodes = self.waiting_nodes()
        nodes[1].kill()
        outcomes = self.ends(*nodes)
        self.assert_codes(outcomes, 113, -signal.SIGKILL)
        self.assertEqual(outcomes[0].err.splitlines()[-1], "ddplaunch: exit 113: node node1: its ddplaunch was killed")

    def test_a_killed_master_ends_all_nodes(self):
        nodes = self.waiting_nodes()
        nodes[0].kill()
        outcomes = self.ends(*nodes)
        self.assert_codes(outcomes, -signal.SIGKILL, 113)
        self.assertIn(f"the link to node 0 at 127.0.0.1 port {self.port} was lost", outcomes[1].err)

    def test_ctrl_c_at_the_master_ends_all(self):
        nodes = self.waiting_nodes()
        nodes[0].send_signal(signal.SIGINT)
        self.assert_codes(self.ends(*nodes), 130, 130)

    def test_a_node_that_is_stopped_is_lost(self):
        nodes = self.waiting_nodes()
        nodes[1].send_signal(signal.SIGTERM)
        outcomes = self.ends(*nodes)
        self.assert_codes(outcomes, 113, 143)
        by = f"stopped by SIGTERM from {sender()}"
        self.assertEqual(outcomes[0].err.splitlines()[-1], f"ddplaunch: exit 113: node node1: its ddplaunch was {by}")
        self.assertEqual(outcomes[1].err.splitlines()[-1], f"ddplaunch: exit 143: {by}; the job has lost this node")

    def test_a_sigterm_to_all_nodes_is_one_stop(self):
        nodes = self.waiting_nodes(3)
        for node in reversed(nodes):  # sigterm_of_all_nodes*.txt have more orders
            node.send_signal(signal.SIGTERM)
        outcomes = self.ends(*nodes)
        self.assert_codes(outcomes, 143, 143, 143)
        self.assertEqual(outcomes[0].err.splitlines()[-1], f"ddplaunch: exit 143: stopped by SIGTERM from {sender()}")

    def test_a_node_that_is_stopped_while_it_waits(self):
        node = self.node(1, "true")
        self.assertTrue(wait_until(lambda: self.catches(self.agent_of(node), signal.SIGTERM)))
        node.send_signal(signal.SIGHUP)
        outcomes = self.ends(node)
        self.assert_codes(outcomes, 129)
        self.assertEqual(outcomes[0].err.splitlines()[-1],
                         f"ddplaunch: exit 129: stopped by SIGHUP from {sender()} while it waited for node 0 at 127.0.0.1 port {self.port}")

    def test_ctrl_c_at_the_master_names_a_node_that_has_not_joined(self):
        master = self.node(0, "true", options=["-v"])
        while ": agent on " not in (line := master.stderr.readline()):
            self.assertTrue(line, "the master has ended")
        master.send_signal(signal.SIGINT)
        outcomes = self.ends(master)
        self.assert_codes(outcomes, 130)
        # The agent of this node may still be checking the job.
        self.assertRegex(outcomes[0].err.splitlines()[-1], r"^ddplaunch: exit 130: stopped by SIGINT from \S+ \(pid \d+ of \S+ \S+\) while waiting for "
                                                           r"[12] of 2 nodes: .*\bnode1 \(has not joined\)$")

    def test_a_restarted_node_joins_again(self):
        script = self.script("worker.sh", """#!/bin/sh
touch here.$RANK.$TORCHELASTIC_RESTART_COUNT
[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && exec sleep 60
echo "$RANK of $WORLD_SIZE again"
""")
        master = self.node(0, "--max-restarts", 1, "--label", "", script)
        first = self.node(1, script)
        self.assertTrue(wait_until(lambda: len(list(self.dir.glob("here.*"))) == 2))
        os.kill(self.agent_of(first), signal.SIGKILL)
        first.wait(timeout=60)
        outcomes = self.ends(master, self.node(1, script), timeout=90)
        self.assert_codes(outcomes, 0, 0)
        self.assertEqual(sorted(outcomes[0].out.splitlines()), ["0 of 2 again", "1 of 2 again"])

    def joined(self, process):
        """Returns whether the process has reported that it joined. Consumes that line of its stderr."""
        if not select.select([process.stderr], [], [], 0)[0]:
            return False
        return b"joined job" in os.read(process.stderr.fileno(), 4096)


class Messages(PerNode):
    """Jobs that do not begin."""

    def test_srun_without_a_token(self):
        for rank in (0, 1):
            done = self.ends(self.step_node(7, 0, rank, "true", nodes=("n0", "n1")))[0]
            self.assert_code(done, 2)
            self.assertEqual(done.err.splitlines()[-1],
                             "ddplaunch: exit 2: node 0 is at n0, so all nodes need the same token: write export "
                             "DDPLAUNCH_TOKEN=$(openssl rand -hex 32) before srun in the batch script (srun --export=NONE would "
                             "not pass it on)")
            self.assertEqual(len(done.err.splitlines()), 2 - rank)
            self.assertFalse(self.job_dir.exists())

    def test_srun_with_a_node_name_that_does_not_resolve(self):
        done = self.ends(self.step_node(7, 0, 1, "--start-timeout", "5s", "true", nodes=("no-such-host.invalid", "n1"),
                                        DDPLAUNCH_TOKEN=TOKEN))[0]
        self.assert_code(done, 112)
        self.assertRegex(done.err, "cannot resolve no-such-host.invalid: .*; check the name, or give all nodes another --master-addr\n")

    def test_a_master_address_that_does_not_resolve_is_reported_at_once(self):
        done = self.ends(self.node(0, "--start-timeout", "5s", "true", address="no-such-host.invalid",
                                   env={"DDPLAUNCH_TOKEN": TOKEN}))[0]
        self.assert_code(done, 112)
        self.assertEqual(done.err.splitlines()[0], "ddplaunch: warning: --master-addr no-such-host.invalid does not resolve on this "
                                                   "machine; the other nodes must be able to reach it")
        self.assertIn(f"ddplaunch: exit 112: node node1: no ddplaunch of node 1 has joined at no-such-host.invalid:{self.port}; ", done.err)

    def test_node_0_on_a_machine_without_its_address_is_named_at_once(self):
        done = self.ends(self.node(0, "--insecure", "--start-timeout", "1s", "true", address="192.0.2.1"))[0]
        self.assert_code(done, 112)
        self.assertEqual(done.err.splitlines()[0],
                         "ddplaunch: warning: --master-addr 192.0.2.1 is no address of this machine: is --node-rank 0 right here? "
                         "(It is where NAT or a service leads to this machine.)")

    def test_another_node_on_the_machine_of_node_0_is_named_before_the_limit(self):
        here = f"port {self.port}, which is this machine, but nothing listens there"
        expected = {"localhost": f"{here}; if node 0 is elsewhere, give all nodes its name or address as --master-addr ("}
        if own := own_address():
            expected[own] = f"{here}: is --node-rank 1 right here? ("
        waiting = {address: self.node(1, "--insecure", "true", address=address) for address in expected}
        for address, text in expected.items():
            self.assertIn(f"waiting for node 0 at {address} {text}", waiting[address].stderr.readline())
            waiting[address].terminate()
        self.ends(*waiting.values())

    def test_node_0_that_only_its_machine_reaches_says_so(self):
        done = self.ends(self.node(0, "--start-timeout", "1s", "true", address="localhost"))[0]
        self.assert_code(done, 112)
        self.assertIn(f"no ddplaunch of node 1 has joined at localhost:{self.port} (only this machine reaches it: nodes elsewhere "
                      "need its name or address as --master-addr); ", done.err.splitlines()[-1])

    def test_a_network_address_without_a_token_is_refused(self):
        for rank in (0, 1):
            done = self.ends(self.node(rank, "true", address="10.0.0.2"))[0]
            self.assert_code(done, 2)
            self.assertIn("node 0 is at 10.0.0.2, so all nodes need the same token", done.err)
            self.assertIn("openssl rand -hex 32", done.err)
            self.assertIn("--token-file FILE", done.err)

    def test_a_missing_master_is_reported(self):
        done = self.ends(self.node(1, "true", options=["--start-timeout", "1s"]))[0]
        self.assert_code(done, 112)
        self.assertIn("no master answered in time", done.err)
        self.assertIn("Connection refused", done.err)

    def test_a_port_in_use_is_reported(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", self.port))
            other.listen()
            done = self.ends(self.node(0, "true"))[0]
        self.assert_code(done, 116)
        self.assertRegex(done.err, f"port {self.port} is in use on this machine by .*; give all nodes another --master-port\n")

    def test_a_second_node_0_of_a_job_learns_its_rank(self):
        first = self.node(0, "true")
        self.assertTrue(wait_until(self.listens))
        again = f"a job with the id {self.job} runs already (pid {first.pid} on {socket.gethostname()}); it has node rank 0, so the " \
                "--node-rank of this node is {}; if this is another job, choose another --job-id\n"
        for options, size, rank in (([], 2, "1"), ([], 4, "from 1 to 3"), (["--master-port", free_port()], 2, "1")):
            self.assertTrue(wait_until(lambda: list(self.dir.glob("state/ddplaunch/jobs/*.job"))))
            done = self.end_of(self.node(0, "true", options=options, size=size))
            self.assert_code(done, 2)
            self.assertIn(again.format(rank), done.err)
        env = dict(self.env, XDG_STATE_HOME=str(self.dir / "other"))  # the ids differ, as without --job-id
        done = self.end_of(self.node(0, "true", options=["--job-id", self.job + "-2"], env=env))
        self.assert_code(done, 116)
        self.assertIn(f"by process {first.pid} (ddplaunch); if that is node 0 of this job, the --node-rank of this node is 1; if it is "
                      "another job, give all nodes of this one another --master-port\n", done.err)
        self.assert_codes(self.ends(first, self.node(1, "true")), 0, 0)


def slurm_port(job, step):
    """Returns the port where the nodes of a Slurm step meet (docs/users/per_node.md)."""
    return 20000 + (job * 4943 + step) % 8000


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def own_address():
    """Returns an address of this machine that is not a loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
            address = one.getsockname()[0]
        except OSError:
            return None
    return None if address.startswith("127.") else address


if __name__ == "__main__":
    main()
