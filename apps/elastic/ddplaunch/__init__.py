"""What a training script tells ddplaunch, and learns from it. Needs no package but Python 3.7.

    import ddplaunch

    for step in range(steps):
        ...
        ddplaunch.report(step + 1, loss=loss)  # for `ddplaunch status`, metrics and the dashboard
        if ddplaunch.stopping():               # Ctrl-C, `ddplaunch stop`, a time limit: write a checkpoint and leave
            break

Without ddplaunch report() does nothing, and stopping() tells of the signals all the same. ddplaunch.elastic is for scripts that
survive the loss of other ranks. docs/users/metrics.md documents both functions.
"""

import atexit
import bisect
import json
import math
import os
import signal
import socket
import threading
import time

__all__ = ["report", "stopping"]

REPORT_EVERY_S = 0.1  # the agent reads no more
SAME_STOP_S = 1.0     # launchers signal a group and its processes, so a signal comes twice
STEP_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)  # of the worker protocol's histogram


class Steps:
    """The durations of the steps since the last report, and the last step."""

    def __init__(self):
        self.last = None  # (complete steps, when)
        self.clear()

    def clear(self):
        self.counts, self.seconds = [0] * (len(STEP_BOUNDS_S) + 1), 0.0

    def add(self, completed, now):
        """Counts the steps since the last call. Another attempt of the same process may begin at an earlier step."""
        if self.last and completed > self.last[0]:
            steps = completed - self.last[0]
            self.counts[bisect.bisect_left(STEP_BOUNDS_S, (now - self.last[1]) / steps)] += steps
            self.seconds += now - self.last[1]
        if self.last is None or completed != self.last[0]:
            self.last = (completed, now)


class _Reports:
    """This process's end of DDPLAUNCH_METRICS. A report may be lost, and the training never waits for one."""

    def __init__(self, path):
        self.path = path
        self.pid = os.getpid()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.lock = threading.Lock()
        self.steps = Steps()
        self.unsent, self.sent_at = None, -math.inf
        atexit.register(self.flush)

    def add(self, word, now):
        with self.lock:
            self.steps.add(word["step"], now)
            self.unsent = word
            if now - self.sent_at >= REPORT_EVERY_S:
                self._send(now)

    def flush(self):
        """Sends the last report, which may have come too soon after the one before."""
        with self.lock:
            if self.unsent and self.pid == os.getpid():
                self._send(time.monotonic())

    def _send(self, now):
        word = dict(self.unsent, durations=self.steps.counts, seconds=self.steps.seconds)
        self.unsent, self.sent_at = None, now
        try:
            self.socket.sendto(json.dumps(word, separators=(",", ":")).encode(), self.path)
        except OSError:
            return  # these durations go with the next report
        self.steps.clear()


_reports = None
_stopping = None  # (name of the signal, when it came)
_watched = False


def report(step, loss=None, phase=None):
    """Says that `step` steps are complete. Call it at the end of each step; it costs microseconds, and ten reports a second are
    sent at most. `loss`: of the last step, a number or a tensor of one; `phase`: in a few words what comes next."""
    global _reports
    path = os.environ.get("DDPLAUNCH_METRICS")
    if not path:
        return
    if _reports is None or _reports.pid != os.getpid():  # a forked child has its parent's socket and steps
        _reports = _Reports(path)
    word = {"step": int(step)}
    loss = None if loss is None else float(loss)
    if loss is not None and math.isfinite(loss):  # JSON has no word for the others
        word["loss"] = loss
    if phase:
        word["in"] = str(phase)[:64]
    _reports.add(word, time.monotonic())


def stopping():
    """Returns the name of the signal by which the job is being stopped, else None. The first call, in the main thread, catches
    SIGTERM, SIGINT and SIGHUP if their action is Python's default: so call it before the first step, and then at the end of each.
    Ranks learn of a stop in different steps. Where they would wait for each other, they must agree before they leave. The same
    signal once more, or the end of the grace period, ends the process."""
    global _watched
    if not _watched and threading.current_thread() is threading.main_thread():
        _watched = True
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _stop)
    return _stopping and _stopping[0]


def _stop(number, _frame):
    global _stopping
    name, now = signal.Signals(number).name, time.monotonic()
    if _stopping is None:
        _stopping = (name, now)
    elif name == _stopping[0] and now - _stopping[1] > SAME_STOP_S:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
