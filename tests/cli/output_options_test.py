#!/usr/bin/env python3
"""Tests which part of the workers' output is shown, and what is kept where: labels, filters, folding, files, standard input."""

import contextlib
import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, main, wait_until

BOTH = 'echo out-$RANK; echo err-$RANK >&2'


class Labels(LaunchTest):
    def test_the_time_of_a_label_is_that_of_the_line(self):
        done = self.run_job("--label", "{time} {rank} {stream}|", "--nproc-per-node", 1, "sh", "-c",
                            "date +%H:%M:%S; echo err >&2")
        self.assert_code(done, 0)
        shown = re.fullmatch(r"(\d\d:\d\d:\d\d)\.\d{3} 0 stdout\|(\d\d:\d\d:\d\d)\n", done.out)
        self.assertIsNotNone(shown, repr(done))
        seconds = [sum(int(part) * unit for part, unit in zip(text.split(":"), (3600, 60, 1))) for text in shown.groups()]
        self.assertLessEqual((seconds[0] - seconds[1]) % 86400, 2)
        self.assertRegex(done.err, r"(?m)^\d\d:\d\d:\d\d\.\d{3} 0 stderr\|err$")

    def test_labels_have_colours_on_a_terminal_unless_no_color_is_set(self):
        self.env.pop("NO_COLOR", None)
        for variables, shown in (({}, "\x1b[36m[localhost:0]\x1b[0m plain"), ({"NO_COLOR": "1"}, "[localhost:0] plain")):
            master, slave = pty.openpty()
            self.job_dir = self.dir / f"tty{len(variables)}"
            process = subprocess.Popen(self.command("--nproc-per-node", 1, "echo", "plain"), stdin=slave, stdout=slave, stderr=slave,
                                       env={**self.env, "TERM": "xterm", **variables}, cwd=self.dir)
            os.close(slave)
            text = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while chunk := os.read(master, 4096):
                    text += chunk
            os.close(master)
            self.assertEqual(process.wait(), 0)
            self.assertIn(shown, text.decode())
            self.assertEqual(b"\x1b[36m" in text, not variables)


class Filters(LaunchTest):
    def shown(self, done):
        return sorted(re.findall(r"(?:out|err)-\d", done.out + done.err))

    def test_show_ranks(self):
        done = self.run_job("--nproc-per-node", 5, "--show-ranks", "3-9,0", "sh", "-c", BOTH)
        self.assert_code(done, 0)
        self.assertEqual(self.shown(done), sorted(f"{s}-{r}" for s in ("out", "err") for r in (0, 3, 4)))
        for rank in range(5):
            self.assertEqual((self.job_dir / f"attempt_0/rank_{rank:05}.stdout").read_text(), f"out-{rank}\n")

    def test_local_ranks_filter(self):
        done = self.run_job("--launcher", "local", "--host", "localhost:2,127.0.0.1:2", "--local-ranks-filter", "1",
                            "sh", "-c", BOTH)
        self.assert_code(done, 0)
        self.assertEqual(self.shown(done), ["err-1", "err-3", "out-1", "out-3"])

    def test_the_report_has_the_last_lines_of_a_hidden_rank(self):
        done = self.run_job("--nproc-per-node", 2, "--show-ranks", "0", "sh", "-c",
                            'if [ $RANK = 1 ]; then echo hidden-words >&2; exit 4; fi; sleep 60')
        self.assert_code(done, 4)
        self.assertIn("hidden-words", done.err)
        self.assertNotIn("[localhost:1]", done.err)


class Files(LaunchTest):
    def logs(self):
        top = self.dir / "logs" / self.job
        return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file() and path.name != "run.lock"}

    def test_redirected_streams_are_not_shown_and_teed_ones_are(self):
        done = self.run_job("--nproc-per-node", 2, "--log-dir", "logs", "--redirects", "0:2,1:1", "--tee", "1:2",
                            "sh", "-c", BOTH)
        self.assert_code(done, 0)
        self.assertEqual(self.logs(), {"attempt_0/0/stderr.log": "err-0\n", "attempt_0/1/stdout.log": "out-1\n",
                                       "attempt_0/1/stderr.log": "err-1\n"})
        self.assertEqual(done.out, "[localhost:0] out-0\n")
        self.assertIn("[localhost:1] err-1\n", done.err)
        self.assertNotIn("err-0", done.err)
        self.assertEqual((self.job_dir / "attempt_0/rank_00000.stderr").read_text(), "err-0\n")

    def test_only_the_newest_parts_stay_when_a_number_is_given(self):
        done = self.run_job("--nproc-per-node", 1, "--log-max-size", "4K:2", "seq", "5000")
        self.assert_code(done, 0)
        left = sorted(path.name for path in (self.job_dir / "attempt_0").iterdir())
        self.assertEqual(left, ["rank_00000.stdout.4", "rank_00000.stdout.5"])
        self.assertTrue((self.job_dir / "attempt_0/rank_00000.stdout.5").read_text().endswith("\n4999\n5000\n"))

    def test_lines_as_json_with_every_byte(self):
        script = self.script("w.py", "import os,sys\nr=os.environ['RANK']\n"
                             "sys.stdout.buffer.write(b'a\\xff\\xc3\\xa9\"\\t\\n10%\\r20%\\rdone\\nlast ' + r.encode())\n"
                             "sys.stdout.flush()\nsys.stderr.write('err\\n')\n")
        done = self.run_job("--nproc-per-node", 2, "--jsonl", "--show-ranks", "0", script)
        self.assert_code(done, 0)
        lines = [json.loads(line) for line in (self.job_dir / "attempt_0/lines.jsonl").read_text().splitlines()]
        for rank in range(2):
            mine = [line for line in lines if line["rank"] == rank]
            self.assertEqual({(line["host"], line["local_rank"]) for line in mine}, {("localhost", rank)})
            out = [line["line"].encode("utf-8", "surrogateescape") for line in mine if line["stream"] == "stdout"]
            self.assertEqual(out, [b'a\xff\xc3\xa9"\t', b"done", f"last {rank}".encode()])
            self.assertEqual([line["line"] for line in mine if line["stream"] == "stderr"], ["err"])
            for line in mine:
                self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")

    def test_each_attempt_has_its_files(self):
        done = self.run_job("--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "10ms", "--log-dir", "logs",
                            "--jsonl", "sh", "-c", 'echo attempt-$TORCHELASTIC_RESTART_COUNT; '
                            '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { [ $RANK = 0 ] && exit 3; sleep 60; }')
        self.assert_code(done, 0)
        self.assertEqual(self.logs()["attempt_0/0/stdout.log"], "attempt-0\n")
        for attempt in range(2):
            text = f"attempt-{attempt}\n"
            self.assertEqual((self.job_dir / f"attempt_{attempt}/rank_00000.stdout").read_text(), text)
            lines = (self.job_dir / f"attempt_{attempt}/lines.jsonl").read_text().splitlines()
            self.assertEqual({json.loads(line)["line"] for line in lines}, {text.strip()})
            self.assertLessEqual(len(lines), 2)
        self.assertEqual({self.logs()[f"attempt_1/{rank}/stdout.log"] for rank in range(2)}, {"attempt-1\n"})

    def test_a_file_can_be_followed_while_the_job_runs(self):
        process = self.start("--nproc-per-node", 1, "sh", "-c", "echo first; read wait; echo second",
                             stdin=subprocess.PIPE)
        file = self.job_dir / "attempt_0/rank_00000.stdout"
        self.assertTrue(wait_until(lambda: file.exists() and file.read_text() == "first\n"))
        process.stdin.write("go\n")
        process.stdin.flush()
        self.assertTrue(wait_until(lambda: file.read_text() == "first\nsecond\n"))
        self.assert_code(self.finish(process), 0)


class Fold(LaunchTest):
    def test_equal_lines_are_shown_once(self):
        # In each round all ranks write one equal line at once. A busy machine may spread a round over more than the 100 ms
        # within which lines are folded, so there are rounds until one was shown as a line of all ranks.
        script = self.script("w.sh", """#!/bin/sh
round=0
until [ -e enough ] || [ $round = 200 ]; do
  round=$((round + 1))
  : > "$round.$RANK"
  until [ -e enough ] || [ $(ls $round.* | wc -l) = $WORLD_SIZE ]; do sleep 0.01; done
  echo "round $round"
  echo "own $RANK"
done
""")
        process = self.start("--nproc-per-node", 4, "--fold", script)
        limit = threading.Timer(60, process.terminate)
        self.addCleanup(limit.cancel)
        limit.start()
        seen = {rank: [] for rank in range(4)}
        folded = 0
        for line in process.stdout:
            label, text = re.fullmatch(r"\[localhost:([\d,-]+)\] (.*)\n", line).groups()
            if label == "0-3":
                folded += 1
                (self.dir / "enough").touch()
            for word in label.split(","):
                first, _, last = word.partition("-")
                for rank in range(int(first), int(last or first) + 1):
                    seen[rank].append(text)
        self.assert_code(self.finish(process), 0)
        self.assertGreater(folded, 0, f"no line was folded in {len(seen[0]) // 2} rounds")
        for rank, lines in seen.items():  # folding neither drops nor reorders lines of a rank
            written = (self.job_dir / f"attempt_0/rank_{rank:05}.stdout").read_text()
            self.assertEqual(lines, written.splitlines(), f"rank {rank}")

    def test_held_lines_are_shown_before_the_report(self):
        # The other ranks write nothing, so the line of rank 3 is held until the end.
        done = self.run_job("--nproc-per-node", 4, "--fold", "sh", "-c", "[ $RANK = 3 ] || exec sleep 60; echo doomed; exit 3", stderr=subprocess.STDOUT)
        self.assert_code(done, 3)
        self.assertRegex(done.out, r"(?ms)^\[localhost:3\] doomed$.*^ddplaunch: the job failed after ")


class Stdin(LaunchTest):
    READ = 'cat >got.$RANK; echo done'

    def got(self, rank):
        return (self.dir / f"got.{rank}").read_text()

    def test_a_pipe_goes_to_rank_0_alone(self):
        for options, read in (([], "hello\n"), (["--stdin", "none"], "")):
            done = self.run_job(*options, "--nproc-per-node", 3, "sh", "-c", self.READ, stdin="hello\n")
            self.assert_code(done, 0)
            self.assertEqual([self.got(rank) for rank in range(3)], [read, "", ""])

    def test_a_file_goes_to_rank_0_alone(self):
        path = self.dir / "in"
        path.write_text("from a file\n" * 10000)
        with path.open() as file:
            done = self.run_job("--nproc-per-node", 2, "sh", "-c", self.READ, stdin=None)
            self.assertEqual([self.got(rank) for rank in range(2)], ["", ""])  # /dev/null is not a file
            process = self.start("--nproc-per-node", 2, "sh", "-c", self.READ, stdin=file)
            done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual([self.got(rank) for rank in range(2)], ["from a file\n" * 10000, ""])

    def test_a_terminal_is_read_only_when_asked_for(self):
        for options, read in (([], ""), (["--stdin", "0"], "typed\n")):
            master, slave = pty.openpty()
            self.addCleanup(os.close, master)
            os.write(master, b"typed\n\x04")
            process = self.start(*options, "--nproc-per-node", 1, "sh", "-c", self.READ, stdin=slave)
            os.close(slave)
            self.assert_code(self.finish(process), 0)
            self.assertEqual(self.got(0), read)

    def test_in_the_background_a_terminal_is_not_read(self):
        # The foreground group of the terminal is that of its session's leader; ddplaunch runs in another group.
        program = ("import os,signal,subprocess,sys,fcntl,termios\n"
                   "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
                   "sys.exit(subprocess.run(sys.argv[1:], process_group=0).returncode)\n")
        if sys.version_info < (3, 11):
            self.skipTest("needs subprocess' process_group")
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        os.write(master, b"typed\n\x04")
        self.job_dir = self.dir / "background"
        command = self.command("--stdin", "0", "--stop-grace", "1s", "--nproc-per-node", 1, "sh", "-c",
                               'timeout 1 cat >got.$RANK; echo done')
        process = subprocess.Popen([sys.executable, "-c", program, *command], stdin=slave, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.env, cwd=self.dir,
                                   start_new_session=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        os.close(slave)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(self.got(0), "")


if __name__ == "__main__":
    main()
