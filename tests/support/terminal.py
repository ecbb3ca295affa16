"""Terminals for tests: a pseudo-terminal read by pyte, and tmux. Both are independent terminal emulators."""

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

try:
    import pyte
except ImportError:  # only Debian's python finds Debian's modules, which are plain Python
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import pyte
    except ImportError:
        pyte = None

DEBIAN_PYTHON = "/usr/bin/python3"


def needs(*modules):
    """Skips the test unless pyte is installed and Debian's python has `modules`."""
    if pyte is None:
        raise unittest.SkipTest("no terminal emulator: apt install python3-pyte")
    for module in modules:
        if subprocess.run([DEBIAN_PYTHON, "-c", f"import {module}"], capture_output=True).returncode != 0:
            raise unittest.SkipTest(f"no {module}: apt install python3-{module}")


class Terminal:
    """A program on a pseudo-terminal of its own, which is its controlling terminal. `read` feeds the emulator. While a test
    does not read, the terminal accepts no output."""

    def __init__(self, test, command, columns=110, rows=40, cwd=None, env=None, stdout=None):
        self.raw = b""
        self.status = None
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000, ratio=0.5)
        self.stream = pyte.ByteStream(self.screen)
        env = dict(env or os.environ, TERM=(env or {}).get("TERM", "xterm-256color"), LC_ALL="C.UTF-8")
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):  # a shell's background jobs ignore some
                    signal.signal(number, signal.SIG_DFL)
                if stdout is not None:
                    os.dup2(stdout, 1)
                if cwd is not None:
                    os.chdir(cwd)
                os.execvpe(command[0], command, env)
            finally:
                os._exit(127)
        test.addCleanup(self.close)

    def read(self, seconds):
        """Reads what arrives within `seconds`. Returns False when the program has closed its side."""
        end = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            if not ready:
                return True
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.raw += data
            self.stream.feed(data)

    def until(self, condition, seconds=30):
        """Reads until condition() holds, and returns its value."""
        end = time.monotonic() + seconds
        while not (value := condition()) and time.monotonic() < end:
            if not self.read(0.02):
                return condition()
        return value

    def wait(self, seconds=60):
        """Reads until the program ends. Returns its exit code, 128+n for a signal."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.read(0.1):
                break
        while self.status is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            time.sleep(0.01)
        raise AssertionError("the program on the terminal has not ended:\n" + "\n".join(self.rows()))

    def rows(self):
        """Returns all rows from the first on, including scrolled ones, without trailing blanks."""
        width = self.screen.columns
        above = ["".join(row[i].data for i in range(width)) for row in self.screen.history.top]
        rows = [row.rstrip() for row in above + list(self.screen.display)]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def type(self, data):
        os.write(self.fd, data)

    def close(self):
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.fd)


class Tmux:
    """A shell in a separate tmux server."""

    def __init__(self, test, columns=110, rows=40, cwd=None, env=None):
        if not shutil.which("tmux"):
            raise unittest.SkipTest("no tmux: apt install tmux")
        self.dir = tempfile.mkdtemp(prefix="ddplaunch-tmux-")
        test.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        env = {k: v for k, v in (env or os.environ).items() if k not in ("TMUX", "TMUX_PANE")}
        self.env = dict(env, LC_ALL="C.UTF-8", PS1="$ ", TERM="xterm-256color")
        self.run("-f", "/dev/null", "new-session", "-d", "-s", "t", "-x", str(columns), "-y", str(rows),
                 "-c", str(cwd or "/"), "bash --norc --noprofile")
        test.addCleanup(self.run, "kill-server", check=False)
        self.run("set-option", "-g", "history-limit", "100000")

    def run(self, *args, check=True):
        done = subprocess.run(["tmux", "-S", f"{self.dir}/socket", *args], capture_output=True, text=True, env=self.env)
        if check and done.returncode != 0:
            raise RuntimeError(f"tmux {args[0]}: {done.stderr}")
        return done.stdout

    def type(self, *keys):
        self.run("send-keys", "-t", "t", *keys)

    def line(self, text):
        self.run("send-keys", "-t", "t", "-l", text)
        self.type("Enter")

    def resize(self, columns, rows):
        self.run("resize-window", "-t", "t", "-x", str(columns), "-y", str(rows))

    def rows(self):
        rows = [row.rstrip() for row in self.run("capture-pane", "-p", "-t", "t", "-S", "-").split("\n")]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def until(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not (value := condition(self.rows())) and time.monotonic() < end:
            time.sleep(0.05)
        return value
