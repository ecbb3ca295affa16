"""Starts workers with ddplaunch.elastic; the test takes the part of their agent in the worker protocol. Workers are forks of the test's
interpreter, which has imported PyTorch already: that takes most of a short test's time. So its program begins with enter_pytorch()."""

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

from tests.support import pytorch
from tests.support.launch import BIN, SKIP, LaunchTest

MODULES = BIN.parent / "share/ddplaunch/python"
STORE = BIN.parent / "tests/store_server_main"
LIMIT_S = 120


def enter_pytorch():
    """Runs this program again in the distribution's interpreter, or with --other in the one that DDP_TEST_TORCH_PYTHON names."""
    first = sys.argv[1:2]
    if first in (["--here"], ["--other"]):
        del sys.argv[1]
    if first == ["--here"]:
        sys.path.insert(0, str(MODULES))
        return
    python = os.environ.get(pytorch.NAMED) if first == ["--other"] else pytorch.SYSTEM
    if not python or not pytorch.can_join_store(python):
        print(f"skipped: {pytorch.why_not(python) if python else f'{pytorch.NAMED} is not set'}")
        raise SystemExit(SKIP)
    os.environ.update(pytorch.environment(python))
    os.execv(python, [python, "-W", "ignore", sys.argv[0], "--here", *sys.argv[1:]])


class Worker:
    """A process that uses the module, and the agent's end of its socket."""

    def __init__(self, test, script, *args, **environment):
        path = test.dir / f"w{len(test.workers)}.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.process = ForkedProcess(script, *args, DDPLAUNCH_CONTROL=f"unix:{path}", **environment)
        test.workers.append(self)
        self.link, self.pending, self.words = None, b"", []

    def connect(self):
        """Waits until the worker connects. A test starts all its workers before it calls this."""
        with self.listener:
            self.listener.settimeout(LIMIT_S)
            self.link = self.listener.accept()[0]

    def say(self, **word):
        self.link.sendall(json.dumps(word).encode() + b"\n")

    def next_word(self, key, accept=lambda value: True):
        """Returns the next received word with `key`, or None. Earlier words are skipped; all words are kept in self.words."""
        while b"\n" in self.pending:
            line, self.pending = self.pending.split(b"\n", 1)
            self.words.append(json.loads(line))
            if key in self.words[-1] and accept(self.words[-1][key]):
                return self.words[-1]
        return None

    def receive(self, end):
        """Receives more bytes, and waits for them until `end`."""
        self.link.settimeout(max(0.01, end - time.monotonic()))
        received = self.link.recv(65536)
        if not received:
            raise AssertionError(f"the worker ended: {self.process.communicate()}")
        self.pending += received

    def hear(self, key, accept=lambda value: True):
        """Waits for the next word with `key`."""
        end = time.monotonic() + LIMIT_S
        while (word := self.next_word(key, accept)) is None:
            self.receive(end)
        return word

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err


class ForkedProcess:
    """The part of Popen that tests need, for a script that runs in a fork of this interpreter."""

    def __init__(self, script, *args, **environment):
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(out_end, 1)
            os.dup2(err_end, 2)
            os.closerange(3, 256)
            self.run(str(script), map(str, args), dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", **environment))
        os.close(out_end)
        os.close(err_end)
        self.stdout, self.stderr, self.returncode = os.fdopen(out), os.fdopen(err), None
        self.end = os.pidfd_open(self.pid)

    @staticmethod
    def run(script, args, environment):
        code = 1
        try:
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = [script, *args]
            runpy.run_path(script, run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            sys.last_value = error  # as the interpreter does
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self):
        return self.wait(0, check=False)

    def wait(self, seconds=None, check=True):
        if self.returncode is None:
            if select.select([self.end], [], [], seconds)[0]:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                os.close(self.end)
            elif check:
                raise subprocess.TimeoutExpired(self.pid, seconds)
        return self.returncode

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout=None):
        """Returns the output of a script that writes less than a pipe holds."""
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()


class ElasticTest(LaunchTest):
    text = ""  # the text of the script

    def setUp(self):
        super().setUp()
        self.workers = []
        self.addCleanup(self.end_all)
        self.path = self.script("script.py", self.text, mode=0o644)

    def end_all(self):
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
            worker.process.stdout.close()
            worker.process.stderr.close()
            worker.listener.close()
            if worker.link:
                worker.link.close()

    def begin(self, attempt, workers, source=None, missing=0):
        """Orders the attempt, on a store of its own. `missing` ranks count, but never connect."""
        store = subprocess.Popen([STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(store.communicate)
        port = store.stdout.readline().split()[1]
        world = len(workers) + missing
        for rank, worker in enumerate(workers):
            worker.say(attempt=attempt, rank=rank, world=world, local_rank=rank, local_world=world, node_rank=0, nodes=1,
                       store=f"127.0.0.1:{port}", agent_store=True, **{"from": source}, later="unknown keys are ignored")

    def workers_for(self, count, steps, **environment):
        workers = [Worker(self, self.path, steps, **environment) for _ in range(count)]
        for worker in workers:
            worker.connect()
            hello = worker.hear("hello")
            self.assertEqual((hello["hello"], hello["rejoin"], hello["sharded"]), (1, True, False))
        return workers

    def worker(self, steps, **environment):
        return self.workers_for(1, steps, **environment)[0]

    def team(self, steps, count=3, **environment):
        workers = self.workers_for(count, steps, **environment)
        self.begin(0, workers)
        for worker in workers:
            worker.hear("ready")
        return workers

    def hear_first(self, workers, key):
        """Returns the next word with `key` from the first worker that sends one."""
        end = time.monotonic() + LIMIT_S
        while True:
            for worker in workers:
                if (word := worker.next_word(key)) is not None:
                    return word
            ready = select.select([worker.link for worker in workers], [], [], max(0.01, end - time.monotonic()))[0]
            self.assertTrue(ready, f"no {key!r}")
            for worker in workers:
                if worker.link in ready:
                    worker.receive(end)

    def revoke(self, attempt, workers):
        """Revokes the attempt, and returns the step that each worker holds."""
        for worker in workers:
            worker.say(revoke=attempt, reason="another rank was killed by SIGKILL", deadline_ms=5000)
        # If the workers were not woken, Gloo would wait for half an hour.
        return [worker.hear("revoked", lambda value: value == attempt)["step"] for worker in workers]

    def read_line(self, worker, wanted):
        limit = threading.Timer(LIMIT_S, worker.process.kill)
        limit.start()
        self.addCleanup(limit.cancel)
        lines = []
        for line in worker.process.stdout:
            lines.append(line)
            if line == wanted:
                limit.cancel()
                return
        self.fail(f"no {wanted!r} in {lines}: {worker.process.stderr.read()}")
