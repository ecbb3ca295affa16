#!/usr/bin/env python3
"""Tests what shows a job from outside: its journal, the summary at its end, and the verbs about jobs."""

import calendar
import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.terminal import Terminal, Tmux, needs
from tests.support.launch import BIN, DDPLAUNCH, LaunchTest, Outcome, is_running, live_processes_with, main, sender, wait_until
from tests.support.ports import free_port

# Rank 1 fails in attempt 0. The others wait to be stopped.
FAILS_ONCE = '[ "$TORCHELASTIC_RESTART_COUNT" -ge 1 ] && exit 0; [ "$RANK" = 1 ] && exit 7; exec sleep 1000'


# The verb and the job run on this host, as this user.
BY_STOP = rf"stopped by SIGTERM from `ddplaunch stop` \(pid \d+ of user {pwd.getpwuid(os.getuid()).pw_name} on {re.escape(socket.gethostname())}\)"


class Journal(LaunchTest):

    def events(self):
        lines = (self.job_dir / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        self.assertEqual([event["id"] for event in events], list(range(1, len(events) + 1)))
        return events

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

    def test_a_failed_start_and_a_hang_are_recorded(self):
        self.assert_code(self.run_job("/no/such/program"), 127)
        events = self.events()
        self.assertIn("No such file", next(e["reason"] for e in events if e["event"] == "node_absent"))
        self.assertEqual((events[-1]["event"], events[-1]["exit_code"]), ("job_ended", 127))
        self.assert_code(self.run_job("--hang-timeout", "1s", "sleep", 1000), 117)
        names = [event["event"] for event in self.events()]
        self.assertLess(names.index("hang_found"), names.index("attempt_stopping"))
        self.assertNotIn("hang_over", names)

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


class Summary(LaunchTest):

    def test_verbose_shows_the_summary_and_quiet_hides_it(self):
        done = self.run_job("--verbose", "--label", "none", "echo", "hello")
        self.assertEqual(done.out, "hello\n")
        self.assertRegex(done.err, rf"ddplaunch: job .* files in {self.job_dir}\nddplaunch: succeeded after .*, 6 B of output\n$")
        options = ["--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "0"]
        done = self.run_job(*options, "sh", "-c", FAILS_ONCE)
        self.assertRegex(done.err, r"ddplaunch: succeeded after .*, 1 restart, goodput [0-9.]+ %, 0 B of output\n$")
        done = self.run_job("--quiet", *options, "sh", "-c", FAILS_ONCE)
        self.assertNotIn("succeeded after", done.err)


class VerbTest(LaunchTest):
    """Jobs in the default directory of the test's own state."""

    def setUp(self):
        super().setUp()
        self.env["TMPDIR"] = str(self.dir)
        self.jobs = self.dir / "state/ddplaunch/jobs"

    def verb(self, *args, **options):
        options = {"env": self.env, "cwd": self.dir, "stdin": subprocess.DEVNULL, **options}
        began = time.monotonic()
        done = subprocess.run([DDPLAUNCH, *map(str, args)], capture_output=True, text=True, timeout=60, **options)
        return Outcome(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def says(self, words, code=0, out="", err=""):
        done = self.verb(*words)
        self.assertEqual((done.code, done.out, done.err), (code, out, err), words)

    def refuses(self, words, why, code=2):
        self.says(words, code, err=f"ddplaunch: {why}\n")

    def viewer(self, *words, **popen):
        """A verb that runs beside the test."""
        process = subprocess.Popen([DDPLAUNCH, *map(str, words)], env=self.env, stdout=subprocess.PIPE, text=True, **popen)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.communicate()))
        return process

    def started_job(self, *worker, job=None, options=()):
        process = subprocess.Popen([DDPLAUNCH, "--job-id", job or self.job, *map(str, options), *worker], env=self.env, cwd=self.dir, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.communicate()))
        self.assertTrue(wait_until(lambda: self.status(job or self.job).get("state") == "running"))
        return process

    def running_job(self, *worker, **options):
        """A job whose ranks all run."""
        process = self.started_job(*worker, **options)
        journal = pathlib.Path(self.status(self.job)["directory"]) / "events.jsonl"
        self.assertTrue(wait_until(lambda: journal.exists() and '"attempt_running"' in journal.read_text()))
        return process

    def status(self, job):
        done = self.verb("status", "--json", job)
        return json.loads(done.out) if done.code == 0 else {}

    def listed(self, *options):
        return {entry["job"]: entry for entry in json.loads(self.verb("ps", "--json", *options).out)["jobs"]}

    def stop(self, process):
        """Stops the only job that runs, which is that of the process."""
        self.assert_code(self.verb("stop"), 0)
        self.assertEqual(process.wait(60), 143)

    def short_job(self, *worker, job="short", **options):
        return self.verb("--job-id", job, "--label", "none", *worker, **options)

    def processes_of_job(self):
        return [pid for pid, _ in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")]

    def control_socket(self):
        return next((self.dir / "runtime/ddplaunch").glob("*.sock"))

    @staticmethod
    def data_of(page):
        return json.loads(re.search(r'<script type="application/json" id="data">(.*)</script>\n', page)[1])


class Verbs(VerbTest):

    def test_without_jobs(self):
        self.assertEqual(self.verb("ps").out.splitlines(), ["JOB  STATE  RANKS  STEP  AGE  ENDED  COMMAND"])
        for verb in ("status", "logs", "stop", "wait"):
            self.refuses([verb], "there is no job of yours on this machine")

    def test_a_running_job_is_listed_shown_stopped_and_then_ended(self):
        process = self.started_job("sleep", "1000", options=["--nproc-per-node", 2])
        self.assertEqual(self.listed()[self.job]["state"], "running")
        self.assertTrue(wait_until(lambda: self.status(self.job)["nodes"][0]["running"] == 2))
        status = self.status(self.job)
        self.assertEqual((status["job"], status["world_size"], status["attempt"]), (self.job, 2, 0))
        self.assertLess(status["nodes"][0].pop("silence_s"), 10)
        status["nodes"][0].pop("usage")
        self.assertEqual(status["nodes"], [{"node": "localhost", "state": "running", "health": "good", "trouble": None, "first_rank": 0, "ranks": 2, "running": 2, "step": None, "steps": [None, None], "losses": [None, None], "phases": ["", ""], "step_seconds": [None, None]}])
        text = self.verb("status").out
        self.assertRegex(text, rf"^job {self.job}: running, started (just now|.* ago), 2 ranks\n  files in {self.jobs}/")
        self.assertRegex(text, r"(?m)^  localhost +ranks 0-1 +running$")
        socket_path = self.control_socket()
        self.assertEqual((socket_path.stat().st_mode & 0o777, socket_path.parent.stat().st_mode & 0o777), (0o600, 0o700))
        waiting = self.viewer("wait", self.job[:-1])
        watching = self.viewer("status", "--watch")
        self.assertIn("running", watching.stdout.readline())
        done = self.verb("stop", self.job)
        self.assertEqual(done.code, 0)
        self.assertRegex(done.out, rf"^job {self.job}: exited 143: {BY_STOP}\n$")
        self.assertEqual(process.wait(60), 143)
        self.assertEqual((waiting.communicate(timeout=60)[0], waiting.returncode), (done.out, 143))
        self.assertRegex(watching.communicate(timeout=60)[0], rf"job {self.job}: exited 143: {BY_STOP}\n  files in [^\n]*, its end in report.json\n$")
        self.assertFalse(socket_path.exists())
        self.assertNotIn(self.job, self.listed())
        self.assertEqual(self.listed("--all")[self.job]["exit_code"], 143)
        self.assertIn("exited 143", self.verb("status").out)

    def test_watch_prints_a_silent_node_once(self):
        agent = self.dir / "agent"
        self.started_job("sh", "-c", f"echo $PPID > {agent}.new; mv {agent}.new {agent}; exec sleep 1000", options=["--node-timeout", "1m"])
        self.assertTrue(wait_until(agent.exists))
        pid = int(agent.read_text())
        node = lambda: self.status(self.job)["nodes"][0]
        self.assertTrue(wait_until(lambda: node()["running"] == 1))
        watching = self.viewer("status", "--watch", "--json")
        self.addCleanup(lambda: is_running(pid) and os.kill(pid, signal.SIGCONT))
        healths = [json.loads(watching.stdout.readline())["nodes"][0]["health"]]
        os.kill(pid, signal.SIGSTOP)
        healths.append(json.loads(watching.stdout.readline())["nodes"][0]["health"])
        self.assertTrue(wait_until(lambda: node()["silence_s"] > 6))
        self.assertRegex(node()["trouble"], r"^silent for [0-9.]+ s$")
        os.kill(pid, signal.SIGCONT)
        healths.append(json.loads(watching.stdout.readline())["nodes"][0]["health"])
        self.assertEqual(healths, ["good", "bad", "good"])
        self.assert_code(self.verb("stop"), 0)
        self.assertEqual(watching.wait(60), 0)

    def test_of_several_running_jobs_one_must_be_named(self):
        processes = {job: self.started_job("sleep", "1000", job=job) for job in ("run-a", "run-b")}
        self.assert_code(self.short_job("true"), 0)  # it is newer, but does not run
        for words, why in ((["stop"], "several jobs run; name one of them: run-a, run-b"),
                           (["wait", "run"], "run names several jobs that run: run-a, run-b"),
                           (["exec", "--", "true"], "several jobs run; name one of them: run-a, run-b")):
            self.refuses(words, why)
        self.assert_code(self.verb("stop", "run-a"), 0)
        self.assertEqual(processes["run-a"].wait(60), 143)
        self.assertIsNone(processes["run-b"].poll())
        self.stop(processes["run-b"])

    def test_a_job_that_had_ended_before_has_its_own_exit_code(self):
        self.assert_code(self.short_job("sh", "-c", "exit 7"), 7)
        self.says(["wait"], 7, "job short: exited 7: rank 0 on localhost exited 7\n")
        for words in (["stop"], ["stop", "--now", "short"], ["exec", "--", "true"], ["stacks"]):
            self.refuses(words, "job short had ended before: exited 7: rank 0 on localhost exited 7", 3)
        done = self.verb("stop", "--json")
        self.assertEqual((done.code, json.loads(done.out)["exit_code"]), (3, 7))
        self.assertEqual(self.verb("attach").code, 7)

    def test_a_second_running_job_of_an_id_is_refused_before_anything_starts(self):
        process = self.started_job("sleep", "1000")
        files = self.dir / "files"
        for options in ([], ["--job-dir", files], ["--detach"]):
            done = self.verb(*options, "--job-id", self.job, "touch", "started")
            self.assertEqual((done.code, done.out), (2, ""), done)
            self.assertIn(f"ddplaunch: exit 2: a job with the id {self.job} runs already (pid {process.pid} on ", done.err)
            self.assertIn(f"choose another --job-id, or end that job first: ddplaunch stop {self.job}\n", done.err)
        self.assertFalse((self.dir / "started").exists() or files.exists())
        self.assertEqual(len([path for path in self.jobs.iterdir() if path.is_dir()]), 1)
        self.assert_code(self.short_job("true", job=f"{self.job}.2"), 0)
        self.assertEqual(self.verb("--rdzv-id", self.job, "true").code, 0)  # fixed in many scripts of torchrun
        self.assertEqual(self.verb("logs", self.job, "--failed").err, f"ddplaunch: no rank of job {self.job} has failed so far\n")
        self.assert_code(self.verb("stop", self.job), 0)
        self.assert_code(self.short_job("true", job=self.job), 0)

    def test_of_two_starts_at_once_with_one_id_one_runs(self):
        self.assert_code(self.short_job("true"), 0)  # makes the directory of the jobs
        go = self.dir / "go"
        jobs = [subprocess.Popen([DDPLAUNCH, "--job-id", "twice", "sh", "-c", f"until test -e {go}; do sleep 0.05; done"], env=self.env, cwd=self.dir,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
        self.addCleanup(lambda: [job.poll() is None and job.kill() for job in jobs])
        self.assertTrue(wait_until(lambda: any(job.poll() is not None for job in jobs)))
        go.touch()
        self.assertEqual(sorted(job.wait(60) for job in jobs), [0, 2])

    def test_rm_deletes_jobs_that_have_ended_and_says_what_it_removed(self):
        files = self.dir / "files"
        self.assert_code(self.short_job("true"), 0)
        self.assert_code(self.short_job("--job-dir", files, "true", job="elsewhere"), 0)
        process = self.started_job("sleep", "1000")
        directory = self.status("short")["directory"]
        done = self.verb("rm", self.job, "short", "elsewhere", "short")
        self.assertEqual((done.code, done.out), (2, f"job short: removed {directory}\njob elsewhere: removed from the list; its files stay in {files}\n"))
        self.assertEqual(done.err, f"ddplaunch: job {self.job} runs; ddplaunch stop {self.job} stops it\n"
                                   "ddplaunch: no job begins with short; ddplaunch ps --all lists all\n")
        self.assertEqual(list(self.listed("--all")), [self.job])
        self.assertEqual([path.name.partition(".")[0] for path in self.jobs.iterdir() if path.is_dir()], [self.job])
        self.assertTrue((files / "report.json").exists())
        self.assertIsNone(process.poll())

    def test_rm_of_jobs_that_have_lost_files(self):
        for job in ("killed", "gone", "unlocked"):
            self.assert_code(self.short_job("true", job=job), 0)
        killed, gone, unlocked = (pathlib.Path(self.status(job)["directory"]) for job in ("killed", "gone", "unlocked"))
        (killed / "report.json").unlink()
        (killed / "events.jsonl").unlink()
        shutil.rmtree(gone)
        (unlocked / "run.lock").unlink()
        self.assertEqual({job: entry["state"] for job, entry in self.listed("--all").items()},
                         {"killed": "crashed", "gone": "deleted", "unlocked": "ended"})
        self.says(["rm", "gone", "killed", "unlocked"],
                  out=f"job gone: removed from the list\njob killed: removed {killed}\njob unlocked: removed {unlocked}\n")
        self.assertFalse(self.listed("--all") or killed.exists() or unlocked.exists())

    def test_ps_lists_the_newest_first_with_ranks_and_end(self):
        self.assert_code(self.short_job("--nproc-per-node", "3", "true"), 0)
        self.running_job("sleep", "1000", options=["--nproc-per-node", 2])
        self.assertTrue(wait_until(lambda: self.listed()[self.job]["world_size"] == 2))  # a busy job may not answer in time
        os.mkfifo(self.jobs / "x.job")  # which nobody writes
        rows = [line.split() for line in self.verb("ps", "--all").out.splitlines()]
        self.assertEqual([row[:4] for row in rows[1:]], [[self.job, "running", "2", "-"], ["short", "exited", "0", "3"]])
        self.assertEqual(rows[1][-3:], ["-", "sleep", "1000"])
        self.assertRegex(" ".join(rows[2]), r"Z true$")
        running, ended = json.loads(self.verb("ps", "--all", "--json").out)["jobs"]
        self.assertEqual((running["world_size"], running["exit_code"], running["ended"], running["attempt"]), (2, None, None, 0))
        self.assertEqual((ended["world_size"], ended["exit_code"], ended["attempt"], ended["nodes"]), (3, 0, 0, []))
        self.assertRegex(ended["ended"], "Z$")

    def test_a_second_stop_leaves_the_grace(self):
        ready = self.dir / "ready"
        process = self.started_job("sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done", options=["--stop-grace", "500s"])
        self.assertTrue(wait_until(ready.exists))
        stops = [self.viewer("stop") for _ in range(2)]
        self.assertTrue(wait_until(lambda: self.status(self.job)["state"] == "stopping"))
        self.assertRegex(self.status(self.job)["why"], rf"^{BY_STOP}$")
        self.assertRegex(self.verb("status").out, rf"\n  {BY_STOP}\n  files in ")
        self.assertRaises(subprocess.TimeoutExpired, process.wait, 1)
        self.assert_code(self.verb("stop", "--now"), 0)
        self.assertIn(sorted(stop.wait(60) for stop in stops), ([0, 0], [0, 3]))  # 3: it began when the job had ended

    def test_a_ddplaunch_that_is_stopped_is_named(self):
        process = self.running_job("sleep", "1000")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # the signal alone may come after the next process
        why = f"the ddplaunch of job {self.job} is itself stopped (SIGSTOP), and answers nobody; kill -CONT {process.pid} lets it go on"
        for words in (["stop"], ["stop", "--now"], ["stop", self.job], ["status"], ["status", "--json"], ["exec", "--", "true"], ["stacks"]):
            self.refuses(words, why, 113)
        process.send_signal(signal.SIGCONT)
        self.refuses(["exec", "--timeout", "5s", "--", "kill", "-STOP", process.pid], why, 113)  # it is stopped while it answers
        process.send_signal(signal.SIGCONT)
        self.stop(process)

    def test_errors_of_options_name_the_verb(self):
        self.assert_code(self.short_job("true"), 0)
        for words, text in ((["ps", "--folow"], " ps: unknown option --folow; "), (["logs", "--rank", "x"], " logs: --rank x: give a whole number"),
                            (["stop", "a", "b"], " stop: "), (["stop", ""], " stop: JOB is empty; give an id, or leave it out"),
                            (["rm", ""], " rm: JOB is empty; give an id"), (["rm"], ": rm needs the id of a job; ddplaunch ps --all lists all"),
                            (["report"], ": report needs a file: ddplaunch report -o short.html short")):
            done = self.verb(*words)
            self.assertEqual((done.code, done.out, done.err.count("\n")), (2, "", 1), done)
            self.assertTrue(done.err.startswith("ddplaunch" + text), done)

    def test_a_job_whose_directory_was_deleted_still_runs(self):
        process = self.running_job("sh", "-c", "while :; do echo x; sleep 0.1; done")
        directory = pathlib.Path(self.status(self.job)["directory"])
        # The job may make its first file of output in it meanwhile.
        self.assertTrue(wait_until(lambda: (shutil.rmtree(directory, ignore_errors=True), not directory.exists())[1]))
        self.assertEqual(self.listed()[self.job]["state"], "running")
        self.assertEqual(self.verb("clean").code, 2)
        self.assertEqual(self.verb("exec", "--", "echo", "here").out, "here\n")
        self.stop(process)

    def test_output_that_cannot_be_written(self):
        self.assert_code(self.short_job("echo", "x"), 0)
        for words in (["ps"], ["ps", "--json"], ["status"], ["wait"], ["report", "-o", "-"], ["logs"], ["logs", "--help"]):
            for target, why in ((">/dev/full", "standard output: No space left on device"), (">&-", "cannot write the result: standard output is closed")):
                done = subprocess.run(["sh", "-c", f'exec "$@" {target}', "sh", DDPLAUNCH, *words], env=self.env, capture_output=True, text=True, timeout=30)
                self.assertEqual((done.returncode, done.stderr), (116, f"ddplaunch: {why}\n"), words)

    def test_a_job_of_another_machine_is_named(self):
        self.assert_code(self.short_job("true"), 0)
        entry = next(self.jobs.glob("*.job"))
        job = json.loads(entry.read_text())
        for name in ("report.json", "events.jsonl"):  # each names the end
            (pathlib.Path(job["directory"]) / name).unlink()
        entry.write_text(json.dumps(job | {"host": "login2", "pid": 77}))
        self.assertEqual(self.listed()["short"]["state"], "elsewhere")
        for verb, *option in (["stop"], ["logs", "-f"], ["status", "--watch"]):
            self.refuses([verb, *option], f"job short runs on login2 (pid 77); run there: ddplaunch {verb} short")

    def test_a_program_with_the_name_of_a_verb(self):
        self.script("ps", "#!/bin/sh\necho program\n")
        for words in (("--", "./ps"), ("./ps",)):
            self.assertEqual(self.short_job(*words).out, "program\n")

    def test_the_end_of_a_job_whose_report_is_lost_or_broken(self):
        self.assert_code(self.run_job("--nproc-per-node", 1, "sh", "-c", "echo hello; exit 3"), 3)
        report = pathlib.Path(self.status(self.job)["directory"]) / "report.json"
        for text in (None, "", "{}", '{"job": 5, "warnings": 1, "earlier_attempts": 2, "root_cause": 3}'):
            report.unlink(missing_ok=True)
            if text is not None:
                report.write_text(text)
            job = self.listed("-a")[self.job]
            self.assertEqual((job["state"], job["exit_code"], job["world_size"]), ("ended", 3, None), text)
            self.assertIn("exited 3", self.verb("status").out)
            self.assert_code(self.verb("logs", "--failed"), 0)
            self.assert_code(self.verb("report", "-o", self.dir / "page.html"), 0)


class Clean(VerbTest):
    """Ends what a job left whose ddplaunch was killed. Each host of a test is this machine."""

    def crash(self, process):
        process.kill()
        process.wait()
        self.assertTrue(wait_until(lambda: self.listed().get(self.job, {}).get("state") == "crashed"))

    def agent_and_keeper(self):
        """Returns the processes above the worker: the keeper has its name, and the agent is its child."""
        def keeper_and_child(pid):
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            parent = int(stat.rpartition(")")[2].split()[1])
            comm = pathlib.Path(f"/proc/{parent}/comm").read_text().strip()
            return (pid, parent) if comm == "ddp-keeper" else keeper_and_child(parent)
        self.assertTrue(wait_until(self.processes_of_job))  # a process has its environment after its exec
        return keeper_and_child(self.processes_of_job()[0])

    def test_nothing_is_left_after_the_agents_have_ended(self):
        self.crash(self.started_job("sleep", "1000", options=["--launcher", "local", "--host", "127.0.0.1,127.0.0.2", "--nproc-per-node", 1]))
        self.assertTrue(wait_until(lambda: not self.processes_of_job()))
        done = self.verb("clean", "--json", self.job)
        self.assert_code(done, 0)
        hosts = [{"host": f"127.0.0.{i}", "found": 0, "left": [], "error": None} for i in (1, 2)]
        self.assertEqual(json.loads(done.out), {"format": 1, "job": self.job, "hosts": hosts})

    def test_processes_without_agent_and_keeper_are_ended(self):
        process = self.started_job("sh", "-c", 'setsid sleep 1000 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; echo here; exec sleep 1000')
        self.assertTrue(wait_until(lambda: "here" in self.verb("logs").out))
        # Within an exec a process has no environment that others can read.
        self.assertTrue(wait_until(lambda: len(self.processes_of_job()) == 2))
        agent, keeper = self.agent_and_keeper()
        for pid in (process.pid, keeper, agent):
            os.kill(pid, signal.SIGSTOP)
            self.assertTrue(wait_until(lambda pid=pid: pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"))
        for pid in (keeper, agent, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        # The worker dies of its death signal. Its child in a session of its own lives, unless an agent of another job has just
        # ended it: each agent removes the control groups that dead ones have left.
        self.assertTrue(wait_until(lambda: len(self.processes_of_job()) <= 1))
        done = self.verb("clean")
        self.assertEqual(done.code, 0)
        self.assertRegex(done.out, r"^localhost: (1 process|0 processes) found, 0 left\n$")
        self.assertEqual(self.processes_of_job(), [])

    def test_a_job_that_crashed_is_marked_as_cleaned_and_no_other_one(self):
        process = self.started_job("sleep", "1000")
        self.assertTrue(wait_until(self.processes_of_job))  # a process has its environment after its exec
        self.refuses(["clean"], f"job {self.job} runs; ddplaunch stop {self.job} stops it")
        self.assertEqual((process.poll(), len(self.processes_of_job())), (None, 1))
        self.crash(process)
        for verb in ("wait", "stop"):
            self.refuses([verb], f"the ddplaunch of job {self.job} left no report: it was killed, or the disk was full", 113)
        self.assertIn("crashed", self.verb("status").out)
        self.assertTrue(wait_until(lambda: not self.processes_of_job()))
        self.assertIsNone(self.status(self.job)["cleaned"])
        self.assert_code(self.verb("clean"), 0)
        self.assertNotIn(self.job, self.verb("ps").out)
        self.assertRegex(self.verb("ps", "--all").out, rf"(?m)^{self.job} +cleaned ")
        done = self.verb("wait", self.job)
        self.assertEqual((done.code, done.out), (113, ""))
        self.assertRegex(done.err, rf"^ddplaunch: job {self.job} was cleaned at 20\S+Z; its ddplaunch left no report, so its exit code is unknown\n$")
        self.assertIn(f"job {self.job}: cleaned", self.verb("status").out)
        listed = self.listed("--all")[self.job]
        self.assertEqual(listed["state"], "crashed")
        self.assertRegex(listed["cleaned"], r"^20.*Z$")
        self.assertEqual(len(list(self.jobs.glob("*.job*"))), 1)
        self.assert_code(self.short_job("true", job=self.job), 0)  # under this name, since clean ends what runs of it
        self.assert_code(self.verb("clean"), 0)
        self.assertIsNone(self.status(self.job)["cleaned"])
        self.assertIn(f"job {self.job}: exited 0", self.verb("status").out)

    def test_a_stopped_agent_is_ended_with_its_workers(self):
        process = self.started_job("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
        agent, keeper = self.agent_and_keeper()
        os.kill(agent, signal.SIGSTOP)
        process.kill()
        process.wait()
        done = self.verb("clean")
        self.assert_code(done, 0)
        self.assertRegex(done.out, r"^localhost: [0-9]+ process(es)? found, 0 left\n$")
        self.assertEqual(self.processes_of_job(), [])
        self.assertTrue(wait_until(lambda: not is_running(agent) and not is_running(keeper)))

    def test_hosts_that_have_changed_are_not_guessed(self):
        hosts = self.dir / "hosts"
        hosts.write_text("127.0.0.1\n")
        self.crash(self.started_job("sleep", "1000", options=["--launcher", "local", "--hostfile", "hosts", "--nproc-per-node", 1]))
        self.assertTrue(wait_until(lambda: not self.processes_of_job()))
        self.assert_code(self.verb("clean", cwd="/"), 0)
        hosts.write_text("127.0.0.2\n")
        self.refuses(["clean"], f"the hosts of job {self.job} are not known: its options now name other hosts than at its start")
        self.assertTrue(wait_until(lambda: not self.processes_of_job()))


class Exec(VerbTest):

    def test_a_command_runs_in_the_environment_and_directory_of_the_worker(self):
        self.running_job("sh", "-c", "exec sleep 1000", options=["--nproc-per-node", 2, "--env", "COLOUR=blue"])
        done = self.verb("exec", "--rank", 1, self.job[:-1], "--", "sh", "-c", 'echo "$RANK $LOCAL_RANK $COLOUR $0 $(pwd -P)"; echo err >&2; exit 7', "a b",
                         cwd="/")
        self.assertEqual((done.code, done.out, done.err), (7, f"1 1 blue a b {self.dir.resolve()}\nerr\n", ""))
        self.says(["exec", "--", "sh", "-c", "echo s; sleep 300 & exit 5"], 5, "s\n")  # it does not wait for the child
        self.assertEqual(self.verb("exec", "--", "sh", "-c", "kill -9 $$").code, 137)
        self.assertEqual(self.verb("exec", "--", "/no/such/program").code, 127)
        long = "".join(f"{i}\n" for i in range(1, 20001))  # several messages
        self.assertEqual(self.verb("exec", "--", "seq", "1", "20000").out, long)
        answer = json.loads(self.verb("exec", "--json", "--", "echo", "x").out)
        self.assertEqual(answer, {"format": 1, "ranks": [{"rank": 0, "node": "localhost", "text": "x\n"}], "exit_code": 0, "troubles": []})

    def test_commands_that_run_hold_no_other_request(self):
        self.running_job("sleep", "1000", options=["--launcher", "local", "--host", "127.0.0.1,127.0.0.2,127.0.0.3", "--nproc-per-node", 1])
        for rank in range(24):
            self.viewer("exec", "--rank", rank % 3, "--", "sh", "-c", "touch $$; exec sleep 1000", cwd=self.dir, stderr=subprocess.DEVNULL)
        self.assertTrue(wait_until(lambda: len(self.processes_of_job()) == 3 + 24))
        self.assertEqual(self.status(self.job)["state"], "running")
        self.assert_code(self.verb("stop"), 0)

    def test_output_and_time_of_a_command_are_bounded(self):
        self.running_job("sleep", "1000")
        done = self.verb("exec", "--", "sh", "-c", "yes | head -c 3000000; exit 3")
        self.assertEqual((done.code, len(done.out) // 10000), (3, 104))
        self.assertEqual(done.err, "ddplaunch: the output has more than 1 MiB, and the rest was dropped\n")
        self.refuses(["exec", "--", "echo", "x" * 70000], "exec: the command has more than 32.0 KiB; put it into a file that its node can read")
        done = self.verb("exec", "--timeout", "500ms", "--", "sleep", "1000")
        self.assertEqual((done.code, done.out), (115, ""))
        self.assertIn("localhost: it did not end in time and was killed", done.err)
        self.assertEqual(len(self.processes_of_job()), 1)

    def test_a_command_ends_with_its_caller_and_with_the_job(self):
        process = self.running_job("sleep", "1000")
        for end in (lambda caller: caller.kill(), lambda caller: self.verb("stop")):
            caller = self.viewer("exec", "--", "sh", "-c", "setsid sleep 999 & exec sleep 998", stderr=subprocess.PIPE)

            def commands():
                return [line for _, line in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0") if line == "sleep 998 "]
            self.assertTrue(wait_until(commands))
            self.assertIsNone(process.poll())
            end(caller)
            self.assertTrue(wait_until(lambda: not commands()))
            caller.wait(60)
        self.assertEqual(process.wait(60), 143)
        self.assertIn("the attempt has ended", caller.stderr.read())
        self.assert_nothing_left()

    def test_what_cannot_be_asked(self):
        for words, hint in (((), ""), (("hostname",), '; before -- "hostname" names a job'), (("nvidia-smi", "-L"), '; before -- "nvidia-smi" names a job')):
            self.refuses(["exec", *words], f"exec needs a command behind --: ddplaunch exec --rank 0 -- nvidia-smi{hint}")
        process = self.running_job("sleep", "1000")
        self.assertEqual(self.verb("exec", self.job).code, 2)
        self.refuses(["exec", "--rank", 5, "--", "true"], f"the job has no rank 5, only rank 0\nddplaunch: job {self.job} gave no complete answer", 115)
        self.assertEqual(self.verb("exec", "--timeout", "2h", "--", "true").code, 2)
        self.stop(process)
        done = self.verb("exec", "--", "true")
        self.assertEqual(done.code, 3)
        self.assertRegex(done.err, rf"^ddplaunch: job {self.job} had ended before: exited 143: {BY_STOP}\n$")

    def test_what_cannot_be_run_or_has_ended_is_named(self):
        self.running_job("sh", "-c", 'test "$RANK" = 0 || exec sleep 1000', options=["--nproc-per-node", 2])
        self.assertTrue(wait_until(lambda: self.status(self.job)["nodes"][0]["running"] == 1))
        self.assertRegex(self.verb("status").out, r", 1 of 2 ranks run\n")
        for words in (["exec", "--rank", 0, "--", "true"], ["stacks", "--rank", 0], ["exec", "--", "true"]):
            self.assertIn("ddplaunch: localhost: rank 0 has ended\n", self.verb(*words).err)
        for command, code, why in ((["nosuchprog", "-x"], 127, "nosuchprog is no program"), (["/etc/passwd"], 126, "/etc/passwd is not executable"),
                                   (["sh", "-c", "nosuch"], 127, ""), (["env", "nosuch"], 127, ""), (["sh", "-c", "echo hello; exit 127"], 127, ""),
                                   (["sh", "-c", "exit 126"], 126, "")):
            done = self.verb("exec", "--rank", 1, "--", *command)
            said = f"ddplaunch: exit code {code} on localhost: {why} in the environment of rank 1 there\n" if why else ""
            self.assertEqual((done.code, done.err), (code, said), command)


class Hooks(VerbTest):
    """Commands at events (--on). process_hook_runner_test has their limits."""

    def hook_lines(self):
        return (self.job_dir / "hooks.log").read_text().splitlines()

    def test_each_event_reaches_its_hooks_and_the_end_finds_the_report(self):
        hooks = [word for event in ("start", "failure", "restart") for word in ("--on", f"{event}=cat")]
        done = self.run_job("--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "0", *hooks,
                            "--on", "end=cat; ls $DDPLAUNCH_JOB_DIR/report.json", "sh", "-c", FAILS_ONCE)
        self.assert_code(done, 0)
        lines = self.hook_lines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        self.assertEqual({(e["event"], e["attempt"]) for e in events},
                         {("attempt_running", 0), ("attempt_stopping", 0), ("attempt_started", 1), ("job_ended", None)})
        self.assertTrue(next(e for e in events if e["event"] == "attempt_stopping")["failure"])
        self.assertIn(f"{self.job_dir}/report.json", lines)

    CAUSE = 'echo "$DDPLAUNCH_EVENT|$DDPLAUNCH_EXIT_CODE|$DDPLAUNCH_CAUSE_HOST|$DDPLAUNCH_CAUSE_RANK|$DDPLAUNCH_CAUSE_EXIT_CODE|$DDPLAUNCH_CAUSE_SIGNAL|' \
            '$DDPLAUNCH_CAUSE_EXCEPTION_TYPE|$DDPLAUNCH_CAUSE_EXCEPTION"'

    def test_hooks_learn_the_root_cause_of_each_attempt(self):
        text = json.dumps({"message": {"message": "ValueError: $(touch x) of `rank`\"", "extraInfo": {"py_callstack": "", "timestamp": "1"}}})
        records = self.script("fails.py", f"#!{sys.executable}\nimport os, sys\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({text!r})\nsys.exit(1)\n")
        raises = self.script("raises.py", f"#!{sys.executable}\nraise ValueError('bad')\n")
        env = {**self.env, "DDPLAUNCH_CAUSE_HOST": "of another job", "DDPLAUNCH_EXIT_CODE": "99"}
        for events, words, lines in (
                (("failure", "restart", "end"), ["--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "0", "sh", "-c", FAILS_ONCE],
                 ["end|0||||||", "failure||localhost|1|7|||", "restart||localhost|1|7|||"]),
                (("failure", "end"), ["sh", "-c", "kill -SEGV $$"], ["end|139|localhost|0||SIGSEGV||", "failure||localhost|0||SIGSEGV||"]),
                (("end",), [records], ["end|1|localhost|0|1||ValueError|$(touch x) of `rank`\""]),
                (("end",), [raises], ["end|1|localhost|0|1||ValueError|bad"]),
                (("end",), ["--chdir", "/no/such/dir", "true"], ["end|115|localhost|||||"])):
            self.run_job(*(word for event in events for word in ("--on", f"{event}={self.CAUSE}")), *words, env=env)
            self.assertEqual(sorted(line for line in self.hook_lines() if "|" in line and not line.startswith("#")), lines)
        self.assertFalse((self.dir / "x").exists())

    def test_a_stop_by_the_user_is_no_failure_and_the_end_hook_learns_who_it_was(self):
        process = self.start("--on", "start=echo running", "--on", "failure=echo failed", "--on", 'end=echo "$DDPLAUNCH_EXIT_CODE: $DDPLAUNCH_CAUSE"', "sleep", 1000)
        self.assertTrue(wait_until(lambda: (self.job_dir / "hooks.log").exists()))
        process.send_signal(signal.SIGTERM)
        self.assert_code(self.finish(process), 143)
        self.assertEqual([line for line in self.hook_lines() if not line.startswith("#")], ["running", f"143: stopped by SIGTERM from {sender()}"])

    def test_a_failed_hook_changes_no_exit_code_and_the_last_line_stays_last(self):
        done = self.run_job("--on", "end=exit 3", "sh", "-c", "exit 4")
        self.assert_code(done, 4)
        self.assertEqual(done.err.splitlines()[-2:],
                         ["ddplaunch: warning: --on end=exit 3 failed: it exited 3", "ddplaunch: exit 4: rank 0 on localhost exited 4"])

    def test_a_signal_ends_the_waits_for_a_hook_and_for_readers_of_metrics(self):
        process = self.start("--metrics-listen", f"127.0.0.1:{free_port()}", "--metrics-linger", "500s",
                             "--on", "end=echo waiting >ready; sleep 1000; true", "sh", "-c", "exit 7")
        self.assertTrue(wait_until((self.dir / "ready").exists))
        process.send_signal(signal.SIGINT)
        process.wait(60)
        self.assertTrue(wait_until(lambda: not self.processes_of_job()))
        self.assert_code(self.finish(process), 7)

    def test_a_hook_of_the_end_finds_a_job_that_has_ended(self):
        process = self.started_job("sh", "-c", "until [ -e work ]; do sleep 0.05; done; exit 4",
                                   options=["--on", "end=echo >runs; until [ -e go ]; do sleep 0.05; done"])
        waiting = self.viewer("wait", self.job)
        (self.dir / "work").touch()
        self.assertTrue(wait_until((self.dir / "runs").exists))
        self.assertEqual(waiting.wait(60), 4)
        self.assertIn("exited 4", self.verb("status").out)
        self.assertEqual((self.verb("wait").code, self.verb("stop").code), (4, 3))
        self.refuses(["rm", self.job], f"job {self.job} has ended, but its ddplaunch (process {process.pid}) still "
                                       "runs a hook (--on), waits for the reader of its output, or serves its metrics (--metrics-linger)")
        self.assertIsNone(process.poll())
        (self.dir / "go").touch()
        self.assertEqual(process.wait(60), 4)
        self.assertEqual(self.verb("rm", self.job).code, 0)

    def test_a_hook_can_stop_its_job(self):
        for event, worker, code in (("start", "sleep 1000", 143), ("failure", "exit 5", 5), ("end", "true", 0)):
            done = self.run_job("--on", f"{event}={DDPLAUNCH} stop $DDPLAUNCH_JOB_ID; echo stopped", "sh", "-c", worker)
            self.assert_code(done, code)
            self.assertLess(done.seconds, 25, event)  # a hook has 30 s
            self.assertIn("stopped", self.hook_lines())

    def test_wrong_hooks_are_refused(self):
        for text in ("end", "end=", "crash=true"):
            done = self.run_job("--on", text, "true")
            self.assertEqual((done.code, done.err), (2, f"ddplaunch: --on {text}: give EVENT=COMMAND, and as EVENT start, failure, restart, "
                                                        "node-lost, hang, end\n"))


class Stacks(VerbTest):

    def wait_until_asleep(self, *names):
        """A worker that runs may not have executed its program yet, and then does something else than the others."""
        def seen():
            found = []
            for pid in self.processes_of_job():
                place = pathlib.Path("/proc", str(pid))
                with contextlib.suppress(OSError, IndexError):
                    if (place / "syscall").read_text().split()[0] in ("35", "230"):  # nanosleep, clock_nanosleep of x86-64
                        found.append((place / "comm").read_text().strip())
            return sorted(found) == sorted(names)
        self.assertTrue(wait_until(seen))

    def test_the_state_of_each_worker_is_shown_and_the_job_goes_on(self):
        process = self.running_job("sh", "-c", "[ $RANK = 1 ] && exec tail -f /dev/null; exec sleep 1000",
                                   options=["--launcher", "local", "--host", "127.0.0.1:2,127.0.0.2:1"])
        self.wait_until_asleep("sleep", "sleep", "tail")
        done = self.verb("stacks")
        self.assert_code(done, 0)
        # A rank that does something else comes first, and ranks that do the same share their stacks.
        self.assertRegex(done.out, r"^\[127\.0\.0\.1\] rank 1, pid (.|\n)*\nranks 0,2 on 127\.0\.0\.1, 127\.0\.0\.2 do the same; this is rank 0:\n\[127\.0\.0\.1\] rank 0, pid [0-9]+: .*sleep")
        self.assertNotRegex(done.out, "rank 2, pid")
        only = self.verb("stacks", "--rank", 2).out
        self.assertIn("rank 2, pid", only)
        self.assertNotIn("rank 0, pid", only)
        answer = json.loads(self.verb("stacks", "--json").out)
        self.assertEqual([(entry["rank"], entry["node"]) for entry in answer["ranks"]], [(rank, f"127.0.0.{1 + rank // 2}") for rank in range(3)])
        self.assertIsNone(process.poll())
        self.assertEqual(self.status(self.job)["state"], "running")


class FullDisk(VerbTest):
    """A job whose files are on a disk of 1 MiB, in a mount namespace of its own."""

    SCRIPT = """
mount -t tmpfs -o size=1m tmpfs disk || exit 77
"$1" --job-dir disk/job --job-id "$2" --nproc-per-node 1 sh -c "$3" >out 2>err &
job=$!
for i in $(seq 300); do "$1" status "$2" >status.txt 2>&1 && grep -q "no space left" status.txt && break; sleep 0.1; done
"$1" status --json "$2" >status.json
for i in $(seq 30); do "$1" report -o live.html "$2"; grep -q '"status":null' live.html || break; done
touch go
wait $job; echo $? >code
"$1" status "$2" >end.txt 2>&1
"$1" status --json "$2" >end.json
cp disk/job/report.json . && ls disk/job >files
"""

    def test_a_full_disk_has_room_for_the_report(self):
        (self.dir / "disk").mkdir()
        worker = "head -c 3000000 /dev/zero | tr '\\0' x; while [ ! -e go ]; do sleep 0.05; done; exit 3"
        done = subprocess.run(["unshare", "-rm", "sh", "-c", self.SCRIPT, "sh", DDPLAUNCH, self.job, worker], env=self.env, cwd=self.dir,
                              capture_output=True, text=True, timeout=120)
        if "unshare" in done.stderr or done.returncode == 77:
            self.skipTest("no tmpfs can be mounted in a namespace: " + done.stderr.strip())
        file = lambda name: (self.dir / name).read_text()
        self.assertEqual(file("code"), "3\n")
        self.assertRegex(file("status.txt"), r"\n  warning: no space left for the job's files: \S+: No space left on device; ")
        warnings = json.loads(file("status.json"))["warnings"]
        self.assertRegex("\n".join(warnings), "^no space left for the job's files: ")
        self.assertEqual(self.data_of(file("live.html"))["state"]["status"]["warnings"], warnings)
        report = json.loads(file("report.json"))
        self.assertEqual((report["exit_code"], report["root_cause"]["exit_code"]), (3, 3))
        # Two seconds after the last refused byte one that finds room tells the loss. The end does not repeat it.
        self.assertRegex("\n".join(report["warnings"]), "no space left(.|\n)*the job's files are (incomplete|written again); missing: \\d+ bytes of ")
        self.assertNotIn("reserved", file("files"))
        self.assertRegex(file("end.txt"), r"exited 3: rank 0 on localhost exited 3\n(.*\n)  warning: no space left for the job's files: ")
        self.assertEqual(json.loads(file("end.json"))["warnings"], report["warnings"])


class Steps(VerbTest):
    """Steps that workers report, and the figures about them. unit_report has the arithmetic."""

    # Rank 1 is a step behind. In attempt 0 it fails on request.
    WORKER = """
import json, os, socket, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["DDPLAUNCH_CONTROL"].removeprefix("unix:"))
link.sendall(b'{"hello":1,"pid":1,"rejoin":false}\\n')
report = {"step": 100 * (attempt + 1) - rank, "durations": [[30, 1], [50, 3], [60, 1]], "seconds": 0.5}
link.sendall(json.dumps(report).encode() + b'\\n{"step":4,"durations":[[-1,1]],"seconds":0}\\n')
while attempt == 1 or rank == 0 or not os.path.exists("fail"):
    time.sleep(0.05)
os._exit(3)
"""

    def metrics(self):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.control_socket()))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).decode().partition("\r\n\r\n")
        self.assertTrue(head.startswith("HTTP/1.1 200 OK"), head)
        self.assertIn("Content-Type: text/plain; version=0.0.4", head)
        return self.samples(body)

    def samples(self, body):
        """Returns the values of metrics by name and labels, without the two labels that each has."""
        found = {}
        for line in body.splitlines():
            if line.startswith("#"):
                continue
            name, _, value = line.rpartition(" ")
            common = re.search(rf'job="{self.job}",run="{self.job}\.[0-9a-z.-]+",?', name)
            self.assertTrue(common, line)
            found[name.replace(common[0], "").replace("{}", "")] = float(value)
        return found

    def test_metrics_are_served_through_the_end_of_a_job(self):
        port = free_port()
        place = f"127.0.0.1:{port}"
        with socket.create_server(("127.0.0.1", port)):
            done = self.verb("--metrics-listen", place, "true")
            self.assertEqual(done.code, 116, done)
            self.assertIn(f"--metrics-listen: cannot listen on port {port}: Address already in use", done.err)
        began = time.time()
        process = self.started_job("sh", "-c", f"while ! test -e {self.dir}/fail; do sleep 0.1; done; exit 7",
                                   options=["--metrics-listen", place, "--metrics-linger", "500s",
                                            "--on", f"end=until test -e {self.dir}/seen; do sleep 0.1; done"])
        def scrape():
            try:
                with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as reply:
                    return self.samples(reply.read().decode())
            except (urllib.error.HTTPError, ConnectionError):
                return {}
        self.assertTrue(wait_until(lambda: scrape().get('ddplaunch_job_state{state="running"}') == 1))
        self.assertNotIn("ddplaunch_exit_code", scrape())
        self.assertTrue(wait_until(lambda: "ddplaunch_job_cpus_busy{node=\"localhost\"}" in scrape()))
        (self.dir / "fail").touch()
        self.assertTrue(wait_until(lambda: scrape().get('ddplaunch_job_state{state="ended"}') == 1))
        (self.dir / "seen").touch()  # until then the hook has run
        last = scrape()
        self.assertEqual((last["ddplaunch_exit_code"], last['ddplaunch_job_state{state="running"}']), (7, 0))
        self.assertTrue(began - 1 < last["ddplaunch_start_time_seconds"] < last["ddplaunch_end_time_seconds"] < time.time() + 1, last)
        self.assertEqual(self.verb("wait", self.job).code, 7)  # the job has ended, though its ddplaunch waits
        for path in ("/", "/v1/status", "/v1/stop"):
            with self.assertRaises(urllib.error.HTTPError):
                urllib.request.urlopen(f"http://{place}{path}", timeout=10)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 7)

    def test_steps_and_goodput_of_a_restarted_job(self):
        self.script("worker.py", self.WORKER)
        nodes = ["--launcher", "local", "--host", "127.0.0.1,127.0.0.2", "--nproc-per-node", 1]
        process = self.started_job(sys.executable, "-S", "worker.py", options=[*nodes, "--verbose", "--max-restarts", 1, "--restart-backoff", "0"])
        self.assertTrue(wait_until(lambda: [node["step"] for node in self.status(self.job)["nodes"]] == [100, 99]))
        self.assertRegex(self.verb("status").out, r", step 99 (just now|.* ago)(, [0-9.]+ s/step)?, goodput [0-9.]+ %, restart 0 of 1\n(.*\n){2}  127\.0\.0\.2 +rank 1 +running +step 99\n")
        self.assertTrue(wait_until(lambda: self.metrics()["ddplaunch_step_duration_seconds_count"] == 10))
        metrics = self.metrics()
        self.assertEqual((metrics["ddplaunch_step"], metrics['ddplaunch_step_lag{node="127.0.0.2"}']), (99, 1))
        buckets = [metrics[f'ddplaunch_step_duration_seconds_bucket{{le="{bound}"}}'] for bound in (0.01, 0.01585, 0.1, 0.2512)]
        self.assertEqual((buckets, metrics["ddplaunch_step_duration_seconds_sum"]), ([0, 2, 8, 10], 1))
        self.assertEqual(metrics['ddplaunch_failures_total{cause="rank"}'], 0)
        (self.dir / "fail").touch()
        self.assertTrue(wait_until(lambda: self.status(self.job)["step"] == 199))
        metrics = self.metrics()
        self.assertEqual((metrics['ddplaunch_failures_total{cause="rank"}'], metrics["ddplaunch_attempts_total"]), (1, 2))
        spent = {phase: metrics[f'ddplaunch_time_seconds{{phase="{phase}"}}'] for phase in ("start", "train", "rework", "hang", "wait")}
        self.assertTrue(all(spent[phase] > 0 for phase in ("start", "train", "wait")), spent)
        self.assertEqual((spent["rework"], spent["hang"]), (0, 0))  # no step was repeated
        process.send_signal(signal.SIGTERM)  # Python writes nothing about it
        err = process.communicate(timeout=60)[1]
        self.assertRegex(err, r"\n  ran for .*, goodput [0-9.]+ %, 0 B of output\n")
        self.assertIn('"durations" is not a whole number in range', err)

    def test_the_last_sample_of_a_job_whose_ddplaunch_was_killed(self):
        self.script("worker.py", "import json, os, socket, time\nreports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
                    "reports.sendto(json.dumps({'step': 7, 'loss': 0.5}).encode(), os.environ['DDPLAUNCH_METRICS'])\ntime.sleep(1000)\n")
        process = self.started_job(sys.executable, "-S", "worker.py")
        journal = pathlib.Path(self.status(self.job)["directory"]) / "events.jsonl"
        self.assertTrue(wait_until(lambda: journal.exists() and '"event":"sample","attempt":0,"node":null,"rank":null,"reason":null,"step":7,' in journal.read_text()))
        process.kill()
        process.communicate()
        status = self.status(self.job)
        self.assertEqual((status["state"], status["step"], status["loss"], status["attempt"]), ("crashed", 7, 0.5, 0))
        self.assertRegex(self.verb("status").out, r"\n  last known: step 7, loss 0\.5, goodput ")

    def test_reports_of_a_program_that_does_not_speak_the_protocol(self):
        text = (pathlib.Path(__file__).parents[2] / "docs/users/metrics.md").read_text()
        example, = (code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "DDPLAUNCH_METRICS" in code)
        self.script("worker.py", example + "import time\nrank = int(os.environ['RANK'])\n"
                    "report(7 + rank, 2.5 - rank)\nreport('no step', 1)\ntime.sleep(1000)\n")
        process = self.started_job(sys.executable, "-S", "worker.py", options=["--nproc-per-node", 2])
        self.assertTrue(wait_until(lambda: self.status(self.job)["nodes"][0]["steps"] == [7, 8]))
        status = self.status(self.job)
        self.assertEqual((status["step"], status["loss"], status["nodes"][0]["losses"]), (7, 2.5, [2.5, 1.5]))
        self.assertRegex(self.verb("status").out, r", step 7 (just now|.* ago), loss 2\.5, goodput ")
        age = status["step_age_s"]
        self.assertTrue(wait_until(lambda: self.status(self.job)["step_age_s"] > age))
        metrics = self.metrics()
        self.assertEqual((metrics["ddplaunch_loss"], metrics["ddplaunch_step_duration_seconds_count"]), (2.5, 0))
        self.assertLess(metrics['ddplaunch_heartbeat_delay_seconds{node="localhost"}'], 60)
        process.send_signal(signal.SIGINT)
        self.assertRegex(process.communicate(timeout=60)[1], r"rank [01]: sent a report to DDPLAUNCH_METRICS that cannot be read: \"step\" is not a number; docs/users/metrics\.md has an example\n")
        ended = json.loads(self.verb("status", "--json").out)  # as while it ran
        self.assertEqual((ended["state"], ended["step"], ended["loss"], ended["step_age_s"]), ("ended", 7, 2.5, None))
        self.assertEqual(set(ended), set(json.loads(self.verb("ps", "--all", "--json").out)["jobs"][0]))
        self.assertRegex(self.verb("status").out, r"^job .*: exited 130: .*\n  step 7, loss 2\.5, goodput [0-9.]+ %\n  files in ")
        self.assertRegex(self.verb("ps", "--all").out, r"\n\S+ +exited 130 +2 +7 ")
        self.assertEqual(json.loads((pathlib.Path(ended["directory"]) / "report.json").read_text())["step"], 7)

    def test_a_rank_that_never_waits_for_others_is_named_as_slow(self):
        self.script("worker.py", "import os, time, ddplaunch\nwaited = 0 if os.environ['RANK'] == '3' else 0.04\n"
                    "for step in range(10**6):\n    time.sleep(0.05)\n    ddplaunch.report(step + 1, waited=waited)\n")
        modules = f"PYTHONPATH={BIN.parent / 'share/ddplaunch/python'}"
        process = self.started_job(sys.executable, "-S", "worker.py", options=[
            "--launcher", "local", "--host", "127.0.0.1,127.0.0.2", "--nproc-per-node", 2, "--env", modules])
        journal = pathlib.Path(self.status(self.job)["directory"]) / "events.jsonl"
        slow = lambda line: '"event":"rank_slow"' in line and '"rank":3' in line  # a busy machine can make others slow, too
        self.assertTrue(wait_until(lambda: journal.exists() and any(map(slow, journal.read_text().splitlines()))))
        process.send_signal(signal.SIGTERM)
        warnings = [line for line in process.communicate(timeout=60)[1].splitlines() if "rank 3 on 127.0.0.2 is slow: " in line]
        self.assertEqual(len(warnings), 1, warnings)
        self.assertRegex(warnings[0], r"^ddplaunch: warning: rank 3 on 127\.0\.0\.2 is slow: \d+ ms per step without waiting for others, "
                                      r"the median of the ranks is \d+ ms; ")

    def test_reports_of_a_script_that_is_asked_to_stop(self):
        """A script as on the page, with ddplaunch.report() and ddplaunch.stopping()."""
        text = (pathlib.Path(__file__).parents[2] / "docs/users/metrics.md").read_text()
        example, = (code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "train_step" in code)
        self.script("worker.py", "import time\ndef train_step(step):\n    time.sleep(0.01)\n    return 1 / (step + 1)\n"
                    "def save_checkpoint(): print('saved at', ddplaunch.stopping(), flush=True)\n" + example.replace("range(1000)", "range(10**6)"))
        modules = [f"PYTHONPATH={BIN.parent / 'share/ddplaunch/python'}"]
        process = self.started_job(sys.executable, "-S", "worker.py", options=["--nproc-per-node", 2, "--env", *modules])
        self.assertTrue(wait_until(lambda: (self.status(self.job)["step"] or 0) > 30))
        self.assertAlmostEqual(self.status(self.job)["loss"], 1 / self.status(self.job)["step"], delta=0.1)
        metrics = self.metrics()
        self.assertGreater(metrics["ddplaunch_step_duration_seconds_count"], 40)  # each step of each rank, and ten reports a second
        self.assertEqual(metrics['ddplaunch_step_duration_seconds_bucket{le="0.002754"}'], 0)
        self.assert_code(self.verb("stop"), 0)
        out = process.communicate(timeout=60)[0]
        self.assertEqual(sorted(line for line in out.splitlines() if "saved" in line), [f"[localhost:{rank}] saved at SIGTERM" for rank in (0, 1)])
        self.assertEqual(process.returncode, 143)

    def test_a_script_reports_without_a_job_and_is_stopped_by_the_second_signal(self):
        code = ("import ddplaunch, os, signal, time\nassert ddplaunch.stopping() is None\nddplaunch.report(1, loss=float('nan'))\n"
                "for pause in 0, 0, 1.2:\n    time.sleep(pause)\n    os.kill(os.getpid(), signal.SIGINT)\n"
                "    print(ddplaunch.stopping(), flush=True)\n")
        env = {key: value for key, value in os.environ.items() if not key.startswith("DDPLAUNCH")}
        done = subprocess.run([sys.executable, "-S", "-c", code], env=dict(env, PYTHONPATH=str(BIN.parent / "share/ddplaunch/python")),
                              capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (-signal.SIGINT, "SIGINT\nSIGINT\n", ""))

    def test_a_forked_child_of_a_script_that_watches_for_stops_ends_by_the_signal(self):
        """As Process.terminate() and join() of multiprocessing expect."""
        code = ("import ddplaunch, os, signal\nddplaunch.stopping()\nready, child = os.pipe(), os.fork()\n"
                "if not child:\n    os.write(ready[1], b'x')\n    while True:\n        signal.pause()\n"
                "os.read(ready[0], 1)\nos.kill(child, signal.SIGTERM)\nprint(os.waitpid(child, 0)[1], ddplaunch.stopping())\n")
        done = subprocess.run([sys.executable, "-S", "-c", code], env=dict(os.environ, PYTHONPATH=str(BIN.parent / "share/ddplaunch/python")),
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{int(signal.SIGTERM)} None\n", ""))


class Top(VerbTest):
    """The picture of a job on a terminal. unit_operate has all of its rows and keys."""

    def top(self, verb=("top",), **size):
        needs()
        return Terminal(self, [DDPLAUNCH, *verb], env=self.env, **size)

    def picture(self, terminal):
        return "\n".join(terminal.screen.display)

    def modes(self, terminal):
        """Returns whether the terminal of a program takes whole lines and shows what is typed."""
        flags = termios.tcgetattr(terminal.fd)[3]
        return bool(flags & termios.ICANON), bool(flags & termios.ECHO)

    def test_failure_ranks_output_and_stop(self):
        worker = 'echo "output of rank $RANK"; [ "$TORCHELASTIC_RESTART_COUNT" -ge 1 ] && exec sleep 1000; [ "$RANK" = 1 ] && { echo "ValueError: boom" >&2; exit 7; }; exec sleep 1000'
        process = self.started_job("sh", "-c", worker, options=["--launcher", "local", "--host", "127.0.0.1,127.0.0.2", "--nproc-per-node", 2,
                                                                 "--max-restarts", 1, "--restart-backoff", "0"])
        self.assertTrue(wait_until(lambda: self.status(self.job).get("attempt") == 1 and self.status(self.job)["state"] == "running"))
        terminal = self.top(("status", "--watch"), columns=80, rows=24)  # on a terminal this is top
        self.assertTrue(terminal.until(lambda: "● running" in self.picture(terminal) and "restarts left 0 of 1" in self.picture(terminal)), self.picture(terminal))
        self.assertRegex(self.picture(terminal), r"✖ rank 1 on 127\.0\.0\.1 exited 7 \(attempt 0\) *\n  ValueError: boom")
        self.assertTrue(terminal.until(lambda: re.search(r"127\.0\.0\.2 running +2-3 +[0-9.]+ ", self.picture(terminal))), self.picture(terminal))
        self.assertEqual(self.modes(terminal), (False, False))
        terminal.type(b"\x1b[B\r")
        self.assertTrue(terminal.until(lambda: "node 127.0.0.2: running" in self.picture(terminal)))
        terminal.type(b"j" + b"o")
        self.assertTrue(terminal.until(lambda: "output of rank 3" in self.picture(terminal) and "press a key" in self.picture(terminal)), self.picture(terminal))
        terminal.type(b" ")
        self.assertTrue(terminal.until(lambda: "node 127.0.0.2: running" in self.picture(terminal)))
        terminal.type(b"x")
        self.assertTrue(terminal.until(lambda: f"stop job {self.job}?" in self.picture(terminal)))
        terminal.type(b"y")
        self.assertEqual((terminal.wait(), process.wait(60)), (0, 143))
        self.assertRegex("".join(terminal.rows()), rf"^job {self.job}: exited 143: {BY_STOP} *files in ")
        self.assertTrue(terminal.raw.endswith(b"\n") and b"\x1b[?1049l" in terminal.raw and b"\x1b[?25h" in terminal.raw)

    def test_the_terminal_is_given_back_on_every_way_out(self):
        self.running_job("sleep", "1000")
        def send(number):
            return lambda terminal: os.kill(terminal.pid, number)
        for leave, code in ((lambda terminal: terminal.type(b"q"), 0), (lambda terminal: terminal.type(b"\x03"), 130),
                            *((send(number), 128 + number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))):
            terminal = self.top(columns=200, rows=30)
            self.assertTrue(terminal.until(lambda: "● running" in self.picture(terminal)))
            self.assertEqual(self.modes(terminal), (False, False))
            leave(terminal)
            self.assertTrue(terminal.until(lambda: terminal.raw.endswith(b"\x1b[?1049l"), 10))
            self.assertEqual(terminal.wait(), code)
        self.assertEqual(self.status(self.job)["state"], "running")

    def test_resize_suspend_and_continue_in_a_shell(self):
        self.running_job("sleep", "1000")
        tmux = Tmux(self, columns=200, rows=40, env=self.env)
        tmux.line(f"{DDPLAUNCH} top")
        shows = lambda rows: any("● running" in row for row in rows)
        self.assertTrue(tmux.until(shows))
        tmux.resize(80, 24)
        self.assertTrue(tmux.until(lambda rows: shows(rows) and any("Enter ranks" in row for row in rows[-2:]) and max(map(len, rows)) <= 80), tmux.rows())
        tmux.type("C-z")
        self.assertTrue(tmux.until(lambda rows: any("Stopped" in row for row in rows) and not shows(rows)), tmux.rows())
        tmux.line("fg")
        self.assertTrue(tmux.until(shows))
        tmux.type("q")
        self.assertTrue(tmux.until(lambda rows: not shows(rows)))
        tmux.line("echo code $?; stty -a | grep -c -- -icanon")
        self.assertTrue(tmux.until(lambda rows: "code 0" in rows and "0" in rows), tmux.rows())

    def test_without_a_terminal_and_without_a_running_job(self):
        self.assert_code(self.short_job("sh", "-c", "echo 'KeyError: 7' >&2; exit 3"), 3)
        self.refuses(["top"], "top needs a terminal; ddplaunch status --watch prints each change, and status --json is for programs")
        terminal = self.top(columns=200)
        self.assertEqual(terminal.wait(), 0)
        self.assertRegex("\n".join(terminal.rows()), r"job short: exited 3: rank 0 on localhost exited 3\n  files in .*\n✖ rank 0 on localhost exited 3 \(attempt 0\)\n  KeyError: 7$")


class Usage(VerbTest):
    """What nodes and GPUs use. unit_agent_core has the kernel's texts, unit_report the sums."""

    WORKER = """
import time
kept = bytearray(200 << 20)
kept[::4096] = b"x" * len(kept[::4096])
while True:
    time.sleep(0.001)
    for _ in range(100_000):
        pass
"""

    def usage(self, condition):
        """Returns the usage of the first node when the condition holds for it."""
        seen = []
        def holds():
            nodes = self.status(self.job).get("nodes") or [{}]
            usage = nodes[0].get("usage")
            seen[:] = [usage]
            return usage is not None and condition(usage)
        self.assertTrue(wait_until(holds, 60), seen)
        return seen[0]

    def samples(self):
        lines = (pathlib.Path(self.status(self.job)["directory"]) / "events.jsonl").read_text().split("\n")[:-1]
        return [sample for sample in map(json.loads, lines) if sample["event"] == "sample"]

    def test_processes_of_the_job_in_status_journal_and_report(self):
        self.script("worker.py", self.WORKER)
        # The work is done by a child: all processes of the job count.
        process = self.started_job("sh", "-c", f"{sys.executable} -S worker.py & wait", options=["--nproc-per-node", 2])
        usage = self.usage(lambda usage: usage["job_cpu"] > 0.01 and usage["job_memory"] > 400 << 20)
        self.assertLess(usage["job_memory"], 600 << 20)
        self.assertLessEqual(usage["job_cpu"], usage["cpus"])
        self.assertGreater(usage["cpu"], 0.01)
        self.assertGreater(usage["memory"], usage["memory_used"])
        self.assertEqual(usage["gpus"], [])
        self.assertTrue(wait_until(lambda: (self.status(self.job)["usage"] or {}).get("memory_used", 0) > 400 << 20))
        self.assertTrue(wait_until(lambda: [point for point in self.samples() if (point["memory_used"] or 0) > 400 << 20]))
        self.assert_code(self.verb("stop"), 0)
        process.communicate(timeout=60)
        ended = self.status(self.job)
        self.assertIsNone(ended["usage"])
        report = json.loads((pathlib.Path(ended["directory"]) / "report.json").read_text())["usage"]
        self.assertGreater(report["memory"]["peak"], 400 << 20)
        self.assertGreater(report["cpu"]["peak"], 0.01)
        # The last sample is that of the end, and counts in both.
        lines = (pathlib.Path(ended["directory"]) / "events.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["event"] for line in lines[-2:]], ["sample", "job_ended"])
        for key, name in (("cpu", "cpu"), ("memory_used", "memory")):
            self.assertAlmostEqual(max(point[key] or 0 for point in self.samples()), report[name]["peak"], places=3)
        self.assertEqual((report["gpus"], report["gpu_busy"]), (0, None))

    def test_gpus_by_nvml(self):
        library = BIN.parent / "fake_nvml"
        if not (library / "libnvidia-ml.so.1").exists():
            self.skipTest("no fake library")
        programs = self.dir / "programs"
        programs.mkdir()
        for name in ("ddplaunchd", "ddplaunch-nvml"):
            shutil.copy(BIN / name, programs / name)
        self.env["CUDA_VISIBLE_DEVICES"] = "1,2"
        process = self.started_job("sleep", "1000", options=["--agent", programs / "ddplaunchd", "--env", f"LD_LIBRARY_PATH={library}",
                                                             "--env", "FAKE_NVML_GPUS=3", "--nproc-per-node", 2, "--verbose"])
        usage = self.usage(lambda usage: usage["gpus"])
        first, second = usage["gpus"]
        self.assertEqual(first, {"index": 1, "busy": 41, "memory": 80 << 30, "memory_used": 1 << 30, "power_w": 412.0, "celsius": 61,
                                 "clock_mhz": 1980, "throttled_by": [], "xid": None})
        self.assertEqual((second["index"], second["throttled_by"]), (2, ["heat"]))
        helpers = [pid for pid, words in live_processes_with(f"FAKE_NVML_GPUS=3\0") if f"{programs}/ddplaunch-nvml" in str(words)]
        self.assertEqual(len(helpers), 1)
        self.assertEqual(self.status(self.job)["usage"]["gpus"], 2)
        self.assertTrue(wait_until(lambda: [point for point in self.samples() if point["gpu_busy"]]))
        self.assert_code(self.verb("stop"), 0)
        err = process.communicate(timeout=60)[1]
        self.assertRegex(err, r"\n  used GPU 42 % busy, 1\.0 of 80 GiB; CPU [0-9.]+ of \d+ cores, memory [0-9.]+ of \d+ GiB\n")
        self.assertTrue(wait_until(lambda: not is_running(helpers[0])))


class PageTest(VerbTest):
    HOSTILE = "</script><img src=x onerror=alert(1)> \033]0;title\007 {{data}} \u2028"

    def dashboard(self, *args):
        """Returns the process, the address of the page without its query, and the token."""
        process = self.viewer("dashboard", *args, stderr=subprocess.DEVNULL)
        line = process.stdout.readline()
        self.assertRegex(line, r"^http://\S+:\d+/\?token=\w+\n$")
        address, token = line.strip().split("?token=")
        return process, address, token

    @staticmethod
    def request(address, target, method="GET", **headers):
        """Returns the status and the body of a reply."""
        host, port = address.removeprefix("http://").rstrip("/").rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        try:
            connection.request(method, target, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode(errors="replace")
        finally:
            connection.close()

    def failed_job(self):
        text = self.HOSTILE.replace("\u2028", "")
        worker = self.script("worker.sh", f"#!/bin/sh\n[ $RANK = 0 ] && exec sleep 1000\nprintf '%s\\n' '{text}' >&2\nexit 3\n")
        self.assert_code(self.short_job("--nproc-per-node", "2", str(worker)), 3)

    def events(self, address, token):
        """Yields the kind and the data of each event."""
        host, port = address.removeprefix("http://").rstrip("/").rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as client, client.makefile("r") as lines:
            client.sendall(f"GET /events?token={token} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            for line in lines:
                if line.startswith("event: "):
                    yield line.split()[1], json.loads(next(lines).removeprefix("data: "))


class Page(PageTest):
    """The page about a job, from a file and from a server."""

    def test_a_report_is_one_inert_file(self):
        self.failed_job()
        file = self.dir / "report.html"
        self.assert_code(self.verb("report", "-o", file), 0)
        page = file.read_text()
        self.assertEqual((page.count("<script"), page.count("</script"), page.count("<img")), (2, 2, 0))
        self.assertNotRegex(page, r"(?i)(src|href)=.?(http|//)")
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.verb("report", "-o", "-").out, page)
        data = self.data_of(page)
        self.assertEqual((data["state"]["exit_code"], data["state"]["why"]), (3, "rank 1 on localhost exited 3"))
        self.assertEqual(data["events"][-1]["event"], "job_ended")
        self.assertEqual([line[0] for line in data["lines"]], [0])
        self.assertEqual(data["lines"][0][3:], [1, 2, self.HOSTILE.replace("\033]0;title\007", "").replace("\u2028", "")])
        self.refuses(["report", "-o", self.dir / "none/file"], f"-o {self.dir}/none/file: No such file or directory", 116)

    def test_each_request_needs_the_token(self):
        self.running_job("sleep", "1000")
        _, address, token = self.dashboard(self.job)
        for target in ("/", "/events", "/metrics", "/lines?attempt=0", "/nothing"):
            for query in ("", "token=", f"token={token[:-1]}", f"token={token}0", f"xtoken={token}"):
                both = target + ("&" if "?" in target else "?") + query
                self.assertEqual(self.request(address, both)[0], 401, both)
        self.assertTrue(wait_until(lambda: self.request(address, "/metrics", Authorization=f"Bearer {token}")[0] == 200))
        self.assertEqual(self.request(address, "/metrics", Authorization="Bearer wrong")[0], 401)
        status, page = self.request(address, f"/?token={token}")
        self.assertEqual((status, page.startswith("<!doctype html>")), (200, True))
        # Without the token a browser that loads the page again gets the same page, which has no data.
        nameless = re.sub('nonce="[^"]*"', "", page)
        self.assertEqual(re.sub('nonce="[^"]*"', "", self.request(address, "/")[1]), nameless)
        self.assertNotIn(self.job, nameless)
        self.assertEqual(self.request(address, f"/?token={token}", method="POST")[0], 405)

    def test_no_path_leads_out_of_the_job(self):
        self.running_job("sh", "-c", "echo hello; exec sleep 1000")
        _, address, token = self.dashboard(self.job)
        place = f"/lines?token={token}"

        def lines(query):
            status, body = self.request(address, f"{place}&{query}")
            return [line[3:] for line in json.loads(body)["lines"]] if status == 200 else None
        self.assertTrue(wait_until(lambda: lines("attempt=0&rank=0") == [[0, 1, "hello"]]))
        self.assertEqual(lines("attempt=0"), [[0, 1, "hello"]])
        for wrong in ("attempt=0&rank=7", "attempt=0&rank=../0", "attempt=0/../0&rank=0", "attempt=-1&rank=0", "rank=0", "",
                      "attempt=0&rank=99999999999", "attempt=%30&rank=0", "attempt=7"):
            self.assertEqual(self.request(address, f"{place}&{wrong}")[0], 404, wrong)
        for target in (f"/../events.jsonl?token={token}", f"//etc/passwd?token={token}", f"/jobs/x/?token={token}"):
            self.assertEqual(self.request(address, target)[0], 404, target)

    def test_the_output_of_all_ranks_is_merged_and_continued(self):
        worker = ("for i in 1 2 3; do echo \"$RANK out $i\"; done; printf '10%%\\r\\033[32m20%%\\033[0m\\rdone\\n' >&2; touch ready$RANK\n"
                  "until [ -e more ]; do sleep 0.05; done; echo late; printf 'no end'; exec sleep 1000")
        self.running_job("sh", "-c", worker, options=["--nproc-per-node", 2])
        _, address, token = self.dashboard(self.job)
        self.assertTrue(wait_until(lambda: (self.dir / "ready0").exists() and (self.dir / "ready1").exists()))

        def lines(after=""):
            return json.loads(self.request(address, f"/lines?token={token}&attempt=0&after={after}")[1])
        self.assertTrue(wait_until(lambda: len(lines()["lines"]) == 8))
        first = lines()
        for rank in (0, 1):
            of_rank = [line[4:] for line in first["lines"] if line[3] == rank]
            self.assertEqual([text for stream, text in of_rank if stream == 1], [f"{rank} out {i}" for i in (1, 2, 3)])
            self.assertEqual([text.replace("\033[0m", "") for stream, text in of_rank if stream == 2], ["done"])
        times = [line[1] for line in first["lines"]]
        self.assertEqual(times, sorted(times))
        self.assertLess(abs(time.time() - times[-1] / 1000), 60)
        self.assertEqual((first["restart"], first["open"]), (True, []))
        (self.dir / "more").touch()
        self.assertTrue(wait_until(lambda: len(lines(first["next"])["lines"]) == 2 and len(lines(first["next"])["open"]) == 2))
        new = lines(first["next"])
        self.assertEqual((new["restart"], [line[5] for line in new["lines"]], [line[5] for line in new["open"]]), (False, ["late"] * 2, ["no end"] * 2))
        self.assertEqual(lines("0.0")["restart"], True)

    def test_lines_have_their_exact_times_with_jsonl(self):
        self.assert_code(self.short_job("--jsonl", "sh", "-c", "printf 'one\\ntwo\\n\\377 three\\n'", errors="replace"), 0)
        lines = self.data_of(self.verb("report", "-o", "-").out)["lines"]
        self.assertEqual([line[2:] for line in lines], [[0, 0, 1, "one"], [0, 0, 1, "two"], [0, 0, 1, "\ufffd three"]])

    def test_the_host_header_must_name_this_host(self):
        self.running_job("sleep", "1000")
        _, address, token = self.dashboard(self.job)
        port = address.rstrip("/").rpartition(":")[2]
        own = socket.gethostname()
        for host, status in ((f"localhost:{port}", 200), ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("10.1.2.3", 200),
                             ("attacker.example", 421), (f"attacker.example:{port}", 421), ("localhost.attacker.example", 421),
                             ("127.0.0.1.attacker.example", 421), ("", 421), (own, 421)):
            for target in ("/", "/metrics", "/lines?attempt=0"):
                if status == 421 or target == "/":
                    query = ("&" if "?" in target else "?") + f"token={token}"
                    self.assertEqual(self.request(address, target + query, Host=host)[0], status, (host, target))
        self.assertEqual(self.request(address, f"/events?token={token}", Host="attacker.example")[0], 421)
        _, address, token = self.dashboard(self.job, "--listen", "0.0.0.0:0")
        self.assertRegex(address, rf"^http://{re.escape(own)}:\d+/$")
        address = address.replace(own, "127.0.0.1")
        for host, status in ((own, 200), (f"{own.upper()}:80", 200), (f"{own}.cluster", 200), (f"x{own}", 421), ("attacker.example", 421)):
            self.assertEqual(self.request(address, f"/?token={token}", Host=host)[0], status, host)

    def test_the_pages_of_all_jobs(self):
        self.failed_job()
        process = self.running_job("sh", "-c", "echo hello; exec sleep 1000")
        _, address, token = self.dashboard()
        self.assertEqual(self.request(address, "/jobs.json")[0], 401)
        status, body = self.request(address, f"/jobs.json?token={token}")
        jobs = json.loads(body)
        self.assertEqual((status, [job["job"] for job in jobs]), (200, [self.job, "short"]))
        self.assertEqual([job["state"] for job in jobs], ["running", "ended"])
        self.assertEqual((jobs[1]["exit_code"], jobs[1]["why"]), (3, "rank 1 on localhost exited 3"))
        self.assertGreater(jobs[1]["age_s"], 0)
        self.assertIn('{"page": "jobs"}', self.request(address, f"/?token={token}")[1])
        place = f"/jobs/{jobs[0]['run']}"
        self.assertIn('{"page": "job"}', self.request(address, f"{place}/?token={token}")[1])
        self.assertTrue(wait_until(lambda: self.request(address, f"{place}/metrics?token={token}")[0] == 200))
        self.assertTrue(wait_until(lambda: "hello" in self.request(address, f"{place}/lines?token={token}&attempt=0")[1]))
        self.assertEqual(self.request(address, f"{place}/")[0], 401)
        self.assertEqual(self.request(address, f"{place}/lines?attempt=0")[0], 401)
        for wrong in ("/metrics", "/jobs/", "/jobs/none/", "/jobs/../", f"{place}", f"{place}/../x"):
            self.assertEqual(self.request(address, f"{wrong}?token={token}")[0], 404, wrong)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    def test_a_detached_page_outlives_its_caller(self):
        self.failed_job()
        done = self.verb("dashboard", "--detach", "short")
        self.assertEqual(done.code, 0, done)
        pid = int(re.fullmatch(r"ddplaunch: the page of job short; kill (\d+) ends it\n", done.err)[1])
        self.addCleanup(lambda: is_running(pid) and os.kill(pid, signal.SIGKILL))
        address, token = done.out.strip().split("?token=")
        self.assertEqual(self.request(address, f"/?token={token}")[0], 200)
        self.assertEqual(os.getsid(pid), pid)
        self.assertEqual({os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)}, {"/dev/null"})
        os.kill(pid, signal.SIGTERM)
        self.assertTrue(wait_until(lambda: not is_running(pid)))
        done = self.verb("dashboard", "--detach", "--listen", "here:80", "short")
        self.assertEqual((done.code, done.out, done.err), (2, "", "ddplaunch: --listen: here: Name or service not known; give an address of this machine\n"))

    def test_events_come_while_the_job_runs_and_after_its_end(self):
        process = self.running_job("sleep", "1000")
        server, address, token = self.dashboard(self.job)
        events = self.events(address, token)

        def wait_for(kind, wanted):
            return next(data for name, data in events if name == kind and wanted(data))
        wait_for("restart", lambda data: data == {})
        wait_for("journal", lambda data: data[0]["event"] == "job_started" and "attempt_running" in [event["event"] for event in data])
        state = wait_for("state", lambda data: (data["status"] or {}).get("state") == "running")
        self.assertEqual((state["job"], state["command"]), (self.job, "sleep 1000"))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        wait_for("journal", lambda data: data[-1]["event"] == "job_ended")
        state = wait_for("state", lambda data: data["exit_code"] is not None)
        self.assertEqual((state["exit_code"], state["status"]), (143, None))
        self.assertEqual(self.request(address, f"/metrics?token={token}"), (503, "The job does not run, or does not answer.\n"))
        server.send_signal(signal.SIGINT)  # while a client waits for events
        self.assertEqual(server.wait(60), 0)

    def test_addresses_and_tokens(self):
        self.running_job("sleep", "1000")
        token = self.dir / "token"
        token.write_text("abcdefghijklmnop0123\n")
        token.chmod(0o600)
        _, address, given = self.dashboard(self.job, "--token-file", token, "--listen", "127.0.0.3:0")
        self.assertEqual((given, address.startswith("http://127.0.0.3:")), ("abcdefghijklmnop0123", True))
        for text, why in (("80", "give ADDRESS:PORT"), ("127.0.0.1:x", "give ADDRESS:PORT"), ("::1:80", "give ADDRESS:PORT"), ("here.invalid:80", "--listen: here.invalid: ")):
            done = self.verb("dashboard", "--listen", text)
            self.assertEqual(done.code, 2, done)
            self.assertIn(why, done.err)
        token.write_text("short\n")
        self.assertIn("at least 16 letters and digits", self.verb("dashboard", "--token-file", token).err)
        token.chmod(0o644)
        self.assertIn("readable by you alone (chmod 600)", self.verb("dashboard", "--token-file", token).err)


class Browser(PageTest):
    """The page as a browser shows it, and its logic in Node.js."""

    def dom(self, address):
        """Returns the page as a browser has built it."""
        browser = shutil.which("chromium")
        if not browser:
            self.skipTest("chromium is not installed")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.dir}/browser", "--virtual-time-budget=5000", "--timeout=60000", "--dump-dom", address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout

    def test_a_browser_shows_a_report(self):
        self.failed_job()
        file = self.dir / "report.html"
        self.assert_code(self.verb("report", "-o", file), 0)
        page = self.dom(f"file://{file}")
        self.assertIn("<title>✕ short failed</title>", page)
        self.assertRegex(page, r'<header id="head" class="bad">')
        self.assertRegex(page, r'id="word">failed</span>')
        self.assertRegex(page, r'id="sentence">rank 1 on localhost exited 3</p>')
        self.assertRegex(page, r'aria-label="rank 1: exited 3"[^>]* class="cell bad"[^>]*aria-pressed="true"')
        self.assertRegex(page, r'aria-label="rank 0: stopped by ddplaunch"[^>]* class="cell quiet"')
        self.assertRegex(page, r'<section id="failure"[^>]*><h2 id="h-failure">✕ Root cause: rank 1 on localhost exited 3</h2>')
        self.assertLess(page.index('id="failure"'), page.index('id="figures"'))
        self.assertIn("<dt>goodput</dt>", page)
        self.assertRegex(page, r'<section [^>]*id="slow-section"[^>]* hidden')
        shown = "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;  {{data}} "  # in the card, and in the output
        self.assertEqual((page.count(shown), page.count("<img")), (2, 0))
        # Only the region that tells the state is read out.
        self.assertEqual(re.findall(r'role="(?:status|alert|log)"|aria-live', page), ['role="status"'])
        self.assertIn('<p id="heard" class="heard" role="status">short failed</p>', page)

    def test_a_browser_lists_ranks_that_are_slow(self):
        self.failed_job()
        page = self.verb("report", "-o", "-").out
        data = self.data_of(page)
        node = {"node": "gpu01", "state": "running", "first_rank": 0, "ranks": 4, "running": 3, "steps": [100, 100, 100, 90], "step_seconds": [0.5, 0.55, 0.5, None]}
        data["state"]["status"] = {"state": "running", "attempt": 0, "age_s": 60, "step": 90, "step_s": 0.5, "world_size": 4, "nodes": [node]}
        file = self.dir / "slow.html"
        text = json.dumps(data).replace("</", "<\\/")
        file.write_text(re.sub(r'(id="data">).*(</script>\n)', lambda part: part[1] + text + part[2], page, count=1))
        section = re.search(r'<section [^>]*id="slow-section"[^>]*>.*?</section>', self.dom(f"file://{file}"), re.S)[0]
        self.assertNotIn("hidden", section.partition(">")[0])
        self.assertEqual(re.findall(r"<tr><td>(\d)</td>", section), ["3", "1"])

    def test_a_browser_plots_step_duration_and_loss(self):
        self.script("worker.py", "import json, os, socket, time\nsocket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
                    "for step in range(1_000_000):\n"
                    "    socket.sendto(json.dumps({'step': step, 'loss': 0.5}).encode(), os.environ['DDPLAUNCH_METRICS'])\n"
                    "    time.sleep(0.05)\n")
        self.running_job(sys.executable, "-S", "worker.py")
        _, address, token = self.dashboard(self.job)
        # A browser that prints its page cannot wait for events of a server, so it gets those of some seconds from the file.
        events = []
        for kind, data in self.events(address, token):
            events.append([kind, json.dumps(data)])
            if sum(data.count('"event": "sample"') for _, data in events) >= 5:
                break
        played = """<script>
            let seconds = 0;
            Date.now = () => 1000 * seconds;
            window.fetch = async () => ({ ok: false });
            window.EventSource = class {
              calls = {};
              constructor() { setTimeout(() => { for (const [kind, data] of EVENTS) { ++seconds; this.calls[kind]?.({ data }); } }); }
              addEventListener(kind, call) { this.calls[kind] = call; }
            };</script>""".replace("EVENTS", json.dumps(events).replace("</", "<\\/"))
        file = self.dir / "page.html"
        file.write_text(self.request(address, f"/?token={token}")[1].replace("<head>", "<head>" + played))
        page = self.dom(f"file://{file}")
        for name, words in (("loss", r"now 0\.5"), ("speed", r"now [0-9.]+ m?s")):
            section = re.search(rf'<section [^>]*id="{name}-section".*?</section>', page, re.S)[0]
            self.assertNotIn("hidden", section.partition(">")[0])
            self.assertRegex(section, r'<polyline class="line" points="[0-9., ]+"')
            self.assertGreater(len(re.findall(r'<text x="[^"]+" y="[^"]+" text-anchor="end">[^<]+</text>', section)), 1)  # ticks
            self.assertRegex(section, words)
        self.assertRegex(page, r'<button type="button" tabindex="0"[^>]* aria-label="rank 0: running"')
        self.assertRegex(page, r'id="freshness">updated ')

    def test_a_browser_lists_the_jobs_and_the_token_leaves_the_address(self):
        self.failed_job()
        _, address, token = self.dashboard()
        played = f"<script>window.fetch = async (target) => new Response(target === 'jobs.json' ? JSON.stringify(JOBS) : '[]');</script>"
        jobs = self.request(address, f"/jobs.json?token={token}")[1].replace("</", "<\\/")
        file = self.dir / "jobs.html"
        show = "<script>addEventListener('load', () => { document.body.dataset.address = location.search; });</script>"
        file.write_text(self.request(address, f"/?token={token}")[1].replace("<head>", "<head>" + played.replace("JOBS", jobs)) + show)
        page = self.dom(f"file://{file}?token={token}&x=1")
        self.assertRegex(page, r'<a href="jobs/short\.[^"/]+/">short</a>.*✕ failed.*exit code 3: rank 1 on localhost exited 3')
        self.assertIn('data-address="?x=1"', page)
        self.assertEqual(page.count(token), 0)

    def test_the_logic_of_the_page(self):
        node = shutil.which("node")
        if not node:
            self.skipTest("node is not installed")
        here = pathlib.Path(__file__).parent
        done = subprocess.run([node, here / "page_model_test.js"], capture_output=True, text=True, timeout=60, env=dict(os.environ, TZ="Asia/Kolkata"))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)


class Logs(VerbTest):

    def test_the_output_of_an_ended_job(self):
        # Rank 1 fails after rank 0 has ended. The failure would stop it.
        worker = 'echo "out $RANK"; echo "err $RANK" >&2; [ "$RANK" = 0 ] && exec touch ended; until [ -e ended ]; do sleep 0.05; done; exit 1'
        self.assert_code(self.verb("--job-id", "short", "--nproc-per-node", 2, "sh", "-c", worker), 1)
        for words, lines in (((), ["[localhost:0] err 0", "[localhost:0] out 0", "[localhost:1] err 1", "[localhost:1] out 1"]),
                             (("--rank", 1), ["err 1", "out 1"]),
                             (("--grep", "^out"), ["[localhost:0] out 0", "[localhost:1] out 1"]),
                             (("--failed", "--grep", "out"), ["[localhost:1] out 1"])):
            self.says(["logs", *words], out="".join(line + "\n" for line in lines))
        for words in (("--rank", 2), ("--rank", 99, "-t"), ("--rank", 7, "--failed")):
            self.refuses(["logs", *words], f"job short has no rank {words[1]}, only ranks 0-1")
        lines = [json.loads(line) for line in self.verb("logs", "--json", "--rank", 0).out.splitlines()]
        self.assertEqual(lines[1], {"format": 1, "attempt": 0, "rank": 0, "stream": "stdout", "line": "out 0"})
        self.assertEqual(self.verb("logs", "--grep", "(").code, 2)

    def test_attempt_stream_and_tail_select_lines(self):
        worker = 'for i in 1 2 3; do echo "out $TORCHELASTIC_RESTART_COUNT.$i"; echo "err $i" >&2; done; printf "no end"; exit 3'
        self.assert_code(self.short_job("--max-restarts", "1", "--restart-backoff", "0", "sh", "-c", worker), 3)
        for words, lines in ((("--attempt", 1, "--stream", "stdout"), ["out 1.1", "out 1.2", "out 1.3", "no end"]),
                             (("--stream", "stdout", "--tail", 2), ["out 1.3", "no end"]),
                             (("-n", 5, "--stream", "stdout"), ["no end", "out 1.1", "out 1.2", "out 1.3", "no end"]),
                             (("--attempt", 0, "--tail", 1), ["err 3", "no end"]),
                             (("--tail", 1, "--grep", "[.]2"), ["out 1.2"]),
                             (("--failed", "--attempt", 0, "--stream", "stderr", "-n2"), ["err 2", "err 3"]),
                             (("--tail", 0), [])):
            self.says(["logs", "--rank", 0, *words], out="".join(line + "\n" for line in lines))

    def test_a_selection_without_output_is_named(self):
        self.assert_code(self.short_job("sh", "-c", "echo out; exit 3"), 3)
        self.assert_code(self.short_job("sh", "-c", "exit 3", job="silent"), 3)
        for words, why in ((("--attempt", 4, "short"), "job short has no output of attempt 4 in /"),
                           (("--rank", 0, "--attempt", 0, "--stream", "stderr", "short"), "job short has no output of rank 0 of attempt 0 on stderr in /"),
                           (("--failed", "--stream", "stderr", "short"), "the ranks of job short that failed have no output on stderr\n"),
                           (("--failed", "silent"), "the ranks of job silent that failed have no output")):
            done = self.verb("logs", *words)
            self.assertEqual((done.code, done.out), (0, ""))
            self.assertIn("ddplaunch: " + why, done.err)
        for words in (("--tail", "-1"), ("--tail", "all"), ("--attempt", "x"), ("--stream", "both")):
            done = self.verb("logs", *words)
            self.assertEqual((done.code, done.out, done.err.count("\n")), (2, "", 1), done)
            self.assertIn(words[0], done.err)

    def test_timestamps(self):
        self.assert_code(self.short_job("printf", "one\ntwo\nthree\n"), 0)
        attempt = next(path for path in self.jobs.iterdir() if path.is_dir()) / "attempt_0"
        times = [line.split()[0] for line in self.verb("logs", "--rank", 0, "--timestamps").out.splitlines()]
        for text in times:
            self.assertLess(abs(time.time() - calendar.timegm(time.strptime(text, "~%Y-%m-%dT%H:%M:%SZ"))), 60)
        # The file had 4 bytes, the first line, when the second one was written.
        (attempt / "times.txt").write_text("1700000000123 rank_00000.stdout 4\n1700000020000 rank_00000.stdout 8\n")
        self.assertEqual(self.verb("logs", "-t", "--grep", "t").out, "[localhost:0] ~2023-11-14T22:13:20Z two\n[localhost:0] ~2023-11-14T22:13:40Z three\n")
        line = json.loads(self.verb("logs", "-t", "--json", "--tail", 1).out)
        self.assertEqual((line["time"], line["time_margin_s"]), ("2023-11-14T22:13:40Z", 10))

    def test_times_of_lines_are_exact_where_they_are_recorded(self):
        worker = "printf 'one\\none\\n10%%\\r20%%\\rdone\\n'; printf '\\377\\n' >&2"
        for label, options, words in (("{time} ", ["--jsonl"], []), ("{time} ", [], [])):
            self.assert_code(self.short_job("--label", label, *options, "sh", "-c", worker, errors="replace"), 0)
            form = r"\d\d:\d\d:\d\d\.\d{3} " if options else r"~\d\d:\d\d:\d\d\.-- "
            self.assertRegex(self.verb("logs", "--stream", "stdout").out, f"^{form}one\n{form}one\n{form}done\n$")
        attempt = next(self.jobs.glob("*/attempt_0/lines.jsonl")).parent
        job = attempt.parent.name
        lines = [json.loads(line) for line in (attempt / "lines.jsonl").read_text().splitlines()]
        at = {}
        for index, line in enumerate(line for line in lines if line["stream"] == "stdout"):
            at[index] = line["time"] = f"2026-01-01T00:00:0{index}.25{index}Z"
        (attempt / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        logs = ["logs", job, "--rank", 0, "-t", "--stream"]
        shown = [f"{at[0]} one\n", f"{at[1]} one\n", f"{at[2]} done\n"]
        for words, first in (((), 0), (("--tail", 2), 1), (("--since", "2026-01-01T00:00:01Z"), 1), (("--grep", "done"), 2), (("--since", "2026-01-01T00:00:03Z"), 3)):
            self.assertEqual(self.verb(*logs, "stdout", *words).out, "".join(shown[first:]), words)
        self.assertRegex(self.verb(*logs, "stderr", errors="replace").out, "^~20")  # its bytes are no UTF-8

    def test_lines_without_an_exact_time_are_not_lost_behind_old_ones(self):
        worker = "printf 'start\\n\\377 one\\n\\377 two\\n'"
        self.assert_code(self.short_job("--label", "[{host}:{rank}] ", "--jsonl", "sh", "-c", worker, errors="replace"), 0)
        lines = next(self.jobs.glob("*/attempt_0/lines.jsonl"))
        first = json.loads(lines.read_text().splitlines()[0]) | {"time": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - 20))}
        wrong = ['{"time":7}', '{"time":null,"rank":0,"stream":3,"line":"x"}', '{"time":"2026-01-01T00:00:00Z","rank":0,"stream":[],"line":null}', "7"]
        lines.write_text("\n".join([json.dumps(first), *lines.read_text().splitlines()[1:], *wrong]) + "\n")
        done = self.verb("logs", "--since", "15s", errors="replace")
        self.assertEqual((done.code, re.sub("[^\x20-\x7e\n]", "", done.out)), (0, "[localhost:0]  one\n[localhost:0]  two\n"))
        self.assertIn(first["time"] + " start\n", self.verb("logs", "-t", errors="replace").out)

    def test_a_bar_that_runs_is_shown_without_a_terminal(self):
        self.script("bar.py", "import sys, time\nfor i in range(3):\n  sys.stderr.write(f'\\r{i}0%|###  | {i}/10')\n  sys.stderr.flush()\n"
                    "open('drawn', 'w')\ntime.sleep(1000)\n")
        self.started_job(sys.executable, "-S", "bar.py")
        self.assertTrue(wait_until((self.dir / "drawn").exists))
        self.assertTrue(wait_until(lambda: "2/10" in self.verb("logs").out))
        for verb in (["logs", "-f"], ["logs", "-f", "--rank", 0]):
            self.assertIn("20%|###  | 2/10", self.viewer(*verb).stdout.readline())

    def test_lines_have_the_label_of_the_job(self):
        hosts = ["--launcher", "local", "--host", "127.0.0.1,127.0.0.2", "--nproc-per-node", "1"]
        done = self.short_job("--label", "{host} {node_rank}.{local_rank} {stream}| ", *hosts, "sh", "-c", "echo $RANK")
        self.assertEqual(sorted(done.out.splitlines()), ["127.0.0.1 0.0 stdout| 0", "127.0.0.2 1.0 stdout| 1"])
        self.assertEqual(self.verb("logs").out.splitlines(), sorted(done.out.splitlines()))
        self.assertEqual(self.verb("logs", "--rank", 1).out, "1\n")
        next(self.jobs.glob("*/events.jsonl")).unlink()  # it has the hosts of the ranks
        self.assertEqual(self.verb("logs", "--tail", 1).out, "? 0.0 stdout| 0\n? 0.0 stdout| 1\n")

    BAR = r'printf "start\n"; for i in 1 2 3; do printf "\r\033[32m%s/3 [###]\033[0m" $i; done'

    def test_a_progress_bar_is_its_last_state(self):
        self.assert_code(self.short_job("sh", "-c", self.BAR + r'; printf "\nend\n"'), 0)
        self.assertEqual(self.verb("logs", "--rank", 0).out, "start\n3/3 [###]\nend\n")
        self.assertEqual(json.loads(self.verb("logs", "--json", "--grep", "3/3").out)["line"], "3/3 [###]")
        data = self.data_of(self.verb("report", "-o", "-").out)
        self.assertEqual([re.sub("\033\\[[0-9]*m", "", line[5]) for line in data["lines"] if line[3:5] == [0, 1]], ["start", "3/3 [###]", "end"])

    def test_a_terminal_shows_a_bar_in_place_and_in_its_colours(self):
        needs()
        go = self.dir / "go"
        process = self.running_job("sh", "-c", self.BAR + f"; until [ -e {go} ]; do sleep 0.05; done; printf '\\r3/3 full\\nend\\n'")
        terminal = Terminal(self, [DDPLAUNCH, "logs", "-f"], columns=100, env={**self.env, "NO_COLOR": ""})
        self.assertTrue(terminal.until(lambda: "[localhost:0] 3/3 [###]" in terminal.rows()), terminal.rows())
        self.assertIn(b"\x1b[32m3/3", terminal.raw)
        go.touch()
        self.assertEqual((terminal.wait(), process.wait(60)), (0, 0))
        self.assertEqual(terminal.rows(), ["[localhost:0] start", "[localhost:0] 3/3 full", "[localhost:0] end"])

    def test_failed_shows_the_root_cause_and_no_rank_that_was_stopped(self):
        worker = '[ "$RANK" = 1 ] || { touch up; echo "stopped $RANK"; exec sleep 1000; }; until [ -e up ]; do sleep 0.05; done; echo "cause $TORCHELASTIC_RESTART_COUNT"; exit 7'
        self.assert_code(self.short_job("--nproc-per-node", "2", "--max-restarts", "1", "--restart-backoff", "0", "sh", "-c", worker), 7)
        self.assertEqual(self.verb("logs", "--failed").out, "[localhost:1] cause 0\n[localhost:1] cause 1\n")
        report = next(self.jobs.glob("*/report.json"))
        report.rename(report.with_suffix(".away"))  # as while the job runs: the journal decides
        self.assertEqual(self.verb("logs", "--failed").out, "[localhost:1] cause 0\n[localhost:1] cause 1\n")

    def test_failed_of_a_job_that_no_rank_ended(self):
        process = self.running_job("sh", "-c", "echo here; exec sleep 1000", options=["--nproc-per-node", 2])
        self.stop(process)
        self.refuses(["logs", "--failed"], f"no rank of job {self.job} is a root cause; ddplaunch status {self.job} shows how it ended", 0)

    def test_short_attempts_are_shown_in_their_place(self):
        worker = 'echo "out $TORCHELASTIC_RESTART_COUNT"; printf "==> attempt_1/rank_00000.stdout, 9 bytes <==\\nno end" >&2; exit 3'
        self.assert_code(self.short_job("--max-restarts", "30", "--restart-backoff", "0", "sh", "-c", worker), 3)
        self.assertTrue((next(self.jobs.glob("*/short_attempts.txt"))).exists())
        lines = [f"[localhost:0] {line}\n" for attempt in range(31)
                 for line in ("==> attempt_1/rank_00000.stdout, 9 bytes <==", "no end", f"out {attempt}")]
        self.assertEqual(sorted(self.verb("logs").out.splitlines(True)), sorted(lines))
        outputs = [json.loads(line) for line in self.verb("logs", "--json").out.splitlines()]
        attempts = [entry["attempt"] for entry in outputs if entry["stream"] == "stdout"]
        self.assertEqual(attempts, list(range(31)))
        self.assertEqual(self.verb("logs", "--failed").out, self.verb("logs").out)
        data = self.data_of(self.verb("report", "-o", "-").out)
        self.assertEqual([line[5] for line in data["lines"] if line[0] == 7 and line[3:5] == [0, 1]], ["out 7"])

    def test_since_skips_what_was_written_before(self):
        self.assert_code(self.short_job("--nproc-per-node", "2", "sh", "-c", 'printf "one\ntwo\nthree\n"; echo err >&2'), 0)
        attempt = next(path for path in self.jobs.iterdir() if path.is_dir()) / "attempt_0"
        hour = (time.time() - 3600) * 1000
        # At that time, rank 0 was in the middle of its second line.
        (attempt / "times.txt").write_text(f"{hour:.0f} rank_00000.stdout 5\n{hour + 1.8e6:.0f} rank_00000.stdout 99\ncut here")
        os.utime(attempt / "rank_00001.stdout", (1e9, 1e9))
        self.assertEqual(self.verb("logs", "--since", "59m").out, "[localhost:0] err\n[localhost:0] two\n[localhost:0] three\n[localhost:1] err\n")
        self.assertEqual(self.verb("logs", "--since", "2h").out.count("one"), 1)
        self.assertEqual(self.verb("logs", "--since", "2001-01-01T00:00:00Z").out.count("one"), 2)
        self.assertEqual(self.verb("logs", "--since", "2999-01-01T00:00:00Z").out, "")
        self.assertEqual(self.verb("logs", "--since", "yesterday").code, 2)

    def test_follow_prints_until_the_end_and_a_stopped_viewer_costs_nothing(self):
        go = self.dir / "go"
        process = self.started_job("sh", "-c", f"echo first; while [ ! -e {go} ]; do sleep 0.05; done; seq 200000")
        viewers = [self.viewer("logs", "-f") for _ in range(2)]
        self.assertEqual(viewers[0].stdout.readline(), "[localhost:0] first\n")
        viewers[1].send_signal(signal.SIGSTOP)
        go.touch()
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(len(viewers[0].communicate(timeout=60)[0].splitlines()), 200000)
        viewers[1].send_signal(signal.SIGCONT)
        self.assertEqual(len(viewers[1].communicate(timeout=60)[0].splitlines()), 200001)


class Attach(VerbTest):

    def test_it_shows_what_comes_and_ends_with_the_code_of_the_job(self):
        go = self.dir / "go"
        process = self.started_job("sh", "-c", f'echo "$TORCHELASTIC_RESTART_COUNT"; while [ ! -e {go} ]; do sleep 0.05; done; echo new; '
                                   '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 4; exit 3', options=["--max-restarts", 1, "--restart-backoff", "0"])
        self.assertTrue(wait_until(lambda: self.verb("logs").out == "[localhost:0] 0\n"))
        viewer = self.viewer("attach", self.job[:-1], stderr=subprocess.PIPE)
        self.assertEqual(viewer.stderr.readline(), f"ddplaunch: output of job {self.job} from now on; Ctrl-C leaves the job alone\n")
        go.touch()
        process.communicate(timeout=60)
        out, err = viewer.communicate(timeout=60)
        self.assertEqual((viewer.returncode, process.returncode), (4, 4))
        self.assertEqual(out, f"[localhost:0] new\n[localhost:0] 1\n[localhost:0] new\njob {self.job}: exited 4: rank 0 on localhost exited 4\n")
        self.assertRegex(err, r"(?m)^ddplaunch: attempt 0: rank exited, localhost, rank 0: exited 3$")
        self.assertRegex(err, r"(?m)^ddplaunch: attempt 1 running$")
        self.assertRegex(err, r"(?m)^ddplaunch: job ended: rank 0 on localhost exited 4$")
        self.assertEqual(self.verb("attach").code, 4)

    def test_ctrl_c_on_a_terminal_leaves_the_job(self):
        process = self.started_job("sh", "-c", "while :; do echo tick; sleep 0.05; done")
        needs()
        terminal = Terminal(self, [DDPLAUNCH, "attach"], columns=250, env=self.env)
        self.assertTrue(terminal.until(lambda: "[localhost:0] tick" in "\n".join(terminal.rows())))
        terminal.type(b"\x03")
        self.assertEqual(terminal.wait(), 130)
        self.assertIn(f"ddplaunch: job {self.job} goes on; ddplaunch stop {self.job} stops it", "\n".join(terminal.rows()))
        self.assertIsNone(process.poll())
        self.assertEqual(self.status(self.job)["state"], "running")


class ControlSocket(VerbTest):

    def ask(self, request):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(self.control_socket()))
            client.sendall(request)
            reply = b""
            while part := client.recv(65536):
                reply += part
            return reply

    def test_a_request_of_another_program_is_no_ddplaunch_stop(self):
        process = self.started_job("sleep", "1000")
        self.assertIn(b" 202 ", self.ask(b"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").splitlines()[0])
        self.assertEqual(process.wait(60), 143)
        name, who = sender().split(" (")
        self.assertRegex(self.status(self.job)["why"], rf"^stopped by SIGTERM from a request \({name}, {re.escape(who[:-1])} on \S+\)$")

    def test_wrong_requests_are_refused_and_the_job_goes_on(self):
        process = self.started_job("sleep", "1000")
        self.assertIn(b" 404 ", self.ask(b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n").splitlines()[0])
        self.assertIn(b" 405 ", self.ask(b"GET /v1/stop HTTP/1.1\r\nHost: localhost\r\n\r\n").splitlines()[0])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.assertEqual(self.ask(b"POST /v1/stop HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"), b"")
        for body in (b"", b"x", b"[]", b'{"argv": []}', b'{"argv": ["a\\u0000b"]}', b'{"argv": ["true"], "rank": -1}', b'{"argv": ["true"], "more": 1}'):
            reply = self.ask(b"POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            self.assertIn(b" 400 ", reply.splitlines()[0], body)
        self.assertIn(b" 405 ", self.ask(b"GET /v1/exec HTTP/1.1\r\nHost: localhost\r\n\r\n").splitlines()[0])
        self.assertEqual(self.status(self.job)["state"], "running")
        self.assertIsNone(process.poll())

    def test_another_user_is_refused_by_uid(self):
        python = shutil.which("python3", path="/usr/bin:/bin")
        if os.geteuid() != 0 or not python:
            self.skipTest("only root can become another user, who needs a Python of the system")
        self.started_job("sleep", "1000")
        path = self.control_socket()
        for place in (self.dir, self.dir / "runtime", path.parent):
            place.chmod(0o755)
        path.chmod(0o666)
        code = f"import socket; c = socket.socket(socket.AF_UNIX); c.connect({str(path)!r}); c.sendall(b'GET /v1/status HTTP/1.1\\r\\n\\r\\n'); print(c.recv(9))"
        done = subprocess.run([python, "-c", code], user=65534, group=65534, capture_output=True, text=True, timeout=30, cwd="/")
        self.assertTrue(done.stdout == "b''\n" or "ConnectionReset" in done.stderr or "BrokenPipe" in done.stderr, done)
        self.assertEqual(self.status(self.job)["state"], "running")

    def test_a_job_runs_where_nothing_can_be_written_for_the_list(self):
        blocked = self.dir / "blocked"
        blocked.write_text("a file")
        env = self.env | {"XDG_STATE_HOME": str(blocked), "TMPDIR": str(blocked), "XDG_RUNTIME_DIR": str(blocked)}
        done = self.verb("--job-dir", self.dir / "files", "--verbose", "--label", "none", "echo", "hello", env=env)
        self.assertEqual((done.code, done.out), (0, "hello\n"))
        self.assertIn("ddplaunch ps cannot show this job: ", done.err)


class Detached(VerbTest):

    def detach(self, *words, **options):
        return self.verb("--detach", "--job-id", self.job, *words, **options)

    def test_a_detached_job_survives_the_end_of_its_terminal(self):
        done = self.detach("--nproc-per-node", 2, "sh", "-c", "echo here; exec sleep 1000")
        self.addCleanup(self.verb, "stop", "--now", self.job)
        self.assertEqual((done.code, done.out), (0, f"{self.job}\n"))
        self.assertEqual(done.err, f"ddplaunch: job {self.job} runs; ddplaunch logs -f {self.job} shows its output\n")
        pid = self.listed()[self.job]["pid"]
        self.assertEqual(os.getsid(pid), pid)
        os.kill(pid, signal.SIGHUP)
        self.assertTrue(wait_until(lambda: self.verb("logs").out.count("here") == 2))
        self.assertEqual(self.status(self.job)["state"], "running")
        self.assertEqual(self.verb("stop").code, 0)
        self.assertEqual(self.verb("wait").code, 143)

    def test_a_detached_job_keeps_no_descriptor_of_its_caller(self):
        self.addCleanup(self.verb, "stop", "--now", self.job)
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        with open(self.dir / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = self.detach("sleep", "1000", pass_fds=(write, lock.fileno()))
        os.close(write)
        self.assert_code(done, 0)
        self.assertEqual(select.select([read], [], [], 10)[0], [read])  # the end of the pipe
        with open(self.dir / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.assertEqual(self.status(self.job)["state"], "running")

    def test_a_detached_job_keeps_the_descriptors_that_an_option_names(self):
        with open(self.dir / "report", "wb") as report, open(self.dir / "config", "wb") as config:
            options = ("--report", f"/dev/fd/{report.fileno()}", "--ssh-config", f"/proc/self/fd/{config.fileno()}")
            self.assert_code(self.detach(*options, "true", pass_fds=(report.fileno(), config.fileno())), 0)
        self.assert_code(self.verb("wait"), 0)
        self.assertTrue(wait_until((self.dir / "report").read_text))  # written after report.json, for which `wait` waits
        self.assertEqual(json.loads((self.dir / "report").read_text())["exit_code"], 0)

    def test_a_detached_job_writes_more_errors_than_a_pipe_holds(self):
        self.addCleanup(self.verb, "stop", "--now", self.job)
        self.assert_code(self.detach("sh", "-c", "head -c 400000 /dev/zero | tr '\\0' '\\n' >&2"), 0)
        self.assert_code(self.verb("wait"), 0)

    def test_a_logout_that_would_end_the_job_is_announced(self):
        tools = self.dir / "tools"
        tools.mkdir()
        self.env |= {"PATH": f"{tools}:{os.environ['PATH']}", "USER": "alice"}
        said = []
        for kills, excluded, lingers in (("false", "root", "false"), ("true", "alice", "false"), ("true", "root", "false"), ("true", "root", "true")):
            fake = tools / "busctl"
            fake.write_text(f'#!/bin/sh\ncase "$*" in\n*KillUserProcesses*) echo "b {kills}"; echo "as 1 \\"{excluded}\\"" ;;\n'
                            f'*/user/_{os.geteuid()}*Linger) echo "b {lingers}" ;;\n'
                            '--user*StartTransientUnit*.scope*PIDs*) echo "no bus for $8"; exit 1 ;;\n*) exit 2 ;;\nesac\n')
            fake.chmod(0o755)
            done = self.detach("true")
            self.assert_code(done, 0)
            self.assert_code(self.verb("wait"), 0)  # the job's ddplaunch may still write its report
            said.append(re.sub(r"ddplaunch: job \S+ runs; .*\n", "", done.err))
        ends = "ddplaunch: warning: logind ends this job at the logout (KillUserProcesses=yes); "
        self.assertEqual(said[:3], ["", "", f"{ends}run loginctl enable-linger before the job\n"])
        self.assertRegex(said[3], rf"^{re.escape(ends)}systemd made no scope for it: no bus for ddplaunch-[^/ ]+\.scope\\nit exited 1\n$")

    def test_a_start_that_fails_has_its_message_and_exit_code(self):
        in_files = ("--job-dir", self.dir / "files", "true")
        for number, (words, code) in enumerate(((in_files, 0), (in_files, 2), (("/no/such/program",), 127), (("--stdin", "0", "true"), 2),
                                                (("--report", "-", "true"), 2))):
            job = f"{self.job[:50]}.{number}"  # the ddplaunch of an ended job may still go on
            done = self.detach("--job-id", job, *words)
            self.assertEqual((done.code, done.out), (code, "" if code else f"{job}\n"), words)
            self.assertIn("ddplaunch: ", done.err)
            if code == 0:
                self.assertEqual(self.verb("wait", job).code, 0)


class KeptJobs(VerbTest):

    def test_the_newest_jobs_are_kept_and_a_running_one_always(self):
        process = self.started_job("sleep", "1000", options=["--keep-jobs", 0])
        for number in range(4):
            self.assert_code(self.short_job("true", job=f"old{number}"), 0)
        other = self.jobs / "not-a-job"
        other.mkdir()
        self.assert_code(self.short_job("--keep-jobs", 2, "true", job="last"), 0)
        kept = {path.name.partition(".")[0] for path in self.jobs.iterdir() if path.is_dir()}
        self.assertEqual(kept & {"old0", "old1", "old2"}, set())
        self.assertLessEqual({self.job, "last", "not-a-job"}, kept)
        self.assertEqual(set(self.listed("--all")) & {"old0", "old1", "old2"}, set())
        self.assertIsNone(process.poll())


if __name__ == "__main__":
    main()
