"""The base of the end-to-end tests: runs the built programs, finds what they leave behind, and emulates nodes with sshd."""

import contextlib
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DDP_BIN_DIR", SOURCE / "build/release/bin"))
DDPLAUNCH = str(BIN / "ddplaunch")
SKIP = 77
# Longer than the time in which ddplaunch takes several signals for one request.
SAME_REQUEST = 1.1


def sender():
    """What a report says of a signal that this test has sent."""
    name = pathlib.Path("/proc/self/comm").read_text().strip()
    return f"{name} (pid {os.getpid()} of user {pwd.getpwuid(os.getuid()).pw_name})"


def is_running(pid):
    """Returns False for a zombie too: only its number is left, and a machine's init may reap orphans late."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def live_processes_with(mark):
    """Returns (pid, command line) of every process, except zombies, whose environment contains `mark`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() not in (entry / "environ").read_bytes():
                continue
            if not is_running(entry.name):
                continue
            found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except (OSError, PermissionError):
            continue
    return found


def wait_until(condition, seconds=60.0):
    """Polls an event of another process that no notification announces. Returns the condition's last value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


def without_waits(err):
    """Leaves out what a check or a start of more than 3 s prints: which nodes it waits for."""
    return re.sub(r"(?m)^ddplaunch: waiting for \d+ of \d+ nodes?: .*\n", "", err)


class Outcome:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def __repr__(self):
        return f"exit {self.code} after {self.seconds:.2f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class LaunchTest(unittest.TestCase):
    """A test with its own directory and job id. It fails when a process of the job is left."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-test-"))
        self.addCleanup(self.remove_directory)
        self.job = f"t{os.getpid()}-{self.id().rpartition('.')[2].removeprefix('test_')}"[:60].rstrip('_')
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("DDPLAUNCH_", "PET_"))}
        self.env["XDG_STATE_HOME"] = str(self.dir / "state")
        self.env["XDG_CONFIG_HOME"] = str(self.dir / "config")
        (self.dir / "runtime").mkdir(mode=0o700)
        self.env["XDG_RUNTIME_DIR"] = str(self.dir / "runtime")
        self.job_dir = self.dir / "job0"
        self.runs = 0

    def remove_directory(self):
        """Removes the directory. Processes of a job whose ddplaunch the test has killed may still write into it."""
        wait_until(lambda: not live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0"))

        def is_removed():
            shutil.rmtree(self.dir, ignore_errors=True)
            return not self.dir.exists()
        self.assertTrue(wait_until(is_removed), f"{self.dir} cannot be removed")

    def command(self, *args):
        return [DDPLAUNCH, "--job-id", self.job, "--job-dir", str(self.job_dir), *map(str, args)]

    def start(self, *args, **popen):
        self.job_dir = self.dir / f"job{self.runs}"  # directory of the latest run
        self.runs += 1
        popen.setdefault("stdin", subprocess.DEVNULL)
        popen.setdefault("env", self.env)
        popen.setdefault("cwd", self.dir)
        popen.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen(self.command(*args), stdout=subprocess.PIPE, text=True,
                                   errors="surrogateescape", **popen)
        self.addCleanup(self.end_process, process)
        return process

    def end_process(self, process):
        """Ends what a failed test has left. Its messages may show why the test failed."""
        if process.poll() is not None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):  # ValueError: the test has closed a pipe
            _, err = process.communicate(timeout=5)
            print(f"stderr of a job that was killed at the end of {self.id()}:\n{err}", file=sys.stderr)

    def finish(self, process, timeout=60, began=None):
        began = began or time.monotonic()
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                stacks = subprocess.run([DDPLAUNCH, "stacks", self.job], capture_output=True, text=True, env=self.env, timeout=60)
                late.add_note(f"its processes, by ddplaunch stacks:\n{stacks.stdout}{stacks.stderr}")
            raise
        outcome = Outcome(process.returncode, out, err, time.monotonic() - began)
        self.assert_nothing_left()
        return outcome

    def run_job(self, *args, timeout=60, stdin=None, **popen):
        began = time.monotonic()
        if stdin is not None:
            popen["stdin"] = subprocess.PIPE
        process = self.start(*args, **popen)
        if stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
            process.stdin = None
        return self.finish(process, timeout, began)

    def assert_nothing_left(self):
        left = live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")
        self.assertEqual(left, [], "processes of the job are left")

    def assert_code(self, outcome, code):
        self.assertEqual(outcome.code, code, repr(outcome))

    def script(self, name, text, mode=0o755):
        path = self.dir / name
        path.write_text(text)
        path.chmod(mode)
        return path


class Nodes:
    """`count` nodes on the loopback addresses from 127.0.0.2, emulated by one sshd of the test. The paths of its files are
    attributes. The test is skipped where sshd cannot run. `within` is a command prefix, such as unshare, for sshd."""

    def __init__(self, test, count, within=(), **settings):
        env = dict(os.environ, **settings)
        script = str(SOURCE / "tests/support/nodes")
        done = subprocess.run([*within, script, "up", str(count)], capture_output=True, text=True, env=env)
        if done.returncode == SKIP:
            raise unittest.SkipTest(done.stderr.strip())
        if done.returncode != 0:
            raise RuntimeError(f"nodes up: {done.stderr}")
        self.dir = pathlib.Path(done.stdout.strip().splitlines()[-1])
        test.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        test.addCleanup(subprocess.run, [script, "down", str(self.dir)], check=False)
        self.hostfile = self.dir / "hostfile"
        self.ssh_config = self.dir / "ssh_config"
        self.known_hosts = self.dir / "known_hosts"
        self.port = int((self.dir / "port").read_text())
        self.hosts = (self.dir / "hosts").read_text().split()

    @classmethod
    def of_class(cls, test_class, count, **settings):
        """Nodes for all tests of a class, which ends them. The first call of the class makes them."""
        if "its_nodes" not in vars(test_class):
            test_class.its_nodes = cls(types.SimpleNamespace(addCleanup=test_class.addClassCleanup), count, **settings)
        return test_class.its_nodes

    def restart_sshd(self):
        """Ends the listener, as an upgrade of the package does, and starts another. Sessions survive."""
        pid_file = self.dir / "sshd.pid"
        old = int(pid_file.read_text())
        sshd = os.readlink(f"/proc/{old}/exe")
        os.kill(old, signal.SIGTERM)
        if not wait_until(lambda: not pid_file.exists()):
            raise RuntimeError("sshd did not end")
        subprocess.run([sshd, "-f", self.dir / "sshd_config", "-E", self.dir / "sshd.log"], check=True,
                       stdin=subprocess.DEVNULL, start_new_session=True)
        if not wait_until(lambda: pid_file.exists() and pid_file.read_text().strip()):
            raise RuntimeError("sshd did not start again")


# The shell is the namespace's first process, which reaps orphans as an init does.
OWN_PIDS = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", '"$@"; exit $?', "-"]


def enter_own_pids():
    """Runs this program again in a PID namespace of its own, if that is allowed. There no process of another test begins after an agent and
    may have come from it, so that only the lease proves the agent's end."""
    if "DDP_OWN_PIDS" in os.environ or not shutil.which("unshare") or subprocess.run([*OWN_PIDS, "true"], stderr=subprocess.DEVNULL).returncode:
        return
    os.environ["DDP_OWN_PIDS"] = ""
    os.execvp(OWN_PIDS[0], [*OWN_PIDS, sys.executable, *sys.argv])


def main():
    """Runs unittest's main. The exit code is 77 when every test was skipped, so that ctest shows a skip and no pass."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = unittest.main(module="__main__", exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        raise SystemExit(1)
    if result.skipped and len(result.skipped) >= result.testsRun:  # a class that is skipped as a whole runs no test
        raise SystemExit(SKIP)
