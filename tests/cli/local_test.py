#!/usr/bin/env python3
"""Tests jobs on this machine only: ranks, output, environment, failure, exit codes, signals."""

import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, SAME_REQUEST, LaunchTest, main, sender, wait_until


class LocalJob(LaunchTest):
    def test_ranks_and_world(self):
        done = self.run_job("--nproc-per-node", 4, "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE local $LOCAL_RANK"')
        self.assert_code(done, 0)
        lines = sorted(done.out.splitlines())
        self.assertEqual(lines, [f"[localhost:{r}] rank {r} of 4 local {r}" for r in range(4)])

    def test_chosen_thread_count_is_reported_once_to_python(self):
        self.env.pop("OMP_NUM_THREADS", None)
        done = self.run_job("--nproc-per-node", 2, "sh", "-c", "echo $OMP_NUM_THREADS")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertRegex(done.out, r"^\[localhost:[01]\] \d+\n")
        done = self.run_job("--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "1ms", sys.executable, "-c",
                            "import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
        self.assert_code(done, 0)
        self.assertRegex(done.err, r"(?m)^ddplaunch: localhost: OMP_NUM_THREADS is set to \d+ for each worker")
        self.assertEqual(done.err.count("OMP_NUM_THREADS"), 1, done.err)

    def test_stdout_and_stderr_stay_separate_and_complete(self):
        done = self.run_job("--nproc-per-node", 3, "sh", "-c",
                            'for i in 1 2 3 4 5 6 7 8 9; do echo out-$RANK-$i; echo err-$RANK-$i >&2; done; printf last')
        self.assert_code(done, 0)
        for rank in range(3):
            mine = [line for line in done.out.splitlines() if line.startswith(f"[localhost:{rank}] ")]
            self.assertEqual(mine, [f"[localhost:{rank}] out-{rank}-{i}" for i in range(1, 10)] +
                             [f"[localhost:{rank}] last"])
            mine = [line for line in done.err.splitlines() if line.startswith(f"[localhost:{rank}] ")]
            self.assertEqual(mine, [f"[localhost:{rank}] err-{rank}-{i}" for i in range(1, 10)])
        raw = (self.job_dir / "attempt_0" / "rank_00002.stdout").read_text()
        self.assertEqual(raw, "".join(f"out-2-{i}\n" for i in range(1, 10)) + "last")

    def test_job_log_has_events_with_times(self):
        self.env["SECRET"] = "hunter2"
        done = self.run_job("--nproc-per-node", 2, "sh", "-c", "exit $RANK", "a word", "two\nlines")
        self.assert_code(done, 1)
        log = (self.job_dir / "ddplaunch.log").read_text()
        self.assertNotIn("hunter2", log)
        steps = []
        for line in log.splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (info|debug) \[job\] .")
            steps.append(line.split(" ", 3)[3])
        self.assertRegex(steps[0], r"^\[job\] ddplaunch \S+, pid \d+, job \S+, hosts 1, worker: "
                                   r"sh -c 'exit \$RANK' 'a word' \(an argument of several lines\)$")
        for step in (r"\[job\] localhost: ranks 0 to 1 ", r"\[job\] localhost: attempt 0: rank 1 started, pid \d+$",
                     r"\[job\] localhost: attempt 0: rank 1, pid \d+ exited 1$",
                     r"\[job\] stopping all workers: rank 1 failed$"):
            self.assertEqual(sum(re.match(step, line) is not None for line in steps), 1, (step, log))
        self.assertEqual(steps[-1], "[job] ddplaunch: exit 1: rank 1 on localhost exited 1")

    def test_a_word_before_a_script_is_named(self):
        done = self.run_job("--nproc-per-node", 1, "no-such-program-here", "run", "train.py")
        self.assertNotIn("omit the word", done.err)
        done = self.run_job("--nproc-per-node", 1, "no-such-program-here", "train.py", "--lr", "1")
        self.assert_code(done, 127)
        self.assertRegex(done.err, r"localhost: .*cannot find program 'no-such-program-here' in PATH \(.*\); to run train\.py omit the word before it\n")

    def test_python_script_and_module(self):
        script = self.script("hello.py", "import sys\nprint('argv', sys.argv[1:])\n", mode=0o644)
        done = self.run_job(script.name, "--lr", "0.1", "--nproc-per-node", "x y")
        self.assert_code(done, 0)
        self.assertEqual(done.out, "[localhost:0] argv ['--lr', '0.1', '--nproc-per-node', 'x y']\n")
        done = self.run_job("-m", "this")
        self.assert_code(done, 0)
        self.assertIn("Zen of Python", done.out)

    def test_options_of_the_shell_that_starts_the_job_do_not_reach_workers(self):
        self.env.update(SHELLOPTS="noglob:noclobber", BASHOPTS="nocaseglob")
        show = ["bash", "-c", "env | grep -c OPTS=; echo $-; shopt nocaseglob; true"]
        for more in ([], ["--setup", "case $- in *f*) exit 3;; esac"]):
            done = self.run_job("--label", "", *more, *show)
            self.assert_code(done, 0)
            count, options, glob = done.out.splitlines()
            self.assertEqual((count, glob.split()), ("0", ["nocaseglob", "off"]))
            self.assertNotIn("f", options)
        done = self.run_job("--label", "", "--env", "SHELLOPTS=noglob", *show)  # asked for by name
        self.assertIn("f", done.out.splitlines()[1])

    @unittest.skipIf(b"__asan_init" in pathlib.Path(DDPLAUNCH).read_bytes(),
                     "a sanitizer needs more address space than the test allows")
    def test_too_little_memory_is_an_error_with_advice(self):
        # Each limit refuses another allocation, some of them in threads.
        refusals = 0
        for kilobytes in range(20_000, 36_000, 500):
            limits = (resource.RLIMIT_AS, (kilobytes << 10, kilobytes << 10))
            done = subprocess.run([DDPLAUNCH, "--job-dir", self.dir / str(kilobytes), "true"], env=self.env, capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL, preexec_fn=lambda: resource.setrlimit(*limits))
            if done.returncode != 0:
                self.assertEqual(done.returncode, 116, (kilobytes, done.stderr))
                self.assertRegex(done.stderr.splitlines()[-1], "^ddplaunch: exit 116: the system refused a thread or memory: "
                                                               ".*; check ulimit -u and ulimit -v$")
                refusals += 1
        self.assertGreater(refusals, 5)

    def test_a_loop_over_a_file_keeps_the_lines_that_rank_0_does_not_read(self):
        listed = self.dir / "list"
        def loop(*worker):
            line = f'while read x; do "$0" --label none --job-id job$x "$@" $x; done <{listed}'
            return subprocess.run(["sh", "-c", line, DDPLAUNCH, *worker], env=self.env, capture_output=True, text=True, timeout=60)
        # Short enough for the end of file to reach the worker, and longer than all buffers on the way.
        for rest in ("", "x" * 99 + "\n"):
            listed.write_text("1\n2\n3\n" + rest * 5000)
            done = loop("sh", "-c", '[ $1 != 3 ] || head -c 500000 >/dev/null; echo job $1', "sh")
            self.assertEqual((done.stdout, done.stderr), ("job 1\njob 2\njob 3\n", ""))
        listed.write_text("1\na\n2\nb\n3\nc\n")
        done = loop("sh", "-c", 'read y; echo $1 $y', "sh")
        self.assertEqual((done.stdout, done.stderr), ("1 a\n2 b\n3 c\n", ""))

    def test_blocked_reader_of_stdout_blocks_neither_stderr_nor_the_end(self):
        # The worker ignores the first signal: the second would end ddplaunch without the warning if the job had ended before.
        process = self.start("sh", "-c", "trap '' INT TERM; while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done")
        self.assertTrue(process.stdout.readline())
        # The test stops reading, so the pipe and all buffers before it fill up.
        file = self.job_dir / "attempt_0" / "rank_00000.stdout"
        self.assertTrue(wait_until(lambda: file.exists() and file.stat().st_size > (2 << 20)))
        process.send_signal(signal.SIGINT)
        self.assertIn("stopping the workers", process.stderr.readline())
        time.sleep(SAME_REQUEST)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        said = process.stderr.read().splitlines()
        self.assertRegex(said[-2], r"^ddplaunch: exit 130: stopped by SIGINT from \S+ \(pid \d+ of \S+ \S+\); the grace period was cut short by a second SIGINT "
                                   r"after [\d.]+ s from \S+ \(pid \d+ of \S+ \S+\)$")
        self.assertEqual(said[-1], "ddplaunch: warning: stdout was not read; the rest of the output is only in the job's files")
        process.stdout.close()
        process.stderr.close()

    def test_inherited_signal_dispositions_and_masks_do_no_harm(self):
        def spoil():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        process = self.start("sh", "-c", "echo up; sleep 60", preexec_fn=spoil)
        self.assertTrue(process.stdout.readline())
        process.terminate()
        self.assert_code(self.finish(process, timeout=60), 143)

    def test_two_live_runs_cannot_share_a_directory(self):
        first = self.start("sh", "-c", "echo up; read line < fifo; echo end", preexec_fn=lambda: os.mkfifo(self.dir / "fifo"))
        self.assertTrue(first.stdout.readline())
        shared = self.job_dir
        second = subprocess.run(self.command("--job-id", f"{self.job}-b", "--job-dir", shared, "touch", "started"), capture_output=True, text=True,
                                env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL)
        self.assertEqual(second.returncode, 2)
        self.assertEqual(second.stderr, f"ddplaunch: exit 2: the job directory {shared} is in use by ddplaunch with pid {first.pid}; "
                                        "wait until that run has ended, or choose another with --job-dir\n")
        self.assertFalse((self.dir / "started").exists())
        (self.dir / "fifo").write_text("go\n")
        self.assert_code(self.finish(first), 0)
        self.assertEqual((shared / "attempt_0/rank_00000.stdout").read_text(), "up\nend\n")

    def test_a_job_id_and_its_directory_work_again_when_that_was_deleted(self):
        for word in ("one", "two", "three"):
            done = self.run_job("--job-id", self.job, "--job-dir", self.dir / "out", "-n", "1", "echo", word)
            self.assert_code(done, 0)
            self.assertIn(word, done.out)
            shutil.rmtree(self.dir / "out")

    def test_a_fixed_job_id_works_again(self):
        for word in ("one", "two"):
            done = subprocess.run([DDPLAUNCH, "--rdzv_id", self.job, "--log_dir", "logs", "echo", word], capture_output=True,
                                  text=True, env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("state/ddplaunch/jobs", "logs"):
            runs = sorted(path for path in (self.dir / name).iterdir() if path.is_dir())
            self.assertEqual(len(runs), 2)
            for run in runs:
                self.assertRegex(run.name, rf"^{self.job}\.\d{{8}}-\d{{6}}-[0-9a-f]{{6}}$")
        texts = sorted(path.read_text() for path in (self.dir / "logs").glob("*/attempt_0/0/stdout.log"))
        self.assertEqual(texts, ["one\n", "two\n"])

    def test_localhost_with_a_port_means_ssh(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, not listening
            hosts = self.script("hosts", f"box address=127.0.0.1 port={taken.getsockname()[1]}\n")
            done = self.run_job("--hostfile", hosts, "--start-timeout", "10s", "echo", "here")
        self.assert_code(done, 111)
        self.assertEqual(done.out, "")

    def test_a_long_start_names_what_it_waits_for(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            hosts = self.script("hosts", f"box address=127.0.0.1 port={silent.getsockname()[1]}\n")
            process = self.start("--hostfile", hosts, "true")
            self.assertEqual(process.stderr.readline(), "ddplaunch: waiting for 1 of 1 node: box (SSH greeting)\n")
            process.send_signal(signal.SIGINT)
            done = self.finish(process)
        self.assert_code(done, 130)
        self.assertEqual(done.err, f"ddplaunch: job {self.job}: files in {self.job_dir}\nddplaunch: exit 130: stopped by SIGINT from {sender()} while "
                                   "waiting for 1 of 1 node: box (SSH greeting)\n")

    def test_many_workers(self):
        done = self.run_job("--nproc-per-node", 300, "--oversubscribe", "sh", "-c", "echo $RANK", timeout=120)
        self.assert_code(done, 0)
        self.assertEqual(sorted(int(line.split("] ")[1]) for line in done.out.splitlines()), list(range(300)))

    def limited(self, soft, hard, *args):
        return self.run_job(*args, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))

    def test_few_descriptors(self):
        done = self.limited(64, 4096, "--nproc-per-node", 40, "sh", "-c", "ulimit -Sn")
        self.assert_code(done, 0)
        self.assertEqual({line.split("] ")[1] for line in done.out.splitlines()}, {"64"})

    def test_a_local_job_needs_few_open_files(self):
        job = ("--nproc-per-node", 2, "--oversubscribe", "sh", "-c", "echo out; echo err >&2")
        done = self.limited(39, 39, *job)
        self.assert_code(done, 116)
        self.assertIn("ddplaunch: exit 116: 1 host needs 40 open files on this machine, but the hard limit is 39;", done.err)
        done = self.limited(64, 64, *job)
        self.assert_code(done, 0)
        self.assertEqual(done.out.count("out\n"), 2)
        for rank in range(2):
            self.assertEqual((self.job_dir / f"attempt_0/rank_{rank:05}.stderr").read_text(), "err\n")

    def test_more_workers_than_the_hard_limit_of_open_files_allows(self):
        job = ("--nproc-per-node", 40, "--oversubscribe", "sh", "-c", "touch ran")
        done = self.limited(307, 307, *job)
        self.assert_code(done, 116)
        self.assertTrue(done.err.endswith(
            "ddplaunch: exit 116: node localhost: 40 workers need 308 open files on this node, but the hard limit is 307; raise it "
            "(ulimit -n 308, nofile in /etc/security/limits.conf, or LimitNOFILE= of the service)\n"), done.err)
        self.assertFalse((self.dir / "ran").exists(), "a worker was started")
        self.assert_code(self.limited(308, 308, *job), 0)

    def test_more_hosts_than_the_hard_limit_of_open_files_allows(self):
        done = self.limited(1024, 4096, "--hosts", "node[0001-1000]", "true")
        self.assert_code(done, 116)
        self.assertEqual(done.err, "ddplaunch: exit 116: 1000 hosts need 7064 open files on this machine, but the hard limit is "
                         "4096; raise it (ulimit -n 7064, nofile in /etc/security/limits.conf, or LimitNOFILE= of the service)\n")
        self.assertFalse(self.job_dir.exists())


if __name__ == "__main__":
    main()
