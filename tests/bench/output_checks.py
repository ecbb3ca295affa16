"""The parts of tests/bench/output other than rates: unusual output, delay of one line, memory while stdout is not read."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
import tty

from measured_run import Sampler
from output_peers import TOOLS, WORKERS

LONG = 1000000
DELAY_RANKS, DELAY_LINES, DELAY_MEAN_MS = WORKERS, 150, 80


class Launch:
    """A launcher whose stdout is a pipe or a terminal of this process."""

    def __init__(self, stage, peer, arguments, terminal=False):
        stage.fresh()
        self.stage = stage
        self.read_end, write_end = pty.openpty() if terminal else os.pipe()
        if terminal:
            tty.setraw(write_end)  # keeps line ends as they were written
        self.errors = open(stage.scratch / "errors", "wb")
        self.process = subprocess.Popen(
            peer.command([TOOLS / "bench_lines", "-", *map(str, arguments)]), env=dict(os.environ, TERM="xterm", **peer.env),
            stdin=subprocess.DEVNULL, stdout=write_end, stderr=self.errors, start_new_session=True,
            preexec_fn=stage.bench.launcher.enter)
        os.close(write_end)

    def read(self, take, seconds=60):
        """Passes each read to take(bytes, time ns) until the end of the output. Returns False if the end does not come in
        time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not select.select([self.read_end], [], [], 1)[0]:
                continue
            try:
                data = os.read(self.read_end, 1 << 16)
            except OSError:  # EIO: the last writer of a terminal has exited
                data = b""
            if not data:
                return True
            take(data, time.monotonic_ns())
        return False

    def end(self, stop=None):
        if stop and self.process.poll() is None:
            self.process.send_signal(stop)
            self.read(lambda data, now: None)
        os.close(self.read_end)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.errors.close()
        self.stage.bench.settle()
        return self.process.returncode


def shown(stage, where):
    return [peer for peer in stage.peers(where, True) if peer.shows and "files" not in peer.name]


def records(data, count, peer):
    """Returns the result of bench_check_lines on the merged output."""
    done = subprocess.run([str(TOOLS / "bench_check_lines"), str(WORKERS), str(count), str(peer.label_offset)], input=data,
                          stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


# --- writes that end within lines -----------------------------------------------------------------------------------

def blocks(stage, where, place):
    count, block = 20000, 4096
    print(f"\n## Writes of {block} bytes that end within lines, {place}: {WORKERS} × {count} lines\n\n"
          "| peer | labelled: lost / torn / doubled | not labelled |\n|---|---|---|")
    cells = {}
    for labelled in (True, False):
        for peer in stage.peers(where, labelled):
            if not peer.shows or "files" in peer.name:
                continue
            merged = stage.scratch / "merged"
            with open(merged, "wb") as out, open(stage.scratch / "errors", "wb") as err:
                run = stage.run(peer, [count // peer.share, 100, block], stdout=out, stderr=err)
            found = records(merged.read_bytes(), count // peer.share, peer)
            cells.setdefault(peer.name.removesuffix(" --tee 3"), {})[labelled] = (
                f"{found['lost']} / {found['torn']} / {found['dup']}" + (f", exit {run.code}" if run.code else ""))
    for name, cell in cells.items():
        print(f"| {name} | {cell.get(True, '-')} | {cell.get(False, '-')} |", flush=True)


# --- unusual output -------------------------------------------------------------------------------------------------

def printed(stage, peer, kind):
    """Returns (all bytes of the launcher's stdout, [(time ns, size)…])."""
    launch, data, times = Launch(stage, peer, ["odd", kind, LONG]), bytearray(), []

    def take(some, now):
        data.extend(some)
        times.append((now, len(some)))
    ended = launch.read(take)
    launch.end()
    return bytes(data), times, ended


def bar_cell(data, times):
    span = (times[-1][0] - times[0][0]) / 1e9 if times else 0
    lines = data.split(b"\n")
    mixed = sum(len(set(re.findall(rb"rank (\d):", line))) > 1 for line in lines)
    finals = sum(bool(re.search(rb"100%.{0,20}40/40", line)) for line in lines)
    return (f"{'live' if span > 1 else 'at the end'}; {data.count(bytes([13]))} CR, {data.count(b'/40')} updates, {finals}/8 "
            f"last states, {mixed} lines mix ranks")


UNUSUAL_LINES = {"nul": b"nul \0 of rank %d\0", "utf8": b"bad \xff\xc3( \xe2\x82 of rank %d", "crlf": b"crlf of rank %d"}


def unusual_cell(kind, data, peer):
    count = {"long": 2, "no-newline": 3}.get(kind, 2)
    found = records(data, count, peer)
    whole = f"{found['good']}/{count * WORKERS} whole"
    if kind in UNUSUAL_LINES:
        ends = [line.rstrip(b"\r") for line in data.split(b"\n")]
        kept = sum(any(line.endswith(UNUSUAL_LINES[kind] % rank) for line in ends) for rank in range(WORKERS))
        return f"{kept}/{WORKERS} as written" + ("" if found["good"] == count * WORKERS else ", " + whole)
    return whole + (f", {found['torn']} torn or glued" if found["torn"] else "")


def file_problems(stage, kind):
    """Returns how many of ddplaunch's files differ from the worker's output."""
    wrong = 0
    for rank in range(WORKERS):
        expected = subprocess.run([str(TOOLS / "bench_lines"), str(rank), "odd", kind, str(LONG)], stdout=subprocess.PIPE,
                                  check=True).stdout
        path = stage.scratch / "job/attempt_0" / f"rank_{rank:05}.stdout"
        wrong += not path.exists() or path.read_bytes() != expected
    return wrong


def unusual(stage, where, place):
    kinds = ["long", "no-newline", *UNUSUAL_LINES]
    print(f"\n## Odd output, {place}, labelled, on a pipe\n\n| peer | 40 updates of a bar by CR × 8 (2 s) | 1 MB line + short "
          "line × 8 | last of 3 lines without newline × 8 | NUL | invalid UTF-8 | CRLF | files equal |\n" + "|---" * 8 + "|")
    for peer in shown(stage, where):
        wrong, cells = 0, []
        for kind in ["bar", *kinds]:
            data, times, ended = printed(stage, peer, kind)
            cells.append((bar_cell(data, times) if kind == "bar" else unusual_cell(kind, data, peer))
                         + ("" if ended else ", no end within 60 s"))
            wrong += file_problems(stage, kind) if peer.name == "ddplaunch" else 0
        files = f"{(1 + len(kinds)) * WORKERS - wrong}/{(1 + len(kinds)) * WORKERS}" if peer.name == "ddplaunch" else "-"
        print("| " + " | ".join([peer.name, *cells, files]) + " |", flush=True)


# --- delay of one line ----------------------------------------------------------------------------------------------

def delays(stage, peer, terminal):
    """Returns the delays from write() to arrival in milliseconds, sorted."""
    launch, found, held = Launch(stage, peer, ["timed", DELAY_LINES, DELAY_MEAN_MS], terminal), [], bytearray()

    def take(data, now):
        held.extend(data)
        last = 0
        for match in re.finditer(rb"T \d+ \d+ (\d+)(?:\x1b\[[0-9;]*[mK])*\r?\n", held):
            found.append((now - int(match[1])) / 1e6)
            last = match.end()
        del held[:last]
    launch.read(take, 120)
    launch.end()
    return sorted(found)


def delay(stage, where, place):
    expected = DELAY_RANKS * DELAY_LINES
    print(f"\n## Delay of one line, {place}: {DELAY_RANKS} ranks × {DELAY_LINES} lines, {DELAY_MEAN_MS} ms apart on average, ms\n\n"
          "| peer | to a | lines | p50 | p90 | p99 | largest |\n|---|---|---|---|---|---|---|")
    for peer in shown(stage, where):
        if peer.name.startswith("torchrun"):
            continue
        for terminal in (False, True):
            found = delays(stage, peer, terminal)
            row = [peer.name, "terminal" if terminal else "pipe", f"{len(found)}/{expected}"]
            if found:
                row += [f"{found[min(len(found) - 1, int(len(found) * share))]:.2f}" for share in (0.5, 0.9, 0.99, 1)]
            print("| " + " | ".join(row) + " |", flush=True)


# --- memory while stdout is not read --------------------------------------------------------------------------------

def memory(stage, where, place):
    seconds = stage.options.blocked
    print(f"\n## Peak memory, {place}: {WORKERS} ranks print at full speed, stdout is not read for {seconds} s\n\n"
          "| peer | stdout | peak MiB of the largest process, by program | printed meanwhile | after reading again |\n"
          "|---|---|---|---|---|")
    for peer in shown(stage, where):
        for terminal in (False, True):
            sampler = Sampler([stage.bench.launcher, stage.bench.nodes], stage.bench.standing, 0.05)
            launch = Launch(stage, peer, ["1000000000"], terminal)
            sampler.start()
            time.sleep(seconds)
            written = sum(path.stat().st_size for path in (stage.scratch / "job").rglob("rank_*"))
            got, resumed = [], time.monotonic()

            def take(data, now):
                got.append(len(data))
                if time.monotonic() - resumed > 1:
                    raise StopIteration
            try:
                launch.read(take, 10)
            except StopIteration:
                pass
            sampler.done.set()
            sampler.join()
            code = launch.end(signal.SIGTERM)
            programs = ", ".join(f"{name} {peak:.1f}" for name, (_, _, peak) in sorted(
                sampler.by_program().items(), key=lambda one: -one[1][2]) if name != "bench_lines")
            print(f"| {peer.name} | {'terminal' if terminal else 'pipe'} | {programs} | "
                  f"{written / 1e6:.0f} MB in files | {sum(got) / 1e6:.0f} MB in 1 s, exit {code} |", flush=True)
            shutil.rmtree(stage.scratch / "job", ignore_errors=True)
