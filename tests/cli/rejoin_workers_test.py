#!/usr/bin/env python3
"""Tests all kinds of workers side by side when one of them is lost. Some speak docs/developers/worker_protocol.md well, badly or only in
part, and some do not speak it."""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import main, wait_until
from tests.support.rejoin import RejoinTest, kill

# worker.py LAST KIND,KIND,…: one kind for each rank. Ranks end with code 0 in the attempt LAST.
WORKER = r"""
import json, os, signal, socket, sys, time
last, kind = int(sys.argv[1]), sys.argv[2].split(",")[int(os.environ["RANK"])]
born = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
numbers = iter(range(10 ** 6))

def write_line(text):
    print(f"{text} #{next(numbers)}", flush=True)

def work(attempt, rank, world, origin):
    sys.stderr.write(f"err {attempt} {rank}\n")  # before stdout's line, since the test may kill this rank as soon as it has read that
    write_line(f"{kind} attempt {attempt} rank {rank}/{world} from {origin} pid {os.getpid()}")

if kind == "silent":
    work(born, os.environ["RANK"], os.environ["WORLD_SIZE"], "env")
    if born < last:
        signal.pause()
    sys.exit(0)

link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["DDPLAUNCH_CONTROL"][5:])
lines = link.makefile("rw")

def say(**word):
    lines.write(json.dumps(word) + "\n")
    lines.flush()

if kind != "late":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by the order that comes with it
say(hello=1, pid=os.getpid(), rejoin=kind != "simple", sharded=kind == "sharded")
for line in lines:
    word = json.loads(line)
    if "attempt" in word:
        attempt = word["attempt"]
        say(ready=attempt)
        say(step=10 * attempt + 1)
        work(attempt, word["rank"], word["world"], word.get("from"))
        if kind == "hopeless":
            say(failed=attempt, error="the model is split", retry=False)
            os._exit(3)
        if kind == "failing" and attempt == 0:
            for _ in range(20_000):
                say(failed=0, error="x" * 1000)
        if attempt >= last:
            time.sleep(float(os.environ.get("DDP_TEST_END_AFTER", "0")))
            write_line(f"end of rank {word['rank']}")
            break
    elif "revoke" in word:
        for number in range(3):
            write_line(f"late line {number} of attempt {attempt}")
        if kind == "late":
            signal.pause()
        while kind == "asked" and not os.path.exists(os.environ["DDP_TEST_MAY_LET_GO"]):
            time.sleep(0.001)
        say(revoked=word["revoke"], step=None if kind == "empty" else 10 * attempt + 1 + (kind == "ahead"))
    elif "stop" in word:
        write_line("stopped")
        sys.exit(0)
"""
SHELL = """#!/bin/sh
echo "shell attempt $TORCHELASTIC_RESTART_COUNT rank $RANK/$WORLD_SIZE from env pid $$ #0"
[ "$TORCHELASTIC_RESTART_COUNT" -ge 1 ] || exec sleep 1000
"""


class Workers(RejoinTest):
    def play(self, kinds, *args, last=1, restarts=3):
        worker = self.script("worker.py", WORKER)
        return self.here("--max-restarts", restarts, *args, "--no-python", "/usr/bin/python3", "-S", "-E", worker, last, kinds,
                         nproc=kinds.count(",") + 1)

    def begun(self, process, attempt, world):
        """Waits until all ranks have announced the attempt. Returns {rank: (kind, from, pid)}."""
        found, self.shown = {}, getattr(self, "shown", [])
        while len(found) < world:
            line = process.stdout.readline()
            self.assertTrue(line, f"attempt {attempt} did not start\n{''.join(self.shown)}{self.said()}")
            self.shown.append(line)
            words = line.split()
            if words[1:3] == ["attempt", str(attempt)]:
                rank, _, size = words[4].partition("/")
                self.assertEqual(int(size), world)
                found[int(rank)] = (words[0], words[6], int(words[8]))
        return found

    def lose(self, kinds, *args, victim=1):
        """Kills `victim` in attempt 0. Returns the workers of attempts 0 and 1, and the job's outcome."""
        process = self.play(kinds, *args)
        world = kinds.count(",") + 1
        first = self.begun(process, 0, world)
        self.workers("worker.py")  # records the workers, whose sockets must be gone at the end
        kill(first[victim][2])
        second = self.begun(process, 1, world)
        return first, second, self.finish(process)

    def assert_same(self, first, second, *ranks):
        self.assertEqual({rank for rank in first if first[rank][2] == second[rank][2]}, set(ranks))

    def test_a_rank_that_can_rejoin_survives(self):
        first, second, done = self.lose("good,good,good")
        self.assert_code(done, 0)
        self.assert_same(first, second, 0, 2)
        self.assertEqual({origin for _, origin, _ in second.values()}, {"0"})

    def test_the_lowest_rank_with_the_highest_step_has_the_state(self):
        _, second, done = self.lose("good,good,ahead,ahead")
        self.assert_code(done, 0)
        self.assertEqual({origin for _, origin, _ in second.values()}, {"2"})
        _, second, done = self.lose("empty,good,empty")
        self.assert_code(done, 0)
        self.assertEqual({origin for _, origin, _ in second.values()}, {"None"})

    def test_a_rank_that_would_fail_in_each_attempt_ends_the_job(self):
        """Its last line may be unread when its end is known."""
        done = self.finish(self.play("good,hopeless,good"))
        self.assert_code(done, 3)
        self.assertIn("not restarted, although --max-restarts allows it: another attempt would fail the same way", done.err)
        self.assertIn("rank 1 on localhost exited 3", done.err)

    def test_a_shell_script_is_restarted(self):
        process = self.here("--max-restarts", 1, self.script("shell.sh", SHELL), nproc=2)
        first = self.begun(process, 0, 2)
        kill(first[1][2])
        self.assert_same(first, self.begun(process, 1, 2))
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertNotIn("live on", done.err)

    def test_workers_that_cannot_rejoin_restart_all(self):
        for kinds in ("good,good,simple", "good,good,silent", "sharded,sharded,sharded"):
            with self.subTest(kinds):
                self.shown = []
                first, second, done = self.lose(kinds)
                self.assert_code(done, 0)
                self.assertNotEqual(first[2][2], second[2][2])
                if kinds.startswith("sharded"):
                    self.assert_same(first, second)
                    self.assertEqual({origin for _, origin, _ in second.values()}, {"None"})

    def test_a_worker_that_answers_too_late_is_killed_and_named(self):
        first, second, done = self.lose("good,good,late")
        self.assert_code(done, 0)
        self.assert_same(first, second, 0)
        self.assertIn("rank 2 on localhost did not leave attempt 0 within 5 s and was killed\n", done.err)

    def test_endless_failure_reports_of_a_worker_fill_no_log(self):
        process = self.play("good,failing,good")
        self.begun(process, 0, 3)
        self.workers("worker.py")
        self.begun(process, 1, 3)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(done.err.count('rank 1: sent "failed" for attempt 0 more than 10 times; the rest is ignored\n'), 1)
        self.assertLess((self.job_dir / "ddplaunch.log").stat().st_size, 50_000)

    def test_the_output_of_survivors_is_complete_and_in_order(self):
        first, second, done = self.lose("good,good,good", "--tee", 3, "--log-dir", self.dir / "logs")
        self.assert_code(done, 0)
        before = [f"late line {number} of attempt 0 #{number + 1}" for number in range(3)]
        for rank in (0, 2):
            self.assertEqual(self.file(0, rank), [f"good attempt 0 rank {rank}/3 from None pid {first[rank][2]} #0", *before])
            self.assertEqual(self.file(1, rank), [f"good attempt 1 rank {rank}/3 from 0 pid {second[rank][2]} #4", f"end of rank {rank} #5"])
            self.assertEqual(self.file(1, rank, "stderr"), [f"err 1 {rank}"])
            self.assertEqual(sorted(line for line in "".join(self.shown).splitlines() + done.out.splitlines()
                                    if line.startswith("late line")), sorted(before * 2))
        self.assertEqual(self.file(1, 1), [f"good attempt 1 rank 1/3 from 0 pid {second[1][2]} #0", "end of rank 1 #1"])
        for rank in range(3):
            for attempt in range(2):
                self.assertEqual(done.err.count(f"err {attempt} {rank}\n"), 1)

    def file(self, attempt, rank, stream="stdout"):
        return (self.job_dir / f"attempt_{attempt}/rank_{rank:05}.{stream}").read_text().splitlines()

    def test_a_worker_dies_just_before_the_next_attempt(self):
        """Its output was not completely read when another process took its rank."""
        worker, may = self.script("worker.py", WORKER), self.dir / "may"
        process = self.on_nodes("--max-restarts", 3, "--env", f"DDP_TEST_MAY_LET_GO={may}", "--env", "DDP_TEST_END_AFTER=0.6",
                                "--no-python", "/usr/bin/python3", "-S", "-E", worker, 1, "good,good,asked,good")
        first = self.begun(process, 0, 4)
        kill(first[3][2])
        late = [f"late line 2 of attempt 0 #{number}\n" for number in (3, 3, 3)]
        while late:  # all workers of the nodes but one have left the attempt
            self.shown.append(process.stdout.readline())
            late = late[self.shown[-1] == late[0]:]
        time.sleep(0.1)  # time for the answers; the test can pass without it
        kill(first[1][2])
        may.touch()
        second = self.begun(process, 1, 4)
        self.assert_same(first, second, 0, 2)
        done = self.finish(process)
        self.assert_code(done, 0)
        out = "".join(self.shown) + done.out  # a survivor may end before the new process has announced itself
        self.assertEqual([out.count(f"end of rank {rank} ") for rank in range(4)], [1] * 4, out)
        self.assertIn("restart 1 of 3", done.err)
        self.assertNotIn("restart 2 of 3", done.err)

    def test_the_restart_budget_is_used_up(self):
        process = self.play("good,good,good", last=9, restarts=1)
        kill(self.begun(process, 0, 3)[1][2])
        kill(self.begun(process, 1, 3)[1][2])
        done = self.finish(process)
        self.assert_code(done, 137)
        self.assertEqual(done.out.count("stopped #"), 2)

    def test_ctrl_c_while_a_worker_does_not_leave_the_attempt(self):
        process = self.play("good,good,late", last=9)
        kill(self.begun(process, 0, 3)[1][2])
        self.wait_until_said("the other ranks survive")
        process.send_signal(signal.SIGINT)
        self.assertIn(self.finish(process).code, (130, 137))

    def test_a_frozen_worker_is_killed_when_the_hang_is_found(self):
        process = self.play("good,good,good", "--hang-timeout", "2s")
        first = self.begun(process, 0, 3)
        os.kill(first[2][2], signal.SIGSTOP)
        self.assertTrue(wait_until(lambda: "hang" in self.said()))
        self.begun(process, 1, 3)
        self.assert_code(self.finish(process), 0)


if __name__ == "__main__":
    main()
