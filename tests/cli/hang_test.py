#!/usr/bin/env python3
"""Tests --hang-timeout: it finds, names and ends jobs without progress, and does not touch jobs that progress."""

import pathlib
import re
import shutil
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch
from tests.support.launch import LaunchTest, Nodes, main, wait_until
from tests.support.ports import free_port

HUNG = 117
SEEMS = "ddplaunch: the job seems to hang; inspecting the workers (at most 15 s)\n"
NOTHING = r"the job hung: no worker printed anything or used CPU time for (\d+(?:\.\d)?) s"

# Rank 1 waits in poll, the others sleep.
UNUSUAL_ONE = """#!/bin/sh
[ "$RANK" = 1 ] && exec python3 -S -c 'import select; select.poll().poll()'
exec sleep 1000
"""
COMPUTES = """#!/bin/sh
[ "$RANK" = 1 ] || exec sleep "$1"
end=$(($(date +%s) + $1))
while [ "$(date +%s)" -lt $end ]; do :; done
"""
PRINTS = """#!/bin/sh
[ "$RANK" = 1 ] || exec sleep "$1"
for i in $(seq $((2 * $1))); do echo "step $i" >&2; sleep 0.5; done
"""
TORCH = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
if rank == 1:
    time.sleep(1000)  # never comes to the second one
dist.all_reduce(torch.ones(1))
"""

# Makes a group on a separate port. No rank serves that port while the agent serves MASTER_PORT.
SECOND_STORE = """
import os, sys, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
"""


class HangTest(LaunchTest):
    def setUp(self):
        super().setUp()
        self.env["OMP_NUM_THREADS"] = "1"

    def path_without_debuggers(self):
        """Returns a PATH on which all programs but gdb and py-spy are found."""
        bare = self.dir / "bin"
        bare.mkdir()
        for directory in ("/bin", "/usr/bin"):
            for program in pathlib.Path(directory).iterdir():
                if program.name not in ("gdb", "py-spy") and not (bare / program.name).exists():
                    (bare / program.name).symlink_to(program)
        return str(bare)

    def hang_text(self, rank, attempt=0):
        return (self.job_dir / f"attempt_{attempt}/hang_rank_{rank:05}.txt").read_text()

    def skip_unless_gdb_may_attach(self):
        """Containers and hardened machines forbid attaching; then the file says so."""
        if re.search(r"(?i)ptrace: .*not permitted|Could not attach", self.hang_text(0)):
            self.skipTest("gdb may not attach to processes here")

    def seconds_said(self, done):
        said = re.search(NOTHING, done.err)
        self.assertIsNotNone(said, repr(done))
        return float(said.group(1))

    def assert_hung(self, done, *lines):
        self.assert_code(done, HUNG)
        self.assertIn(SEEMS, done.err)
        root = re.search(r"  root cause: " + NOTHING + r"\n((?:    .*\n)+)", done.err)
        self.assertIsNotNone(root, repr(done))
        said = [line.strip() for line in root.group(2).splitlines()]
        self.assertEqual(said[:-1], list(lines), repr(done))
        self.assertEqual(said[-1], f"stacks and state of each rank: {self.job_dir}/attempt_0/hang_rank_*.txt")
        self.assertRegex(done.err, r"\nddplaunch: exit 117: " + NOTHING + r"\n$")


class OneMachine(HangTest):
    def test_a_hang_before_any_output(self):
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "2s", "sleep", 1000,
                            env=dict(self.env, PATH=self.path_without_debuggers()))
        self.assert_hung(done, "ranks 0-1 on localhost: sleeping in nanosleep")
        self.assertGreaterEqual(self.seconds_said(done), 2)
        self.assertLess(done.seconds, 20)
        for rank in (0, 1):
            text = self.hang_text(rank)
            self.assertRegex(text, rf"^rank {rank}, pid \d+: sleeping in nanosleep\nprocesses:\n  \d+ sleep: ")
            self.assertIn("  1 x sleep: sleeping in nanosleep\n", text)
            self.assertIn("no stacks: neither py-spy nor gdb was found on this node (`pip install py-spy` where the "
                          "workers' python is)\n", text)

    def test_a_rank_that_worked_and_exited_is_no_activity(self):
        # Uneven data: the ended rank's CPU time, and that of a child that it left behind, are not of now.
        works = "import time\nwhile time.process_time() < 0.6: pass\n"
        env = dict(self.env, PATH=self.path_without_debuggers())
        for name, extra in (("alone", ""), ("child", "(exec sleep 60) &\n"), ("busy child", f"python3 -c '{works}' &\nwait\n")):
            with self.subTest(name):
                script = self.script("uneven.sh", f"#!/bin/sh\n[ $RANK = 1 ] && exec sleep 1000\n{extra}exec python3 -c '{works}'\n")
                done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "2s", script, env=env)
                self.assertRegex(done.err, r"  root cause: the job hung: no worker [^\n]*\n    rank 1 on localhost: sleeping in nanosleep\n")
                self.assert_code(done, HUNG)
                self.assertLess(done.seconds, 12)
                self.assertRegex(done.err, r"  note: rank 0 on localhost exited 0, \S+ s earlier; the others still ran, as with "
                                           r"unequal amounts of data\n")

    def test_off_by_default(self):
        done = self.run_job("--nproc-per-node", 2, "sleep", 3)
        self.assert_code(done, 0)

    def test_a_stopped_worker_is_named(self):
        script = self.script("worker.sh", "#!/bin/sh\n[ $RANK = 1 ] && kill -STOP $$\nexec sleep 1000\n")
        done = self.run_job("--nproc-per-node", 3, "--hang-timeout", "2s", script)
        self.assert_hung(done, "rank 1 on localhost: stopped by a signal",
                         "ranks 0,2 on localhost: sleeping in nanosleep")

    @unittest.skipUnless(shutil.which("gdb"), "no gdb here")
    def test_gdb_shows_the_stacks(self):
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "2s", self.script("worker.sh", UNUSUAL_ONE))
        self.assert_hung(done, "rank 0 on localhost: sleeping in nanosleep", "rank 1 on localhost: sleeping in poll")
        self.skip_unless_gdb_may_attach()
        for rank in (0, 1):
            self.assertRegex(self.hang_text(rank), r"(?m)^== gdb, pid \d+\n")
            self.assertRegex(self.hang_text(rank), r"(?m)^#\d+ .*(poll|nanosleep)")
        self.assertIn("no Python stack: py-spy was not found on this node", self.hang_text(1))

    def test_py_spy_of_the_worker_environment_is_used(self):
        tools = self.dir / "venv"
        tools.mkdir()
        (tools / "py-spy").write_text("#!/bin/sh\necho \"args $*\"; env; exit 3\n")
        (tools / "py-spy").chmod(0o755)
        (tools / "gdb").write_text("#!/bin/sh\nsleep 1000 & sleep 1000\n")  # a tool that never ends
        (tools / "gdb").chmod(0o755)
        done = self.run_job("--nproc-per-node", 1, "--hang-timeout", "2s", "--env", "LD_PRELOAD=",
                            "python3", "-S", "-c", "import time; time.sleep(1000)",
                            env=dict(self.env, PATH=f"{tools}:{self.env['PATH']}"))
        self.assert_code(done, HUNG)
        text = self.hang_text(0)
        self.assertRegex(text, r"(?m)^== py-spy, pid (\d+)\nargs dump --pid \1\n")
        self.assertIn("(py-spy: it exited 3)\n", text)
        self.assertNotIn("DDPLAUNCH_JOB_ID", text)
        self.assertNotIn("LD_PRELOAD", text)
        self.assertIn("(gdb: it did not end in time and was killed)\n", text)

    def test_a_hang_of_a_worker_below_a_shell_is_found(self):
        script = self.script("worker.sh", "#!/bin/sh\npython3 -S -c 'import select; select.poll().poll()'\necho late\n")
        done = self.run_job("--nproc-per-node", 1, "--hang-timeout", "2s", script)
        self.assert_hung(done, "rank 0 on localhost: sleeping in poll")

    def test_a_blocked_reader_is_no_hang(self):
        # The test does not read the output, so ddplaunch blocks the workers.
        script = self.script("worker.sh", "#!/bin/sh\nhead -c 20000000 /dev/zero | tr '\\0' x | fold -w 100\n")
        process = self.start("--nproc-per-node", 1, "--hang-timeout", "1s", script)
        self.assertTrue(wait_until(lambda: (self.job_dir / "attempt_0/rank_00000.stdout").exists()))
        time.sleep(3)  # three times the timeout
        self.assertIsNone(process.poll())
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(done.out.count("x"), 20000000)

    def test_ctrl_c_while_the_workers_are_inspected(self):
        tools = self.dir / "venv"
        tools.mkdir()
        (tools / "gdb").write_text("#!/bin/sh\ntouch \"$(dirname \"$0\")/called\"; sleep 1000\n")
        (tools / "gdb").chmod(0o755)
        process = self.start("--nproc-per-node", 1, "--hang-timeout", "1s", "sleep", 1000,
                             env=dict(self.env, PATH=f"{tools}:{self.env['PATH']}"))
        self.assertTrue(wait_until((tools / "called").exists, 20))
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        done = self.finish(process, began=began)
        self.assert_code(done, 130)
        self.assertLess(done.seconds, 5)

    @unittest.skipUnless(pytorch.can_join_store(), pytorch.why_not())
    def test_torch_with_a_rank_that_never_joins(self):
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "3s", "/usr/bin/python3",
                            self.script("train.py", TORCH), env=dict(self.env, PATH=self.path_without_debuggers(), **pytorch.environment()))
        self.assert_code(done, HUNG)
        self.assertIn("rank 1 on localhost: sleeping in nanosleep\n", done.err)
        self.assertIn("rank 0 on localhost: sleeping in futex\n", done.err)

    @unittest.skipUnless(pytorch.can_join_store() and shutil.which("gdb"), pytorch.why_not() or "no gdb here")
    def test_a_store_without_a_server_gets_a_hint(self):
        port = free_port()
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "3s", "/usr/bin/python3",
                            self.script("train.py", SECOND_STORE), port, env=dict(self.env, **pytorch.environment()))
        self.assert_code(done, HUNG)
        self.skip_unless_gdb_may_attach()
        if "ranks 0-1 on localhost: sleeping in nanosleep\n" in done.err:
            self.skipTest("both ranks were sampled while they waited for their next connection attempt")
        self.assertRegex(done.err, r"    hint: rank(s 0,1 are| [01] is) still connecting to a store\. If its port is not "
                                   r"MASTER_PORT, no process serves it while TORCHELASTIC_USE_AGENT_STORE is True: "
                         r"try --store worker \(docs/users/store\.md\)\n")


class NoHang(HangTest):
    """Jobs that do not hang. Each lasts several times its timeout."""

    def check(self, text, *args):
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "1s", self.script("worker.sh", text), 4, *args)
        self.assert_code(done, 0)
        self.assertNotIn("hang", done.err)

    def test_one_rank_computes(self):
        self.check(COMPUTES)

    def test_one_rank_prints_now_and_then(self):
        self.check(PRINTS)

    def test_a_grandchild_computes(self):
        inner = self.script("inner.sh", COMPUTES)
        self.check(f'#!/bin/sh\n[ "$RANK" = 1 ] || exec sleep "$1"\nsh -c "{inner} $1"\nexit $?\n')

    def test_busy_waiting_ranks_are_not_found(self):
        # This is the documented limit: waiting with the CPU at full speed looks like work.
        self.check(COMPUTES.replace('[ "$RANK" = 1 ] || exec sleep "$1"\n', ""))


class OverSsh(HangTest):
    def setUp(self):
        super().setUp()
        self.nodes = Nodes(self, 2)
        self.options = ["--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config]

    def test_all_ranks_sleep(self):
        done = self.run_job(*self.options, "--nproc-per-node", 2, "--hang-timeout", "3s",
                            self.script("worker.sh", UNUSUAL_ONE))
        first, second = self.nodes.hosts[:2]
        self.assert_hung(done, f"rank 1 on {first}: sleeping in poll",
                         f"ranks 0,2-3 on {first} and {second}: sleeping in nanosleep")
        self.assertGreaterEqual(self.seconds_said(done), 3)
        for rank in range(4):
            self.assertRegex(self.hang_text(rank), rf"^rank {rank}, pid \d+: ")

    def test_a_node_that_has_answered_waits_for_the_others(self):
        tools = self.dir / "venv"
        tools.mkdir()
        (tools / "gdb").write_text("#!/bin/sh\nfor pid; do grep -qz '^RANK=0$' /proc/$pid/environ 2>/dev/null && "
                                   "exec sleep 6; done\nexec sleep 2\n")
        (tools / "gdb").chmod(0o755)
        done = self.run_job(*self.options, "--nproc-per-node", 1, "--hang-timeout", "1s", "sleep", 1000,
                            env=dict(self.env, PATH=f"{tools}:{self.env['PATH']}"))
        first, second = self.nodes.hosts[:2]
        self.assert_hung(done, f"ranks 0-1 on {first} and {second}: sleeping in nanosleep")
        self.assertGreater(done.seconds, 7)
        self.assertNotIn("makes progress again", done.err)


if __name__ == "__main__":
    main()
