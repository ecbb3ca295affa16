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
import json
import math
import os
import signal
import socket
import sys
import threading
import time

__all__ = ["report", "stopping"]

REPORT_EVERY_S = 0.1  # the agent reads no more
SAME_STOP_S = 1.0     # launchers signal a group and its processes, so a signal comes twice
NOT_A_NUMBER = (ArithmeticError, TypeError, ValueError, RuntimeError)  # what int() and float() raise, also of a tensor
STEP_BUCKETS, BUCKETS_PER_DECADE = 146, 25  # of the worker protocol's histogram, from 1 ms on


class Steps:
    """The durations of the steps since the last report, and the last step."""

    def __init__(self):
        self.last = None  # (complete steps, when)
        self.clear()

    def clear(self):
        self.counts, self.seconds, self.waited = {}, 0.0, 0.0

    def word(self):
        """Returns the keys of a report (docs/developers/worker_protocol.md)."""
        word = {"durations": sorted(self.counts.items()), "seconds": self.seconds}
        return dict(word, waited=min(self.waited, self.seconds)) if self.waited > 0 else word

    def add(self, completed, now, waited):
        """Counts the steps since the last call, and the seconds of them in which this rank waited for others. Another attempt of
        the same process may begin at an earlier step. The first call begins the first step."""
        if self.last:
            self.waited += waited
        if self.last and completed > self.last[0]:
            steps = completed - self.last[0]
            place = math.ceil(BUCKETS_PER_DECADE * math.log10(max((now - self.last[1]) / steps, 1e-9) / 0.001) - 1e-9)
            bucket = min(max(place, 0), STEP_BUCKETS)
            self.counts[bucket] = self.counts.get(bucket, 0) + steps
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

    def add(self, word, waited, now):
        with self.lock:
            self.steps.add(word["step"], now, waited)
            self.unsent = word
            if now - self.sent_at >= REPORT_EVERY_S:
                self._send(now)

    def flush(self):
        """Sends the last report, which may have come too soon after the one before."""
        with self.lock:
            if self.unsent and self.pid == os.getpid():
                self._send(time.monotonic())

    def _send(self, now):
        word = dict(self.unsent, **self.steps.word())
        self.unsent, self.sent_at = None, now
        try:
            self.socket.sendto(json.dumps(word, separators=(",", ":")).encode(), self.path)
        except OSError:
            return  # these durations go with the next report
        self.steps.clear()


def _ignore(name, error):
    """Says once in a process that a value is no number. A report never ends a training."""
    global _ignored
    if not _ignored:
        print(f"ddplaunch: the {name} that the script reports is ignored: {error}", file=sys.stderr, flush=True)
    _ignored = True


def as_number(loss):
    """Returns a loss, a number or a tensor of one, as JSON can say it: None if it is none or not finite."""
    try:
        loss = None if loss is None else float(loss.detach() if hasattr(loss, "detach") else loss)
    except NOT_A_NUMBER as error:
        loss = _ignore("loss", error)
    return loss if loss is not None and math.isfinite(loss) else None


_ignored = False
_reports = None
_stopping = None  # (name of the signal, when it came)
_watched = 0      # the process that catches the signals


def report(step, loss=None, phase=None, waited=0.0):
    """Says that `step` steps are complete. Call it at the end of each step; it costs microseconds, and ten reports a second are
    sent at most. `loss`: of the last step, a number or a tensor of one; `phase`: in a few words what comes next; `waited`: seconds of the steps since the last call in which this rank waited for others."""
    global _reports
    path = os.environ.get("DDPLAUNCH_METRICS")
    if not path:
        return
    if _reports is None or _reports.pid != os.getpid():  # a forked child has its parent's socket and steps
        try:
            _reports = _Reports(path)
        except OSError:  # no descriptor is left
            return
    try:
        word, waited, _ = {"step": int(step)}, float(waited), float(step)
    except NOT_A_NUMBER as error:
        return _ignore("step or waited", error)
    loss = as_number(loss)
    if loss is not None:
        word["loss"] = loss
    if isinstance(phase, str) and phase:
        word["in"] = phase[:64]
    _reports.add(word, waited, time.monotonic())


def stopping():
    """Returns the name of the signal by which the job is being stopped, else None. The first call, in the main thread, catches
    SIGTERM, SIGINT and SIGHUP if their action is Python's default: so call it before the first step, and then at the end of each.
    Ranks learn of a stop in different steps. Where they would wait for each other, they must agree before they leave. The same
    signal once more, or the end of the grace period, ends the process."""
    global _watched
    if _watched != os.getpid() and threading.current_thread() is threading.main_thread():
        _watched = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _stop)
    return _stopping and _stopping[0]


def _stop(number, _frame):
    global _stopping
    if _watched != os.getpid():  # a forked child, which its parent ends so; it has not called stopping()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    name, now = signal.Signals(number).name, time.monotonic()
    if _stopping is None:
        _stopping = (name, now)
    elif name == _stopping[0] and now - _stopping[1] > SAME_STOP_S:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
