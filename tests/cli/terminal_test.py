#!/usr/bin/env python3
"""Tests what a user sees: the built programs on real pseudo-terminals, read by terminal emulators (pyte, tmux)."""

import os
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, Nodes, live_processes_with, main, wait_until
from tests.support.terminal import DEBIAN_PYTHON, Terminal, Tmux, needs

# Bars stop halfway until the test has seen them all on the screen.
TQDM = """
import os, sys, time
from tqdm import tqdm
rank = int(os.environ["RANK"])
for i in tqdm(range(30), desc="train", mininterval=0.02):
    time.sleep(0.04 + 0.004 * rank)
    while i == 8 + rank and not os.path.exists("seen"):
        time.sleep(0.02)
    if i % 10 == 5:
        print(f"stdout of {rank} at {i}")
    if i % 10 == 7:
        sys.stderr.write(f"log of {rank} at {i}\\n")
    if i % 10 == 9:
        tqdm.write(f"written by {rank} at {i}", file=sys.stderr)
"""

NESTED = """
import os, time
from tqdm import tqdm
for epoch in tqdm(range(3), desc="epochs"):
    for i in tqdm(range(10), desc=f"epoch {epoch}", leave=False, mininterval=0):
        time.sleep(0.03)
        while epoch == 1 and i == 7 and not os.path.exists("seen"):
            time.sleep(0.02)
        if i == 5:
            tqdm.write(f"note of {os.environ['RANK']} in {epoch}", file=__import__("sys").stderr)
"""

RICH = """
import os, time
from rich.console import Console
from rich.progress import Progress
rank = os.environ["RANK"]
console = Console(force_terminal=True, width=70)
with Progress(console=console, refresh_per_second=20) as progress:
    one = progress.add_task("one", total=20)
    two = progress.add_task("two", total=20)
    for i in range(20):
        time.sleep(0.04)
        while i == 14 and not os.path.exists("seen"):
            time.sleep(0.02)
        progress.update(one, advance=1)
        if i % 2:
            progress.update(two, advance=2)
        if i == 10:
            progress.console.print(f"printed by {rank}")
"""

# Runs until the file "stop" exists.
ENDLESS = """
import os, sys, time
from tqdm import tqdm
rank = int(os.environ["RANK"])
for i in tqdm(range(100000), desc="work", mininterval=0.02, ncols=90):
    time.sleep(0.02)
    if i % 10 == 5:
        print(f"line {i} of {rank}", flush=True)
    if os.path.exists("stop"):
        break
"""


class TerminalTest(LaunchTest):
    def worker(self, text):
        return [DEBIAN_PYTHON, "-u", str(self.script("worker.py", text))]

    def terminal(self, *args, **settings):
        self.runs += 1
        self.job_dir = self.dir / f"job{self.runs}"
        settings.setdefault("env", self.env)
        return Terminal(self, self.command("--quiet", *args), cwd=self.dir, **settings)

    def assert_rows(self, rows, *patterns):
        """Checks that every row matches one of the patterns. Returns the matching rows of each pattern, in the patterns'
        order."""
        found = [[] for _ in patterns]
        for row in rows:
            for i, pattern in enumerate(patterns):
                if re.fullmatch(pattern, row):
                    found[i].append(row)
                    break
            else:
                self.fail(f"unexpected row: {row!r}\n" + "\n".join(rows))
        return found


LABEL = r"\[[\w.]+:(\d)\] "


def last(rows, count=1):
    """Returns the last rows of the output. A job that has run for some seconds has a row about its usage below them."""
    rows = rows[:-1] if rows and re.match(r"(GPU .*; )?CPU [\d.]+ of \d+ cores", rows[-1]) else rows
    return rows[-count:] if len(rows) >= count else [""] * count


FRAME = r"\s*\d+%\|.{10,}\| \d+/\d+ \[\d\d:\d\d<(\d\d:\d\d|\?), +[\d.?]+(it/s|s/it)\]"


class Bars(TerminalTest):
    def test_tqdm_of_8_ranks_on_2_nodes(self):
        needs("tqdm")
        nodes = Nodes(self, 2)
        terminal = self.terminal("--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--oversubscribe", "--nproc-per-node", 4,
                                 "--chdir", self.dir, *self.worker(TQDM))
        # During the run there are complete lines above, and one row for all ranks at the bottom.
        folded = LABEL + "train: .*" + r"  \[8 ranks: \d+-\d+%\]"
        self.assertTrue(terminal.until(lambda: re.fullmatch(folded, *last(terminal.rows()))))
        for _ in range(20):
            terminal.read(0.05)
            live = [row for row in terminal.rows() if re.search(r"train: ", row) and "100%" not in row]
            self.assertLessEqual(len(live), 1, "\n".join(terminal.rows()))
        (self.dir / "seen").touch()
        self.assertEqual(terminal.wait(), 0, "\n".join(terminal.rows()))
        lines, logs, written, bars = self.assert_rows(
            terminal.rows(), LABEL + r"stdout of \1 at \d*5", LABEL + r"log of \1 at \d*7",
            LABEL + r"written by \1 at \d*9", LABEL + "train: 100%.*30/30.*")
        self.assertEqual([len(lines), len(logs), len(written)], [24, 24, 24])
        self.assertEqual([re.match(LABEL, bar)[1] for bar in bars], ["0"])  # of the other ranks only in the files
        self.assert_nothing_left()

    def nested(self, terminal, upper, lower):
        """Waits until both bars of four ranks are shown, and then for the end. Returns all rows."""
        both = lambda: re.search(rf"{upper} .*\[4 ranks: \d.*\n.*{lower} .*\[4 ranks: \d", "\n".join(last(terminal.rows(), 2)))
        self.assertTrue(terminal.until(both), "\n".join(terminal.rows()))
        (self.dir / "seen").touch()
        self.assertEqual(terminal.wait(), 0)
        return terminal.rows()

    def test_nested_tqdm(self):
        needs("tqdm")
        rows = self.nested(self.terminal("--nproc-per-node", 4, *self.worker(NESTED)), "epochs:", r"epoch \d:")
        notes, bars = self.assert_rows(rows, LABEL + r"note of \1 in \d", LABEL + "epochs: 100%.*3/3.*")
        self.assertEqual([len(notes), len(bars)], [12, 1])

    def test_rich(self):
        needs("rich")
        terminal = self.terminal("--nproc-per-node", 4, *self.worker(RICH))
        printed, one, two = self.assert_rows(self.nested(terminal, "one", "two"), LABEL + r"printed by \1", LABEL + "one .*100%.*", LABEL + "two .*100%.*")
        self.assertEqual([len(printed), len(one), len(two)], [4, 1, 1])
        self.assertFalse(terminal.screen.cursor.hidden)
        self.assertNotIn(b"\x1b[?25", terminal.raw)

    def test_bars_shows_a_row_per_rank_per_node_or_none(self):
        needs("tqdm")
        for bars, count, ends in (("all", 4, 4), ("node", 1, 1), ("off", 0, 4)):
            with self.subTest(bars=bars):
                terminal = self.terminal("--nproc-per-node", 4, "--bars", bars, *self.worker(ENDLESS))
                live = lambda: [row for row in terminal.rows() if "work: " in row]
                terminal.until(lambda: len(live()) == count and any("line 15 of 0" in row for row in terminal.rows()))
                self.assertEqual(len(live()), count, "\n".join(terminal.rows()))
                (self.dir / "stop").touch()
                self.assertEqual(terminal.wait(), 0)
                self.assertEqual(len(live()), ends, "\n".join(terminal.rows()))
                (self.dir / "stop").unlink()

    def test_dumb_terminal_gets_no_escapes(self):
        needs("tqdm")
        (self.dir / "seen").touch()
        terminal = self.terminal("--nproc-per-node", 2, *self.worker(NESTED), env=dict(self.env, TERM="dumb"))
        self.assertEqual(terminal.wait(), 0)
        self.assertNotIn(b"\x1b", terminal.raw)
        self.assertNotIn(b"\r", terminal.raw.replace(b"\r\n", b""))


class NoTerminal(TerminalTest):
    def test_a_pipe_gets_each_bar_once_and_no_carriage_return(self):
        needs("tqdm", "rich")
        (self.dir / "seen").touch()
        for text, last in ((NESTED, "epochs: 100%"), (RICH, "one ")):
            with self.subTest(last=last):
                outcome = self.run_job("--nproc-per-node", 2, *self.worker(text))
                self.assert_code(outcome, 0)
                both = outcome.out + outcome.err
                self.assertNotIn("\r", both)
                self.assertIsNone(re.search(r"\x1b\[[^m]*[A-LN-Za-ln-z]", both), repr(both))
                self.assertEqual(sum(last in line for line in both.splitlines()), 1, both)


class TerminalEnd(TerminalTest):
    def test_ctrl_c(self):
        needs("tqdm")
        terminal = self.terminal("--nproc-per-node", 2, *self.worker(ENDLESS))
        terminal.until(lambda: any("line 15 of 1" in row for row in terminal.rows()))
        terminal.type(b"\x03")
        self.assertEqual(terminal.wait(), 130)
        self.assertFalse(terminal.screen.cursor.hidden)
        self.assertEqual(terminal.screen.cursor.x, 0)
        # Apart from Python's final messages, each row is complete.
        bars = [row for row in terminal.rows() if "work: " in row]
        self.assertEqual(len(bars), 1, "\n".join(terminal.rows()))
        self.assertTrue(all(re.match(LABEL + "work: ", row) for row in bars), bars)

    def test_sigkill_leaves_a_usable_terminal(self):
        needs("tqdm")
        terminal = self.terminal("--nproc-per-node", 2, *self.worker(ENDLESS))
        terminal.until(lambda: any("line 15 of 1" in row for row in terminal.rows()))
        os.kill(terminal.pid, 9)
        self.assertEqual(terminal.wait(), 137)
        self.assertEqual((terminal.screen.cursor.hidden, terminal.screen.cursor.x), (False, 0))
        left = lambda: live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")
        self.assertTrue(wait_until(lambda: not [words for _, words in left() if "worker.py" in words]))

    def in_shell(self, behind=""):
        """Starts a job whose bars do not end in a shell, with `behind` after the command. Returns the shell when it shows lines."""
        needs("tqdm")
        tmux = Tmux(self, cwd=self.dir, env=self.env)
        command = " ".join(map(str, self.command("--quiet", "--nproc-per-node", 2, *self.worker(ENDLESS))))
        tmux.line(f"PS1='$ '; stty -tostop; clear; {command}{behind}")
        self.assertTrue(tmux.until(lambda rows: any("line 15 of 1" in row for row in rows)))
        return tmux

    def end_in_shell(self, tmux):
        (self.dir / "stop").touch()
        self.assertTrue(tmux.until(lambda rows: rows and rows[-1] == "$"), "\n".join(tmux.rows()))

    def test_ctrl_z_and_fg(self):
        tmux = self.in_shell()
        tmux.type("C-z")
        self.assertTrue(tmux.until(lambda rows: rows and rows[-1] == "$"), "\n".join(tmux.rows()))
        rows = tmux.rows()
        self.assertFalse([row for row in rows if "work: " in row], "\n".join(rows))  # removed before the prompt appears
        tmux.line("fg")
        self.assertTrue(tmux.until(lambda rows: "work: " in last(rows)[0]), "\n".join(tmux.rows()))
        self.assertEqual(sum("work: " in row for row in tmux.rows()), 1, "\n".join(tmux.rows()))
        self.end_in_shell(tmux)
        self.assertEqual(sum("work: " in row for row in tmux.rows()), 1, "\n".join(tmux.rows()))

    def test_a_background_job_draws_no_rows(self):
        tmux = self.in_shell(" &")
        self.assertFalse([row for row in tmux.rows() if "work: " in row], "\n".join(tmux.rows()))
        tmux.line("fg")
        self.assertTrue(tmux.until(lambda rows: "work: " in last(rows)[0]), "\n".join(tmux.rows()))
        self.end_in_shell(tmux)

    def test_resize(self):
        tmux = self.in_shell()
        for columns, rows in ((60, 40), (30, 20), (120, 30), (80, 10)):
            tmux.resize(columns, rows)
            latest = max(int(n) for row in tmux.rows() for n in re.findall(r"line (\d+) of 1", row))
            self.assertTrue(tmux.until(lambda rows: any(f"line {latest + 20} of 1" in row for row in rows)))
        self.end_in_shell(tmux)
        self.assertEqual(sum("work: " in row for row in tmux.rows()), 1, "\n".join(tmux.rows()))


class SlowReaders(TerminalTest):
    FLOOD = ["sh", "-c", "seq -f '%.0f ...........................................................' 200000; touch done"]

    def bytes_of(self, fd):
        """Returns all bytes from `fd`. An emulator would be too slow for them."""
        chunks = []
        try:
            while chunk := os.read(fd, 65536):
                chunks.append(chunk)
        except OSError:  # the terminal was closed
            pass
        return b"".join(chunks).decode()

    def flood_of(self, text):
        """Returns the numbers of FLOOD's lines, and the count of missing lines in each gap."""
        missing = re.findall(r"ddplaunch: … ([\d,]+) lines? not shown; the files have (?:it|them)\r?\n", text)
        # A line that stays incomplete for a moment is shown before its end.
        lines = re.findall(r"(\d+) \.{59}(?:\x1b\[0m)?\r?\n", text)
        return [int(line) for line in lines], [int(count.replace(",", "")) for count in missing]

    def test_a_blocked_terminal_does_not_block_the_workers(self):
        needs()
        terminal = self.terminal("--nproc-per-node", 1, *self.FLOOD)
        self.assertTrue(wait_until((self.dir / "done").exists), "the worker was blocked")
        shown, missing = self.flood_of(self.bytes_of(terminal.fd))
        self.assertTrue(missing)
        self.assertEqual(len(shown) + sum(missing), 200_000)
        self.assertEqual(shown[-1], 200_000)
        self.assertEqual((self.job_dir / "attempt_0/rank_00000.stdout").read_text().count("\n"), 200_000)

    def test_block_makes_workers_wait_for_a_terminal(self):
        needs()
        terminal = self.terminal("--nproc-per-node", 1, "--console", "block", *self.FLOOD)
        self.assertFalse(wait_until((self.dir / "done").exists, 2))
        self.assertEqual(self.flood_of(self.bytes_of(terminal.fd)), (list(range(1, 200_001)), []))

    def test_a_blocked_pipe_is_reported_on_the_terminal(self):
        needs()
        ours, theirs = os.pipe()
        terminal = self.terminal("--nproc-per-node", 1, *self.FLOOD, stdout=theirs, columns=200)
        os.close(theirs)
        words = (rf"ddplaunch: warning: nothing has been read from stdout for 10 s; the workers are blocked; its reader is \S+ "
                 rf"\(pid {os.getpid()}\); --console drop skips lines instead")
        began = time.monotonic()
        self.assertTrue(terminal.until(lambda: any(re.fullmatch(words, row) for row in terminal.rows()), 30),
                        "\n".join(terminal.rows()))
        self.assertGreater(time.monotonic() - began, 9)
        self.assertFalse((self.dir / "done").exists())
        self.assertEqual(self.flood_of(self.bytes_of(ours)), (list(range(1, 200_001)), []))
        os.close(ours)
        self.assertEqual(terminal.wait(), 0)

    def test_drop_continues_without_the_reader(self):
        needs()
        ours, theirs = os.pipe()
        terminal = self.terminal("--nproc-per-node", 1, "--console", "drop", *self.FLOOD, stdout=theirs)
        os.close(theirs)
        self.assertTrue(wait_until((self.dir / "done").exists), "the worker was blocked")
        shown, missing = self.flood_of(self.bytes_of(ours))
        os.close(ours)
        self.assertEqual(len(shown) + sum(missing), 200_000)
        self.assertEqual(terminal.wait(), 0)


if __name__ == "__main__":
    main()
