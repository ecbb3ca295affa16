#!/usr/bin/env python3
"""Tests --hang-timeout: it finds, names and ends jobs without progress, and does not touch jobs that progress."""

import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch
from tests.support.launch import DDPLAUNCH, LaunchTest, Nodes, main, wait_until
from tests.support.ports import free_port
from tests.support.terminal import Terminal, pyte

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

# The argument says what rank 2 does; the others wait in the sixth all-reduce. The verdicts on more kinds are in torch_record_test.cc.
COLLECTIVES = """
import os, sys, threading, time
import torch.distributed as dist
kind, rank = sys.argv[1], int(os.environ["RANK"])
def all_reduce(sequence):
    dist.record("all_reduce", sequence, sequence < 6, 8)
    if sequence == 6: time.sleep(1000)
for step in range(1, 6):
    all_reduce(step)
if rank == 2:
    if kind == "sleep": time.sleep(1000)
    if kind == "stop": os.kill(os.getpid(), 19)
    if kind == "end": sys.exit(0)
    if kind == "lock": threading.Event().wait()
all_reduce(6)
"""
# The same with PyTorch itself, and what only it can show.
REAL_COLLECTIVES = """
import os, sys, threading, time
import torch
import torch.distributed as dist
kind = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 2], group_desc="pair")
x = torch.ones(8)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, i): time.sleep(1000 if rank == 2 and i > 4 else 0); return i
data = iter(torch.utils.data.DataLoader(Data(), num_workers=1))
for step in range(8):
    if step == 5 and kind == "groups" and rank == 0: dist.all_reduce(x, group=pair)
    if step == 5 and rank == 2:
        if kind in ("sleep", "groups"): time.sleep(1000)
        if kind == "skip": continue
        if kind == "other": dist.broadcast(x, 0)
        if kind == "stop": os.kill(os.getpid(), 19)
        if kind == "lock": threading.Event().wait()
        if kind == "save": torch.save(torch.ones(1 << 20), os.fdopen(os.pipe()[1], "wb"))
    if kind == "loader": next(data)
    dist.all_reduce(x)
dist.barrier()
"""
# The servers of the ranks behind 0 answer in ways of their own.
HOSTILE = """
import os, sys, time
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
def flood(request, response):
    response.body = b"x" * (64 << 20)
answers = {"garbage": lambda request, response: b"\\xff\\x00" * 1000, "closes": lambda request, response: b"",
           "silent": lambda request, response: time.sleep(1000), "flood": flood,
           "deep": lambda request, response: response.set_content("[" * 1000000, "")}
dist.record("all_reduce", 1, False)
if os.environ["RANK"] != "0":
    answer = answers[sys.argv[int(os.environ["RANK"])]]
    for name in ("fr_trace_json", "dump_traceback"): c10d._register_handler(name, answer)
time.sleep(1000)
"""


class HangTest(LaunchTest):
    def setUp(self):
        super().setUp()
        self.env["OMP_NUM_THREADS"] = "1"

    def hide_debuggers(self):
        """Sets a PATH on which all programs but gdb and py-spy are found."""
        bare = self.dir / "bin"
        bare.mkdir()
        for directory in ("/bin", "/usr/bin"):
            for program in pathlib.Path(directory).iterdir():
                if program.name not in ("gdb", "py-spy") and not (bare / program.name).exists():
                    (bare / program.name).symlink_to(program)
        self.env["PATH"] = str(bare)

    def debuggers(self, **tools):
        """Makes programs with these texts, which are found before all others."""
        directory = self.dir / "venv"
        directory.mkdir()
        for name, text in tools.items():
            self.script(f"venv/{name.replace('_', '-')}", text)
        self.env["PATH"] = f"{directory}:{self.env['PATH']}"
        return directory

    def verdict(self, *args, ranks=3, timeout="2s"):
        """Returns what the report of a hang says of the collectives; None: nothing."""
        self.done = self.run_job("--nproc-per-node", ranks, "--hang-timeout", timeout, *args, timeout=120)
        self.assert_code(self.done, HUNG)
        self.assertNotIn("WorkerServer", self.done.err)
        said = re.search(r"\n  collectives: ([^\n]*)\n", self.done.err)
        return re.sub(r"for \d+\.\d s", "for N s", said.group(1)) if said else None

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
        script = self.script("worker.sh", """#!/bin/sh
[ $RANK = 2 ] && kill -STOP $$
[ $RANK = 3 ] && python3 -S -c 'import select; select.poll().poll()' && echo late
exec sleep 1000
""")
        self.hide_debuggers()
        done = self.run_job("--nproc-per-node", 4, "--hang-timeout", "2s", script)
        self.assert_hung(done, "rank 2 on localhost: stopped by a signal", "rank 3 on localhost: sleeping in poll",
                         "ranks 0-1 on localhost: sleeping in nanosleep")
        self.assertGreaterEqual(self.seconds_said(done), 2)
        self.assertLess(done.seconds, 20)
        for rank in (0, 1):
            text = self.hang_text(rank)
            self.assertRegex(text, rf"^rank {rank}, pid \d+: sleeping in nanosleep\nprocesses:\n  \d+ sleep: ")
            self.assertIn("  1 x sleep: sleeping in nanosleep\n", text)
            self.assertIn("no stacks: neither py-spy nor gdb was found on this node (`pip install py-spy` where the "
                          "workers' python is)\n", text)

    def test_a_rank_that_worked_and_exited_is_no_activity(self):
        # Uneven data: CPU time of the ended rank and of its child, and another child that it left behind, are not of now.
        self.hide_debuggers()
        works = "import time\nwhile time.process_time() < 0.6: pass\n"
        script = self.script("uneven.sh", f"#!/bin/sh\n[ $RANK = 1 ] && exec sleep 1000\n(exec sleep 60) &\npython3 -c '{works}' &\nwait $!\n"
                             f"exec python3 -c '{works}'\n")
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "2s", script)
        self.assertRegex(done.err, r"  root cause: the job hung: no worker [^\n]*\n    rank 1 on localhost: sleeping in nanosleep\n")
        self.assert_code(done, HUNG)
        self.assertLess(done.seconds, 40)
        self.assertRegex(done.err, r"  note: rank 0 on localhost exited 0, \S+ s earlier; the others still ran, as with "
                                   r"unequal amounts of data\n")

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
        self.debuggers(py_spy="#!/bin/sh\necho \"args $*\"; env; exit 3\n", gdb="#!/bin/sh\nexit 0\n")  # inspection_test.cc has one that never ends
        done = self.run_job("--nproc-per-node", 1, "--hang-timeout", "2s", "--env", "LD_PRELOAD=",
                            "python3", "-S", "-c", "import time; time.sleep(1000)")
        self.assert_code(done, HUNG)
        text = self.hang_text(0)
        self.assertRegex(text, r"(?m)^== py-spy, pid (\d+)\nargs dump --pid \1\n")
        self.assertIn("(py-spy: it exited 3)\n", text)
        self.assertNotIn("DDPLAUNCH_JOB_ID", text)
        self.assertNotIn("LD_PRELOAD", text)

    def test_what_nccl_finds_is_one_more_witness(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def answer():
            connection = listener.accept()[0]
            with connection:
                while not self.question.endswith(b"STATUS\n"):
                    self.question += connection.recv(4096)
                ranks = [{"rank": rank, "host": "10.0.0.5", "pid": 70 + rank, "status": {"init_state": 0, "async_error": 0},
                          "collective_counts": {"AllReduce": count}} for rank, count in enumerate((517, 517, 517, 516))]
                communicator = {"hash": "0xae94", "size": 4, "ranks": ranks, "missing_ranks": []}
                connection.sendall(b"SERVER PROTOCOL 2\nOK\nOK\n"
                                   + json.dumps({"nccl_version": "2.30.7", "communicators": [communicator]}).encode())

        self.question = b""
        server = threading.Thread(target=answer, daemon=True)
        server.start()
        self.hide_debuggers()
        done = self.run_job("--nproc-per-node", 1, "--hang-timeout", "2s", "--env", f"NCCL_RAS_ADDR=localhost:{listener.getsockname()[1]}", "sleep", 1000)
        self.assert_code(done, HUNG)
        self.assertEqual(self.question, b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n")
        hang = json.loads((self.job_dir / "report.json").read_text())["hang"]
        self.assertEqual([one["text"] for one in hang["witnesses"] if one["source"] == "NCCL RAS"],
                         ["communicator 0xae94 of 4 ranks: AllReduce called 516 times: rank 3 (process 73 on 10.0.0.5); "
                          "AllReduce called 517 times: ranks 0-2"])
        self.assertEqual((hang["confidence"], hang["ranks"]), ("low", []))  # NCCL alone names nobody
        self.assertIn('"nccl_version": "2.30.7"', self.hang_text(0))

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
        tools = self.debuggers(gdb="#!/bin/sh\ntouch \"$(dirname \"$0\")/called\"; sleep 1000\n")
        process = self.start("--nproc-per-node", 1, "--hang-timeout", "1s", "sleep", 1000)
        self.assertTrue(wait_until((tools / "called").exists))
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        done = self.finish(process, began=began)
        self.assert_code(done, 130)
        self.assertLess(done.seconds, 14)

    @unittest.skipUnless(pytorch.can_join_store(), pytorch.why_not())
    def test_torch_with_a_rank_that_never_joins(self):
        self.hide_debuggers()
        self.env.update(pytorch.environment())
        verdict = self.verdict("/usr/bin/python3", self.script("train.py", TORCH), ranks=2, timeout="3s")
        place = f"at train.py:{TORCH.splitlines().index('    time.sleep(1000)  # never comes to the second one') + 1}"
        self.assertIn(f"rank 1 on localhost: sleeping in nanosleep, {place}\n", self.done.err)
        self.assertIn("rank 0 on localhost: sleeping in futex, at train.py:", self.done.err)
        self.assertRegex(verdict, rf"^rank 1 has not started all_reduce .*that rank 0 waits in.*; rank 1 is {place}$")

    @unittest.skipUnless(pytorch.can_join_store() and shutil.which("gdb"), pytorch.why_not() or "no gdb here")
    def test_a_store_without_a_server_gets_a_hint(self):
        port = free_port()
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "3s", "/usr/bin/python3",
                            self.script("train.py", SECOND_STORE), port, env=dict(self.env, **pytorch.environment()))
        self.assert_code(done, HUNG)
        self.skip_unless_gdb_may_attach()
        if "ranks 0-1 on localhost: sleeping in nanosleep" in done.err:
            self.skipTest("both ranks were sampled while they waited for their next connection attempt")
        self.assertRegex(done.err, r"    hint: rank(s 0,1 are| [01] is) still connecting to a store\. If its port is not "
                                   r"MASTER_PORT, no process serves it while TORCHELASTIC_USE_AGENT_STORE is True: "
                         r"try --store worker \(docs/users/store\.md\)\n")


class PyTorchWorkers(HangTest):
    """The hook that starts PyTorch's worker server in the workers, and the verdict on what the servers tell."""

    def setUp(self):
        super().setUp()
        stand_in = pathlib.Path(__file__).resolve().parents[1] / "support/torch_stand_in"
        self.hide_debuggers()
        self.env["PYTHONPATH"] = str(stand_in)

    def test_the_rank_that_others_wait_for_is_named_with_its_line(self):
        script = self.script("train.py", COLLECTIVES)
        line = {text: number for number, text in enumerate(script.read_text().splitlines(), 1)}
        wait = "rank 2 has not started all_reduce 6 (32 B) that ranks 0-1 wait in for N s; rank 2 is "
        self.assertEqual(self.verdict("python3", script, "sleep"),
                         wait + f'at train.py:{line["""    if kind == "sleep": time.sleep(1000)"""]}')
        self.assertRegex(self.done.err, r"\n    rank 2 on localhost: sleeping in \w+, at train\.py:\d+\n"
                                        r"    ranks 0-1 on localhost: sleeping in \w+, at train\.py:\d+ in all_reduce\n")
        self.assertRegex(self.hang_text(2), r"(?m)^== Python's stacks\n(.*\n)*  File .*train\.py\", line ")

    def test_the_verdict_waits_for_no_debugger(self):
        told = self.dir / "told"
        self.debuggers(gdb=f"#!/bin/sh\nwhile [ ! -e {told} ]; do sleep 0.1; done\necho after the verdict\n")
        verdict = self.verdict("--on", f"hang=cat > {told}.new; mv {told}.new {told}", "python3", self.script("train.py", COLLECTIVES), "sleep")
        self.assertRegex(verdict, "^rank 2 has not started all_reduce 6 ")
        self.assertRegex(self.done.err, r"\nddplaunch: the job makes no progress: rank 2 has not started all_reduce 6 [^\n]*; collecting stacks\n")
        self.assertIn("\nafter the verdict\n", self.hang_text(2))
        self.assertEqual(json.loads(told.read_text())["hang"]["ranks"], [2])

    def test_an_aborted_rank_is_told_with_the_collective_of_the_others(self):
        # As where gloo gets more bytes than it expects.
        text = COLLECTIVES.replace('if kind == "end"', 'if kind == "abort": wait_for(0); wait_for(1); touch(2); os.abort()\n'
                                   '    if kind == "end"').replace(
            "    if sequence == 6: time.sleep(1000)", "    if sequence == 6:\n        touch(rank)\n        wait_for(2)\n        time.sleep(20)\n"
            "        dist.entries[-1]['retired'] = True\n"
            "        raise RuntimeError('[gloo/pair.cc:561] Connection closed by peer [127.0.0.1]:1')").replace("def all_reduce", f"""\
def touch(rank): open(f"{self.dir}/{{rank}}.here", "w").close()
def wait_for(rank):
    while not os.path.exists(f"{self.dir}/{{rank}}.here"): time.sleep(0.01)
def all_reduce""", 1)
        done = self.run_job("--nproc-per-node", 3, "python3", self.script("train.py", text), "abort")
        self.assertRegex(done.err, r"  root cause: rank 2 (.|\n)*\n  collectives: rank 2 left no record; ranks? [01]\S* waits? in all_reduce 6 \(32 B\)"
                                   r"[^\n]*; ranks? [01]\S* (is|are) at train\.py:\d+ in all_reduce\n")

    def test_a_rank_that_was_stopped_or_has_ended_is_named(self):
        script = self.script("train.py", COLLECTIVES)
        wait = "; ranks 0-1 wait in all_reduce 6 (32 B) for N s"
        self.assertEqual(self.verdict("python3", script, "stop"),
                         f"rank 2 left no record{wait}; rank 2 is stopped by a signal")
        self.assertRegex(self.verdict("python3", script, "end"), rf"^rank 2 has ended{re.escape(wait)}; ranks 0-1 are at train\.py:\d+ in all_reduce$")

    def test_a_server_that_answers_badly_harms_nothing(self):
        script = self.script("train.py", HOSTILE)
        self.assertEqual(self.verdict("python3", script, "garbage", "closes", "silent", "flood", "deep", ranks=6),
                         "ranks 1-5 left no record; rank 0 waits in all_reduce 1 (32 B) for N s; "
                         f"rank 0 is at train.py:{len(HOSTILE.splitlines())}")
        self.assertLess(self.done.seconds, 25)

    def verb(self, *args):
        done = subprocess.run([DDPLAUNCH, *args], env=self.env, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_stall_is_told_and_asked_for_and_nothing_is_stopped(self):
        hook = self.dir / "hook"
        process = self.start("--nproc-per-node", 3, "--report-stalls", "2s", "--on",
                             f"hang=(echo $DDPLAUNCH_CAUSE_RANK $DDPLAUNCH_CAUSE; cat) > {hook}.new; mv {hook}.new {hook}",
                             "python3", self.script("train.py", COLLECTIVES), "sleep")
        self.assertTrue(wait_until(hook.exists))
        verdict = r"rank 2 has not started all_reduce 6 \(32 B\) that ranks 0-1 wait in for \d+\.\d s; rank 2 is at train\.py:\d+"
        cause, event = hook.read_text().splitlines()
        self.assertRegex(cause, f"^2 {verdict}$")
        asked = json.loads(self.verb("hang", "--json", self.job))["hang"]
        told = json.loads(event)["hang"]
        status = json.loads(self.verb("status", "--json", self.job))
        self.assertEqual(status["state"], "stalled")
        for one in (told, asked, status["hang"]):
            self.assertRegex(one["text"], f"^{verdict}$")
            self.assertEqual((one["state"], one["confidence"], one["ranks"]), ("stalled", "high", [2]))
            self.assertEqual([witness["source"] for witness in one["witnesses"]], ["flight recorder", "activity", "processes", "processes"])
            self.assertEqual(one["witnesses"][0]["ranks"], 3)
        self.assertRegex(self.verb("hang", self.job), rf"^job {self.job}: no progress for \S+ s\n  {verdict} \(confidence: high\)\n    activity: no worker ")
        self.assertRegex(self.verb("status", self.job), rf"\n  {verdict} \(confidence: high\)\n")
        if pyte is not None:
            terminal = Terminal(self, [DDPLAUNCH, "top", self.job], env=self.env, columns=200, rows=30)
            picture = lambda: "\n".join(row.rstrip() for row in terminal.screen.display)
            self.assertTrue(terminal.until(lambda: re.search(rf"\n▲ {verdict} \(confidence: high\)\n  activity: no worker ", picture())), picture())
        process.send_signal(signal.SIGINT)
        done = self.finish(process)
        if pyte is not None:
            self.assertEqual(terminal.wait(), 0)
        self.assert_code(done, 130)
        self.assertRegex(done.err, rf"ddplaunch: the job has made no progress for \S+ s: {verdict}\nddplaunch:   rank 2 on localhost: sleeping in \w+, at train\.py:\d+\n")
        self.assertRegex(json.loads((self.job_dir / "report.json").read_text())["hang"]["text"], verdict)

    def test_ranks_that_spin_in_a_collective_are_no_progress(self):
        text = COLLECTIVES.replace("if sequence == 6: time.sleep(1000)", "while sequence == 6: pass")
        done = self.verdict("python3", self.script("train.py", text), "sleep")
        self.assertRegex(done, r"^rank 2 has not started all_reduce 6 \(32 B\) that ranks 0-1 wait in for N s; rank 2 is at train\.py:")

    def test_a_rank_that_gives_up_waiting_names_the_rank_that_did_not_come(self):
        # As PyTorch does, ranks 0 and 1 end with an exception, and call the operation retired.
        here = str(self.dir / "here")
        text = COLLECTIVES.replace(
            "    if sequence == 6: time.sleep(1000)", f"    if sequence == 6:\n        while not os.path.exists({here!r}): time.sleep(0.01)\n"
            "        time.sleep(1)\n        dist.entries[-1]['retired'] = True\n"
            "        raise RuntimeError('[gloo/pair.cc:561] Timed out waiting 1000ms for recv operation to complete')").replace(
            'if kind == "sleep": time.sleep(1000)', f'if kind == "sleep": open({here!r}, "w").close(); time.sleep(1000)')
        done = self.run_job("--nproc-per-node", 3, "python3", self.script("train.py", text), "sleep")
        self.assert_code(done, 1)
        verdict = r"rank 2 has not started all_reduce 6 \(32 B\) that ranks? [01]\S* waits? in for \d+\.\d s; rank 2 is at train\.py:\d+"
        self.assertRegex(done.err, rf"  root cause: rank [01] (.|\n)*\n  collectives: {verdict}\n")
        hang = json.loads((self.job_dir / "report.json").read_text())["hang"]
        self.assertEqual(hang["state"], "failed")
        self.assertRegex(hang["text"], f"^{verdict}$")

    def test_an_exception_of_its_own_is_stopped_at_once(self):
        text = COLLECTIVES.replace('if kind == "sleep": time.sleep(1000)', 'if kind == "sleep": raise ValueError("my own")')
        done = self.run_job("--nproc-per-node", 3, "python3", self.script("train.py", text), "sleep")
        self.assert_code(done, 1)
        self.assertIsNone(json.loads((self.job_dir / "report.json").read_text())["hang"])

    def test_a_job_that_works_is_asked_for(self):
        process = self.start("--nproc-per-node", 2, "python3", "-c", "import os, time\nwhile True: print(1); time.sleep(0.2)")
        self.assertTrue(wait_until(lambda: (self.job_dir / "attempt_0/rank_00001.stdout").exists()))
        self.assertRegex(self.verb("hang", self.job), rf"^job {self.job}: its workers are active\n  no rank is known to wait for another ")
        self.assertIsNone(json.loads(self.verb("status", "--json", self.job))["hang"])
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process), 130)

    def test_no_diagnosis_turns_it_off(self):
        self.assertIsNone(self.verdict("--no-diagnosis", "python3", self.script("train.py", COLLECTIVES), "sleep"))
        self.assertNotIn("train.py:", self.done.err)

    def test_stacks_tell_it_where_pytorch_has_no_server(self):
        package = self.dir / "site-packages/torch"
        for name, text in (("__init__", ""), ("_C/__init__", ""), ("_C/_distributed_c10d", ""),
                           ("distributed/__init__", "from torch.distributed.distributed_c10d import *\n"),
                           ("distributed/distributed_c10d", "import time\ndef all_reduce():\n    time.sleep(1000)\n")):
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / f"{name}.py").write_text(text)
        self.env["PYTHONPATH"] = str(package.parent)
        script = self.script("train.py", """import ctypes, os, sys, threading, time
import torch.distributed as dist
if os.environ["RANK"] == "2":
    for i in range(150): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    if sys.argv[1] == "gil": ctypes.PyDLL(None).sleep(1000)
    def load(depth): load(depth - 1) if depth > 0 else time.sleep(1000)
    load(500)
dist.all_reduce()
""")
        for kind, verdict in (("sleep", "rank 2 has not started all_reduce that ranks 0-1 wait in; rank 2 is at train.py:6 in load"),
                              ("gil", "rank 2 left no record; ranks 0-1 wait in all_reduce; ranks 0-1 are at train.py:8")):
            with self.subTest(kind):
                self.assertEqual(self.verdict("python3", script, kind), verdict)
                hang = json.loads((self.job_dir / "report.json").read_text())["hang"]
                self.assertEqual((hang["confidence"], hang["ranks"], hang["witnesses"][0]["source"]), ("medium", [2], "stacks"))

    def test_a_second_program_of_the_worker_has_the_server(self):
        script = self.script("worker.sh", f"#!/bin/sh\npython3 -c 'import torch'\nexec python3 {self.script('train.py', COLLECTIVES)} $1\n")
        line = COLLECTIVES.splitlines().index('    if kind == "lock": threading.Event().wait()') + 1
        self.assertEqual(self.verdict(script, "lock"), "rank 2 has not started all_reduce 6 (32 B) that ranks 0-1 wait in for N s; "
                                                       f"rank 2 is waiting for a lock, at train.py:{line}")

    def test_scripts_and_their_children_do_not_see_the_hook(self):
        script = self.script("look.py", "import os, re, subprocess, sys\n"
                             "print(os.environ['PYTHONPATH'], 'DDPLAUNCH_DIAGNOSIS' in os.environ,\n"
                             "      any(re.search('/ddplaunch-[A-Za-z0-9]{6}$', p) for p in sys.path))\n"
                             "if len(sys.argv) < 2: sys.exit(subprocess.call([sys.executable, __file__, 'child']))\n")
        done = self.run_job("--nproc-per-node", 1, "--label", "", "python3", script)
        self.assert_code(done, 0)
        self.assertEqual(done.out, f"{self.env['PYTHONPATH']} False False\n" * 2)

    def test_the_users_own_sitecustomize_is_executed(self):
        own = self.dir / "own"
        own.mkdir()
        (own / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = __file__\n")
        self.env["PYTHONPATH"] = f"{own}:{self.env['PYTHONPATH']}"
        done = self.run_job("--nproc-per-node", 1, "--label", "", "python3", "-c", "import sys; print(customized, sys.modules['sitecustomize'].__file__)")
        self.assert_code(done, 0)
        self.assertEqual(done.out, f"{own}/sitecustomize.py {own}/sitecustomize.py\n")

    def test_forked_children_leave_the_server_to_the_worker(self):
        script = self.script("fork.py", "import os, sys, socket\n"
                             "path = None\n"
                             "for finder in sys.meta_path: path = path or getattr(finder, 'path', None)\n"
                             "if os.fork() == 0:\n    import torch\n    os._exit(os.path.exists(path))\n"
                             "print(os.wait()[1], os.path.exists(path))\n"
                             "import torch\nprint(os.path.exists(path))\n")
        done = self.run_job("--nproc-per-node", 1, "--label", "", "python3", script)
        self.assertEqual(done.out, "0 False\nTrue\n", repr(done))


def has_worker_server(python):
    """Returns whether this interpreter's PyTorch has the server, and a recorder for gloo that the server can tell."""
    code = "from torch._C._distributed_c10d import _WorkerServer, _dump_fr_trace_json"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


NEW_PYTORCH = [python for python in pytorch.joining_interpreters() if has_worker_server(python)]


@unittest.skipUnless(NEW_PYTORCH, f"no PyTorch 2.15 in {pytorch.SYSTEM}; {pytorch.NAMED} may name an interpreter that has it")
class NewPyTorchWorkers(HangTest):
    """The verdict on real hangs of gloo."""

    def setUp(self):
        super().setUp()
        self.hide_debuggers()

    def test_each_kind_of_hang_is_named(self):
        script = self.script("train.py", REAL_COLLECTIVES)
        lines = script.read_text().splitlines()
        late = "rank 2 has not started all_reduce 6 (32 B) that ranks 0-1 wait in for N s; rank 2 is "
        for kind, verdict, word in (
                ("sleep", late + "at train.py:", "time.sleep(1000)"),
                ("skip", "rank 2 called barrier 8 where ranks 0-1 called all_reduce 8 (32 B); rank 2 is at train.py:", "dist.barrier()"),
                ("other", "rank 2 called broadcast 6 (32 B) where ranks 0-1 called all_reduce 6 (32 B); rank 2 is at train.py:",
                 "dist.broadcast(x, 0)"),
                ("stop", "rank 2 left no record; ranks 0-1 wait in all_reduce 6 (32 B) for N s; rank 2 is stopped by a signal", None),
                ("lock", late + "waiting for a lock, at train.py:", "threading.Event().wait()"),
                ("loader", late + "in its data loader, at train.py:", "next(data)"),
                ("save", late + "writing a checkpoint, at train.py:", "torch.save("),
                ("groups", "rank 2 has not started all_reduce 1 (32 B) of group 1 (pair) that rank 0 waits in for N s; "
                 "rank 2 is at train.py:", "time.sleep(1000)")):
            with self.subTest(kind):
                places = [number for number, line in enumerate(lines, 1) if word and word in line]
                self.assertIn(self.verdict(NEW_PYTORCH[-1], script, kind, timeout="4s"), [f"{verdict}{place}" for place in places] or [verdict])

    def test_a_rank_that_comes_to_no_collective_is_named(self):
        text = REAL_COLLECTIVES.replace('dist.init_process_group("gloo")', """
if kind == "join" and os.environ["RANK"] == "2": time.sleep(1000)
dist.init_process_group("gloo")
if kind == "first" and os.environ["RANK"] == "2": time.sleep(1000)
dist.all_reduce(torch.ones(8))
""")
        script = self.script("train.py", text)
        for kind, what in (("join", "init_process_group that ranks 0-1 wait in"), ("first", "all_reduce 1 (32 B) that ranks 0-1 wait in for N s")):
            with self.subTest(kind):
                line = next(number for number, text in enumerate(script.read_text().splitlines(), 1) if f'kind == "{kind}"' in text)
                self.assertEqual(self.verdict(NEW_PYTORCH[-1], script, kind, timeout="8s"), f"rank 2 has not started {what}; rank 2 is at train.py:{line}")

    def test_sizes_for_which_gloo_aborts_are_told(self):
        # Which rank gloo aborts is open. It leaves no record.
        script = self.script("train.py", REAL_COLLECTIVES.replace("    dist.all_reduce(x)\n", "    dist.all_reduce(x if step < 5 or rank != 2 else x[:4])\n"))
        done = self.run_job("--nproc-per-node", 3, NEW_PYTORCH[-1], script, "none", timeout=120)
        self.assertRegex(done.err, r"\n  collectives: [^\n]*all_reduce 6 \((32|16) B\)[^\n]* at train\.py:\d+\n")

    def test_the_time_out_of_a_collective_names_the_rank_that_did_not_come(self):
        text = REAL_COLLECTIVES.replace('init_process_group("gloo")', 'init_process_group("gloo", timeout=__import__("datetime").timedelta(seconds=3))')
        script = self.script("train.py", text)
        done = self.run_job("--nproc-per-node", 3, NEW_PYTORCH[-1], script, "sleep", timeout=120)
        self.assert_code(done, 1)
        self.assertRegex(done.err, r"\n  collectives: rank 2 has not started all_reduce 6 \(32 B\) that ranks? [01]\S* waits? in for \d+\.\d s; rank 2 is at train\.py:\d+\n")


class WatchedLines(HangTest):
    def test_a_line_fails_its_rank_on_the_second_node(self):
        nodes = Nodes(self, 2)
        script = self.script("worker.sh", """#!/bin/sh
printf 'slow '; echo step >&2; echo "rank $RANK"
[ "$RANK" = 3 ] && printf 'step %s: loss nan\\r' 1 2 3
exec sleep 1000
""")
        rule = "step \\d+: loss nan$=fail"
        done = self.run_job("--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--nproc-per-node", 2,
                            "--watch", "^slow rank=report", "--watch", rule, "--stop-grace", "1s", script)
        self.assert_code(done, 1)
        second = nodes.hosts[1]
        what = f"printed \"step 1: loss nan\" (--watch '{rule}')"
        self.assertIn(f"  root cause: rank 3 (local rank 1) on {second}, pid ", done.err)
        self.assertTrue(done.err.endswith(f"ddplaunch: exit 1: rank 3 on {second} {what}\n"), repr(done))
        self.assertIn(f"warning: rank 3 on {second} printed \"slow rank 3\" (--watch '^slow rank=report')\n", done.err)
        self.assertIn(f"warning: --watch '{rule}': 3 lines of rank 3\n", done.err)
        self.assertNotIn("Traceback", done.err)

    def test_a_line_counts_as_a_hang_though_ranks_work(self):
        script = self.script("worker.sh", COMPUTES + "sleep 1000\n")
        self.hide_debuggers()
        done = self.run_job("--nproc-per-node", 2, "--watch", "waiting=hang", "sh", "-c",
                            f"[ $RANK = 1 ] && echo waiting for rank 0; exec {script} 60")
        self.assert_code(done, HUNG)
        self.assertIn("  root cause: the job hung: rank 1 on localhost printed \"waiting for rank 0\" (--watch "
                      "'waiting=hang')\n    rank ", done.err)
        self.assertRegex(self.hang_text(0), r"^rank 0, pid \d+: ")


class NoHang(HangTest):
    """Jobs that do not hang. Each lasts several times its timeout."""

    def check(self, text):
        done = self.run_job("--nproc-per-node", 2, "--hang-timeout", "1s", self.script("worker.sh", text), 3)
        self.assert_code(done, 0)
        self.assertNotIn("hang", done.err)

    def test_one_rank_prints_now_and_then(self):
        self.check(PRINTS)

    def test_a_grandchild_computes(self):
        inner = self.script("inner.sh", COMPUTES)
        self.check(f'#!/bin/sh\n[ "$RANK" = 1 ] || exec sleep "$1"\nsh -c "{inner} $1"\nexit $?\n')

    def test_workers_that_have_finished_report_no_step(self):
        # The last step may arrive behind the hello that says so.
        self.check("""#!/usr/bin/env python3
import json, os, socket, sys, time
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["DDPLAUNCH_CONTROL"][5:])
for word in ({"hello": 1, "pid": 1, "rejoin": True}, {"step": 1}, {"hello": 1, "pid": 1, "rejoin": False}, {"step": 2}):
    link.sendall(json.dumps(word).encode() + b"\\n")
while time.process_time() < float(sys.argv[1]): pass
""")


class OverSsh(HangTest):
    def setUp(self):
        super().setUp()
        self.nodes = Nodes(self, 2)
        self.options = ["--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config]

    def test_all_ranks_sleep(self):
        self.hide_debuggers()
        done = self.run_job(*self.options, "--nproc-per-node", 2, "--hang-timeout", "3s", self.script("worker.sh", UNUSUAL_ONE))
        first, second = self.nodes.hosts[:2]
        self.assert_hung(done, f"rank 1 on {first}: sleeping in poll",
                         f"ranks 0,2-3 on {first} and {second}: sleeping in nanosleep")
        self.assertGreaterEqual(self.seconds_said(done), 3)
        for rank in range(4):
            self.assertRegex(self.hang_text(rank), rf"^rank {rank}, pid \d+: ")

    def test_a_node_that_has_answered_waits_for_the_others(self):
        self.debuggers(gdb="#!/bin/sh\nfor pid; do grep -qz '^RANK=0$' /proc/$pid/environ 2>/dev/null && exec sleep 6; done\nexec sleep 2\n")
        done = self.run_job(*self.options, "--nproc-per-node", 1, "--hang-timeout", "1s", "sleep", 1000)
        first, second = self.nodes.hosts[:2]
        self.assert_hung(done, f"ranks 0-1 on {first} and {second}: sleeping in nanosleep")
        self.assertGreater(done.seconds, 7)
        self.assertNotIn("makes progress again", done.err)


if __name__ == "__main__":
    main()
