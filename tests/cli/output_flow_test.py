#!/usr/bin/env python3
"""Tests output under pressure, with slow or absent readers: no output is lost, and control messages never wait behind output."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, DDPLAUNCH, LaunchTest, Nodes, live_processes_with, main, sender, wait_until

TOOLS = BIN.parent / "tests"
LINES = str(TOOLS / "bench_lines")
CHECK = str(TOOLS / "bench_check_lines")
SLACK = float(os.environ.get("DDP_SLACK", "1"))  # more for sanitized programs
AT_ONCE = 10.0 * SLACK  # far below the grace of 25 s

# Prints forever. The file "go" in the job's directory makes rank 3 fail with a message on stderr.
FLOOD = f"""#!/bin/sh
if [ "$RANK" = 3 ]; then
  while [ ! -e go ]; do sleep 0.02; done
  echo "last words of rank 3" >&2
  exit 7
fi
exec {LINES} - 1000000000
"""


class Reader(threading.Thread):
    """Reads one pipe of a launcher to its end. Keeps the lines with the time of their arrival."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        self.pipe, self.data, self.closed = pipe, bytearray(), None
        self.start()

    def run(self):
        while some := os.read(self.pipe.fileno(), 1 << 16):
            self.data += some
        self.closed = time.monotonic()

    def has(self, text):
        return text.encode() in self.data

    def text(self):
        return bytes(self.data).decode(errors="surrogateescape")


class OutputFlow(LaunchTest):
    def launch(self, *args, **popen):
        process = self.start(*args, **popen)
        process.errors = Reader(process.stderr)
        return process

    def stored(self, rank, stream="stdout"):
        return self.job_dir / "attempt_0" / f"rank_{rank:05}.{stream}"

    def stored_bytes(self):
        return sum(path.stat().st_size for path in self.job_dir.glob("attempt_*/rank_*"))

    def wait_until_blocked(self):
        """Waits until output stops because no process reads: the pipe and all buffers before it are full."""
        def still():
            before = self.stored_bytes()
            time.sleep(0.3)
            return before > 0 and self.stored_bytes() == before
        self.assertTrue(wait_until(still), "the output does not stop although nothing reads it")

    def workers(self):
        return live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")

    def end(self, process, code, timeout=60):
        """Reads the remaining output. Returns (stdout, stderr)."""
        out = Reader(process.stdout)
        process.wait(timeout)
        out.join(10)
        process.errors.join(10)
        process.stdout.close()
        process.stderr.close()
        self.assertEqual(process.returncode, code, process.errors.text())
        self.assert_nothing_left()
        return bytes(out.data), process.errors.text()

    def check(self, data, ranks, count):
        done = subprocess.run([CHECK, str(ranks), str(count)], input=data, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        found.pop("bytes")
        self.assertEqual(found, dict(lines=ranks * count, good=ranks * count, torn=0, lost=0, dup=0, reordered=0,
                                     unlabelled=0, mislabelled=0))

    def check_stored(self, ranks, count):
        for rank in range(ranks):
            expected = subprocess.run([LINES, str(rank), str(count)], stdout=subprocess.PIPE, check=True).stdout
            self.assertTrue(self.stored(rank).read_bytes() == expected, f"the file of rank {rank} is not what it wrote")

    def test_a_reader_that_pauses_over_ssh_loses_nothing(self):
        # The reader stops for longer than a silent node or master is tolerated. Heartbeats do not wait behind the output.
        nodes = Nodes(self, 4)
        process = self.launch("--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--node-timeout", "6s", "--master-timeout", "6s",
                              LINES, "-", 40000)
        self.wait_until_blocked()
        blocked = time.monotonic()
        self.assertFalse(wait_until(lambda: process.poll() is not None, 6.5), process.errors.text())
        self.assertGreater(time.monotonic() - blocked, 6.4)
        self.assertEqual(len([1 for _, line in self.workers() if line.startswith(LINES)]), 8)
        out, _ = self.end(process, 0)
        self.check(out, 8, 40000)
        self.check_stored(8, 40000)

    def test_the_checker_finds_lost_and_torn_lines(self):
        line = subprocess.run([LINES, "0", "3"], stdout=subprocess.PIPE, check=True).stdout.splitlines(True)

        def found(data):
            done = subprocess.run([CHECK, "1", "3"], input=data, stdout=subprocess.PIPE, check=True)
            return {name: count for name, count in json.loads(done.stdout).items() if count and name not in ("lines", "bytes")}
        whole = [b"[0] " + one for one in line]
        self.assertEqual(found(b"".join(whole)), {"good": 3})
        self.assertEqual(found(whole[0] + whole[2]), {"good": 2, "lost": 1})
        self.assertEqual(found(whole[0] + whole[1][:50] + b"\n" + whole[1][50:] + whole[2]), {"good": 2, "lost": 1, "torn": 2})
        self.assertEqual(found(whole[0] + whole[1][:-1] + whole[2]), {"good": 2, "lost": 1})
        self.assertEqual(found(whole[0] + whole[2] + whole[1]), {"good": 3, "reordered": 1})
        self.assertEqual(found(b"".join(whole) + whole[2]), {"good": 4, "dup": 1})
        self.assertEqual(found(line[0] + whole[1] + b"[1] " + line[2]), {"good": 3, "unlabelled": 1, "mislabelled": 1})

    def test_failure_is_handled_and_shown_while_stdout_is_not_read(self):
        process = self.launch("--nproc-per-node", 4, self.script("flood.sh", FLOOD))
        self.wait_until_blocked()
        began = time.monotonic()
        (self.dir / "go").touch()
        self.assertTrue(wait_until(lambda: process.errors.has("last words of rank 3"), AT_ONCE), process.errors.text())
        self.assertTrue(wait_until(lambda: not self.workers(), AT_ONCE), self.workers())
        self.assertLess(time.monotonic() - began, 2 * AT_ONCE)
        # Output that is left in the workers' pipes is collected without the reader, and the report does not wait for it.
        self.assertTrue(wait_until(lambda: process.errors.has("ddplaunch: exit 7: "), 2 * AT_ONCE), process.errors.text())
        self.assertIsNone(process.poll(), "the job ended before its output was read")
        _, err = self.end(process, 7)
        self.assertEqual(err.splitlines()[-1], "ddplaunch: exit 7: rank 3 on localhost exited 7")
        self.assertEqual(self.stored(3, "stderr").read_text(), "last words of rank 3\n")

    def test_restart_while_stdout_is_not_read(self):
        # If output beyond the credit at the stop were a protocol error, the host would be charged, and the restart would wait
        # for its lease (25 s).
        script = self.script("flood.sh", f"""#!/bin/sh
            touch began.$TORCHELASTIC_RESTART_COUNT.$RANK
            if [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]; then exec {LINES} - 1000; fi
            if [ "$RANK" = 3 ]; then
              while [ ! -e go ]; do sleep 0.02; done
              exit 7
            fi
            exec {LINES} - 1000000000
            """)
        process = self.launch("--nproc-per-node", 4, "--max-restarts", 1, "--restart-backoff", "50ms", script)
        self.wait_until_blocked()
        (self.dir / "go").touch()
        again = wait_until(lambda: len(list(self.dir.glob("began.1.*"))) == 4, 2 * AT_ONCE)
        self.assertTrue(again, process.errors.text())
        out, err = self.end(process, 0)
        self.assertIn("restart 1 of 1", err)
        self.assertNotRegex(err, "credit|is lost|was lost|without localhost|not shown")
        files = [path.read_bytes() for path in self.job_dir.glob("attempt_*/rank_*.stdout")]
        lines = sum(data.count(b"\n") + (not data.endswith(b"\n")) for data in files)  # the kill may have cut one line
        self.assertEqual(out.count(b"\n"), lines)

    def test_endless_stderr_of_a_host_costs_no_memory(self):
        size = 20_000_000 if SLACK == 1 else 2_000_000
        ssh = self.script("ssh", "#!/bin/sh\n"
                          "for last; do :; done\n"
                          f"(yes 'a talkative host' | head -c {size} >&2; touch '{self.dir}/go') &\n"
                          'exec sh -c "$last"\n')
        os.mkfifo(self.dir / "end")
        end = os.open(self.dir / "end", os.O_RDWR)  # does not wait for a reader
        self.addCleanup(os.close, end)
        process = self.start("--host", "talkative", "--ssh-command", ssh, "--nproc-per-node", 1, "--start-timeout", "20s", "--no-push",
                             "sh", "-c", f"read -r word < '{self.dir}/end'; echo done")
        self.assertTrue(wait_until(lambda: (self.dir / "go").exists() or process.poll() is not None, 120))
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        os.write(end, b"end\n")
        process.errors = Reader(process.stderr)
        _, err = self.end(process, 0)
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
        if SLACK == 1:  # a sanitizer keeps freed memory
            self.assertLess(peak, 20_000)
        self.assertEqual(err.count("talkative: more than 64 KiB on the stderr of its agent (or of ssh); the rest is dropped\n"), 1)
        self.assertLess(err.count("talkative: a talkative host\n"), 8000)

    def test_a_signal_after_the_report_does_not_change_the_exit_code(self):
        process = self.launch("--nproc-per-node", 4, self.script("flood.sh", FLOOD))
        self.wait_until_blocked()
        (self.dir / "go").touch()
        self.assertTrue(wait_until(lambda: process.errors.has("ddplaunch: exit 7: ")), process.errors.text())
        # The message comes a moment before the point from which a signal ends ddplaunch at once. Earlier signals have no
        # effect.
        self.assertTrue(wait_until(lambda: process.send_signal(signal.SIGHUP) or process.poll() is not None))
        self.assertEqual(process.poll(), 7)

    def test_interrupt_is_handled_while_the_output_is_not_read(self):
        process = self.launch("--nproc-per-node", 4, LINES, "-", 1000000000)
        self.wait_until_blocked()
        process.send_signal(signal.SIGINT)
        self.assertTrue(wait_until(lambda: process.errors.has("stopping the workers"), AT_ONCE), process.errors.text())
        self.assertTrue(wait_until(lambda: not self.workers(), AT_ONCE), self.workers())
        self.assertIsNone(process.poll(), "the job ended before its output was read")
        out, err = self.end(process, 130)
        self.assertEqual(err.splitlines()[-1], f"ddplaunch: exit 130: stopped by SIGINT from {sender()}")
        # The shown output equals the files, to the last byte.
        for rank in range(4):
            label = b"[localhost:%d] " % rank
            shown = b"".join(line[len(label):] for line in out.splitlines(True) if line.startswith(label))
            stored = self.stored(rank).read_bytes()
            self.assertTrue(shown == stored or shown == stored + b"\n", f"rank {rank}: {len(shown)} of {len(stored)} shown")

    def test_last_megabyte_of_stopped_workers_arrives(self):
        # The workers write it after the stop signal, and the reader comes late.
        script = self.script("worker.py", "import os, signal, sys, time\n"
                             "def stop(*_):\n"
                             f"    os.execv('{LINES}', ['{LINES}', '-', '10486'])\n"
                             "signal.signal(signal.SIGTERM, stop)\n"
                             "open('ready.' + os.environ['RANK'], 'w')\n"
                             "while True: time.sleep(10)\n")
        process = self.launch("--nproc-per-node", 4, script.name)
        self.assertTrue(wait_until(lambda: len(list(self.dir.glob("ready.*"))) == 4))
        process.send_signal(signal.SIGTERM)
        self.wait_until_blocked()
        out, _ = self.end(process, 143)
        self.check(out, 4, 10486)
        self.check_stored(4, 10486)

    def test_head_takes_one_line_and_the_job_continues(self):
        process = self.launch("--nproc-per-node", 8, LINES, "-", 20000)
        self.assertTrue(process.stdout.readline().startswith("[localhost:"))
        process.stdout.close()
        process.wait(60)
        process.errors.join(10)
        process.stderr.close()
        err = process.errors.text()
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(err.count("standard output: Broken pipe; the job's output is in the files only\n"), 1, err)
        self.check_stored(8, 20000)
        self.assert_nothing_left()

    def test_sixty_ranks_at_once(self):
        process = self.launch("--nproc-per-node", 60, LINES, "-", 2000)
        out, _ = self.end(process, 0)
        self.check(out, 60, 2000)
        self.check_stored(60, 2000)

    def test_fifty_megabytes_without_a_newline(self):
        size = 50 << 20
        process = self.launch("--nproc-per-node", 2, LINES, "-", "odd", "flood", size)
        out, _ = self.end(process, 0)
        self.assertEqual([self.stored(rank).stat().st_size for rank in range(2)], [size, size])
        shown = {b"a": 0, b"b": 0}
        for line in out.splitlines():
            self.assertLess(len(line), (1 << 20) + 100)
            letter = b"ab"[line[len(b"[localhost:")] - ord("0"):][:1]
            body = line[len(b"[localhost:0] "):]
            run = re.match(letter + b"*", body)
            shown[letter] += len(run[0])
            self.assertLess(len(body) - len(run[0]), 80, "the line contains a part of another rank's line")
        self.assertEqual(shown, {b"a": size, b"b": size})

    def test_job_without_standard_descriptors(self):
        # A timer or file that gets one of the free descriptor numbers must not receive the workers' output.
        self.env["OMP_NUM_THREADS"] = "1"
        for closed in ([1], [2], [0, 1, 2]):
            with self.subTest(closed=closed):
                self.job_dir = self.dir / f"closed{len(closed)}{closed[0]}"
                redirections = " ".join(f"{fd}<&-" for fd in closed)
                process = subprocess.Popen(
                    ["sh", "-c", f'exec "$@" {redirections}', "sh", DDPLAUNCH, "--job-id", self.job, "--job-dir", self.job_dir,
                     "--nproc-per-node", "2", "sh", "-c", "echo out; echo err >&2; while [ ! -e go ]; do sleep 0.02; done"],
                    env=self.env, cwd=self.dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.assertTrue(wait_until(lambda: len(list(self.job_dir.glob("attempt_0/rank_*.stderr"))) == 2))
                self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in closed], ["/dev/null"] * len(closed))
                (self.dir / "go").touch()
                out, err = process.communicate(timeout=60)
                (self.dir / "go").unlink()
                self.assertEqual(process.returncode, 0, err)
                for rank in range(2):
                    self.assertEqual(self.stored(rank).read_text(), "out\n")
                    self.assertEqual(self.stored(rank, "stderr").read_text(), "err\n")
                self.assertEqual(sorted(out.splitlines()), [] if 1 in closed else [b"[localhost:0] out", b"[localhost:1] out"])
                self.assertEqual(sorted(err.splitlines()), [] if 2 in closed else [b"[localhost:0] err", b"[localhost:1] err"])
                self.assert_nothing_left()

    def test_stdout_continues_while_stderr_is_not_read(self):
        process = self.start("--nproc-per-node", 2, "sh", "-c",
                             f'{LINES} - 1000000000 >&2 & flood=$!; sleep 1; {LINES} - 20000; kill $flood; wait')
        out = Reader(process.stdout)
        self.assertTrue(wait_until(lambda: out.data.count(b"\n") == 40000), out.data.count(b"\n"))
        process.errors = Reader(process.stderr)
        process.wait(60)
        out.join(10)
        process.errors.join(10)
        self.check(bytes(out.data), 2, 20000)
        process.stdout.close()
        process.stderr.close()
        self.assert_nothing_left()


if __name__ == "__main__":
    main()
