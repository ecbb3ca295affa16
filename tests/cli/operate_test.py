#!/usr/bin/env python3
"""Tests what shows the state of a job from outside: its journal, and the summary at the end."""

import json
import pathlib
import resource
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, main, wait_until

# Rank 1 fails in attempt 0. The others wait to be stopped.
FAILS_ONCE = '[ "$TORCHELASTIC_RESTART_COUNT" -ge 1 ] && exit 0; [ "$RANK" = 1 ] && exit 7; exec sleep 1000'


class Journal(LaunchTest):

    def events(self):
        lines = (self.job_dir / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        self.assertEqual([event["id"] for event in events], list(range(1, len(events) + 1)))
        return events

    def has_event(self, name):
        """The last line may be incomplete."""
        path = self.job_dir / "events.jsonl"
        return path.exists() and any(json.loads(line)["event"] == name for line in path.read_text().split("\n")[:-1])

    def test_a_restart_is_recorded_from_the_first_event_to_the_last(self):
        done = self.run_job("--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "0", "sh", "-c", FAILS_ONCE)
        self.assert_code(done, 0)
        events = self.events()
        self.assertEqual((events[0]["event"], events[0]["format"], events[0]["job"]), ("job_started", 1, self.job))
        self.assertEqual((events[-1]["event"], events[-1]["exit_code"]), ("job_ended", 0))
        attempts = [(e["event"], e["attempt"]) for e in events if e["event"].startswith("attempt_")]
        self.assertEqual([(name, number) for name, number in attempts if name != "attempt_running"],
                         [("attempt_started", 0), ("attempt_stopping", 0), ("attempt_ended", 0), ("attempt_started", 1), ("attempt_ended", 1)])
        self.assertIn(("attempt_running", 1), attempts)
        started = next(e for e in events if e["event"] == "attempt_started")
        self.assertEqual(started["nodes"], [{"node": "localhost", "first_rank": 0, "ranks": 2}])
        ended = {(e["attempt"], e["rank"]): (e["exit_code"], e["signal"]) for e in events if e["event"] == "rank_exited"}
        self.assertEqual(ended, {(0, 0): (None, "SIGTERM"), (0, 1): (7, None), (1, 0): (0, None), (1, 1): (0, None)})
        reasons = [e["reason"] for e in events if e["event"] == "attempt_ended"]
        self.assertEqual(reasons[0], "rank 1 on localhost exited 7")

    def test_a_signal_and_its_exit_code_are_recorded(self):
        process = self.start("sleep", 1000)
        self.assertTrue(wait_until(lambda: self.has_event("attempt_running")))
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process), 130)
        events = self.events()
        self.assertIn("SIGINT", [e["signal"] for e in events if e["event"] == "signal"])
        self.assertEqual(events[-1]["exit_code"], 130)

    def test_a_failed_start_is_recorded(self):
        self.assert_code(self.run_job("/no/such/program"), 127)
        events = self.events()
        self.assertIn("No such file", next(e["reason"] for e in events if e["event"] == "node_absent"))
        self.assertEqual((events[-1]["event"], events[-1]["exit_code"]), ("job_ended", 127))

    def test_a_lost_node_and_its_replacement_are_recorded(self):
        done = self.run_job("--launcher", "local", "--host", "127.0.0.1,127.0.0.2,127.0.0.3", "--nnodes", 2, "--spares", 1,
                            "--nproc-per-node", 1, "--max-restarts", 1, "--restart-backoff", "0", "sh", "-c",
                            '[ "$TORCHELASTIC_RESTART_COUNT" -ge 1 ] && exit 0; [ "$RANK" = 1 ] && kill -9 $PPID; exec sleep 1000')
        self.assert_code(done, 0)
        of_nodes = [(e["event"], e["attempt"], e["node"], e["reason"]) for e in self.events() if e["event"].startswith("node_")]
        self.assertEqual({(name, node) for name, _, node, _ in of_nodes if name == "node_joined"},
                         {("node_joined", f"127.0.0.{number}") for number in (1, 2, 3)})
        self.assertIn(("node_lost", 0, "127.0.0.2"), [event[:3] for event in of_nodes])
        self.assertIn(("node_replaced", 1, "127.0.0.3", "in the place of 127.0.0.2"), of_nodes)

    def test_a_full_disk_costs_events_and_not_the_job(self):
        go = self.dir / "go"
        process = self.start("--nproc-per-node", 2, "--max-restarts", 20, "--restart-backoff", "0", "sh", "-c",
                             f'while [ ! -e {go} ]; do sleep 0.05; done; [ "$TORCHELASTIC_RESTART_COUNT" = 20 ] || exit 3')
        self.assertTrue(wait_until(lambda: self.has_event("attempt_running")))
        size = (self.job_dir / "events.jsonl").stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 500, size + 500))
        go.touch()
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(done.err.count("no space left for the job's files"), 1, done.err)
        self.assertRegex(done.err, r"warning: the job's files are incomplete; missing: .*events\.jsonl")
        self.assertLessEqual((self.job_dir / "events.jsonl").stat().st_size, size + 500)


class Summary(LaunchTest):

    def test_a_short_clean_run_prints_nothing(self):
        done = self.run_job("--label", "none", "echo", "hello")
        self.assertEqual((done.out, done.err), ("hello\n", ""))

    def test_verbose_shows_the_summary_and_quiet_hides_it(self):
        done = self.run_job("--verbose", "--label", "none", "echo", "hello")
        self.assertEqual(done.out, "hello\n")
        self.assertRegex(done.err, rf"ddplaunch: job .* files in {self.job_dir}\nddplaunch: succeeded after .*, 6 B of output\n$")
        options = ["--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "0"]
        done = self.run_job(*options, "sh", "-c", FAILS_ONCE)
        self.assertRegex(done.err, r"ddplaunch: succeeded after .*, 1 restart, 0 B of output\n$")
        done = self.run_job("--quiet", *options, "sh", "-c", FAILS_ONCE)
        self.assertNotIn("succeeded after", done.err)


if __name__ == "__main__":
    main()
