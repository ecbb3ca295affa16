#!/usr/bin/env python3
"""Tests random kills over four SSH nodes: each leaves no process and the right exit code (tests/support/torture.py).

DDP_TORTURE_SEED=N repeats a run (the seed is printed). DDP_TORTURE_KILLS=N sets the number of cases (42: each cell once).
DDP_TORTURE_ONLY=N runs one case, DDP_TORTURE_CELLS=REGEX only matching cells, such as "start/agent/TERM". DDP_TORTURE_LANES=N
sets how many jobs run at a time.
"""

import json
import os
import pathlib
import random
import selectors
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import torture
from tests.support.launch import SOURCE, main

LANES = int(os.environ.get("DDP_TORTURE_LANES", "5"))
KILLS = int(os.environ.get("DDP_TORTURE_KILLS", "42"))
SEED = os.environ.get("DDP_TORTURE_SEED") or str(random.SystemRandom().randrange(1_000_000))
ONLY = os.environ.get("DDP_TORTURE_ONLY")


def run_lanes(seed, cases):
    """Yields the results of cases 0 … `cases` - 1 as they arrive."""
    script = str(SOURCE / "tests/support/torture.py")
    if ONLY:
        ranges = [(int(ONLY), int(ONLY) + 1, 1)]
    else:
        ranges = [(lane, cases, LANES) for lane in range(LANES)]
    lanes = [subprocess.Popen([sys.executable, "-W", "ignore", script, f"t{os.getpid()}l{i}", seed, *map(str, numbers)],
                              stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
             for i, numbers in enumerate(ranges)]
    try:
        for result in merged(lanes):
            yield result
    finally:
        for lane in lanes:
            lane.terminate()
            lane.wait()
            lane.stdout.close()


def merged(lanes):
    with selectors.DefaultSelector() as ready:
        for lane in lanes:
            ready.register(lane.stdout, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select():
                line = key.fileobj.readline()
                if line:
                    yield json.loads(line)
                else:
                    ready.unregister(key.fileobj)


@unittest.skipUnless(torture.UNRULY_WORKER.exists(), f"{torture.UNRULY_WORKER} is not built")
class Torture(unittest.TestCase):
    def test_random_kills_leave_nothing_and_are_reported_correctly(self):
        print(f"seed {SEED} (DDP_TORTURE_SEED={SEED} repeats it)", flush=True)
        began = time.monotonic()
        hits, hit, played, bad, slowest = 0, set(), 0, [], []
        for result in run_lanes(SEED, KILLS):
            if "skip" in result:
                raise unittest.SkipTest(result["skip"])
            if "error" in result:
                self.fail(result["error"])
            played += "code" in result
            hits += result["hits"]
            if "victim" in result:
                hit.add(result["number"])
            slowest.append((result.get("seconds", 0.0), result["case"]))
            if result["problems"]:
                bad.append(result)
                print(f"{result['case']} [{result.get('victim', 'no victim')}]", *result["problems"], sep="\n    ",
                      flush=True)
        slowest.sort(reverse=True)
        print(f"{played} jobs, {hits} kills in {time.monotonic() - began:.0f} s; the slowest ends:")
        for seconds, case in slowest[:5]:
            print(f"    {seconds:.2f} s after the last event: {case}")
        self.assertEqual(len(bad), 0, f"{len(bad)} of {played} cases failed, see above (seed {SEED})")
        if not ONLY:
            self.assertGreaterEqual(len(hit), KILLS - KILLS // 10)  # a few signals come too late for their victim, each time


class CheckerTest(unittest.TestCase):
    """Tests that the count and the checks find errors."""

    def setUp(self):
        if not torture.UNRULY_WORKER.exists():
            self.skipTest(f"{torture.UNRULY_WORKER} is not built")
        self.lane = torture.Lane("self")
        self.addCleanup(self.lane.stack.close)
        self.case = torture.Case(0, "running", "worker", "KILL", "plain", 1, 0.5, 1, 0, "worker", "INT")

    def test_a_good_case_has_no_problem(self):
        self.assertEqual(self.lane.run(self.case)["problems"], [])

    def test_a_process_without_any_mark_is_found(self):
        def leave_one(job):
            # The process has a separate session, no parent, an empty environment and no open files.
            subprocess.run(["setsid", "--fork", "env", "-i", torture.UNRULY_WORKER, job.dir, "daemon!"], check=True,
                           close_fds=True)
        problems = self.lane.run(self.case, after=leave_one)["problems"]
        self.assertEqual(len(problems), 1, problems)
        self.assertRegex(problems[0], r"^left \d+ s after the last event: \d+ unruly_daemon S .*; still there")

    def test_a_wrong_exit_code_and_last_line_are_found(self):
        # The worker ends by itself just before the signal that the test takes for the cause.
        def end_first(victim):
            victim.hit("USR1")
            self.assertTrue(victim.ended(5))
        problems = self.lane.run(self.case, before=end_first)["problems"]
        self.assertEqual(len(problems), 1, problems)
        self.assertRegex(problems[0], r"^exit code 22, not one of \[137\]: ")


if __name__ == "__main__":
    main()
