#!/usr/bin/env python3
"""Tests that workers of two attempts never live at once: workers append their attempt and the time to files."""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import wait_until
from tests.support.machines import MachinesTest, main_side_by_side

# worker.sh DIRECTORY LAST: ends 1 s after its start in the attempt LAST or later. SIGTERM does not end it.
WORKER = """#!/bin/sh
trap '' TERM
file=$1/$(hostname).$TORCHELASTIC_RESTART_COUNT.$$
echo "attempt $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE on $(hostname)"
left=10
while [ $left -gt 0 ]; do
  date +%s.%N >>"$file"
  [ "$TORCHELASTIC_RESTART_COUNT" -lt "$2" ] || left=$((left - 1))
  sleep 0.1
done
"""

# survivor.py DIRECTORY: speaks the worker protocol and survives failures of others, but not rank 2 (the first one on n2), which fails in
# each of the first three attempts.
SURVIVOR = r"""
import json, os, signal, socket, sys, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
host, attempt = socket.gethostname(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
local, joined, ended = os.environ["LOCAL_RANK"], threading.Event(), False
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["DDPLAUNCH_CONTROL"][5:])
lines = link.makefile("rw")

def say(**word):
    lines.write(json.dumps(word) + "\n")
    lines.flush()

def beat():
    while True:
        joined.wait()
        with open(f"{sys.argv[1]}/{host}.{attempt}.{os.getpid()}", "a") as file:
            print(f"{time.time():.9f}", file=file)
        time.sleep(0.1)

threading.Thread(target=beat, daemon=True).start()
say(hello=1, pid=os.getpid(), rejoin=True)
for line in lines:
    word = json.loads(line)
    if "attempt" in word:
        attempt = word["attempt"]
        joined.set()
        say(ready=attempt)
        say(step=attempt + 1)
        print(f"attempt {attempt} of {word['world']} on {host}", flush=True)
        if host == "n2" and local == "0" and attempt < 3:
            time.sleep(0.5)
            os._exit(9)
        if attempt == 3:
            time.sleep(1)
            os._exit(0)
    elif "revoke" in word:
        if host == "n1":
            joined.clear()  # it has left the attempt, and waits for the next one
        say(revoked=word["revoke"], step=attempt + 1)
time.sleep(1000)  # the agent has closed the connection
"""

# Runs a command as a shell with job control does: in a process group of its own.
SHELL = """
import os, sys
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class TwoWorlds(MachinesTest):
    # The lease is master-timeout + stop-grace for the agent to end its workers + 5 s for its keeper, after the last message.
    TIMES = ("--node-timeout", "3s", "--master-timeout", "3s", "--stop-grace", "100ms", "--nnodes", "1:2")
    LEASE_S = 3 + 0.1 + 5

    def setUp(self):
        super().setUp()
        self.beats = self.directory("beats")

    def command(self, *args):
        words = super().command(*args)
        program = words.index(str(self.machines.programs / "ddplaunch"))
        return [*words[:program], "/usr/bin/python3", "-I", "-S", "-c", SHELL, *words[program:]]

    def running(self, process, attempt, world):
        for _ in range(world):
            for line in process.stdout:
                if line.startswith(f"attempt {attempt} "):
                    break
            else:
                self.fail(process.stderr.read())

    def assert_nothing_left(self):
        self.assert_one_world()
        super().assert_nothing_left()

    def assert_one_world(self):
        """Checks that no worker of an attempt wrote the time after one of a later attempt had started. A survivor that goes on in a
        later attempt learns of that a moment after others do."""
        first, last, final = {}, {}, {}
        for path in self.beats.iterdir():
            host, attempt, pid = path.name.split(".")
            final[host, pid] = max(int(attempt), final.get((host, pid), 0))
        for path in self.beats.iterdir():
            host, attempt, pid = path.name.split(".")
            times = [float(line) for line in path.read_text().split()]
            if times:
                first[int(attempt)] = min(times[0], first.get(int(attempt), times[0]))
                if final[host, pid] == int(attempt):
                    last[int(attempt)] = max((times[-1], f"{host} pid {pid}"), last.get(int(attempt), (0, "")))
        self.assertGreater(len(first), 1, "there was one attempt only")
        for attempt, (end, who) in last.items():
            for later in (number for number in first if number > attempt):
                self.assertLess(end, first[later], f"attempt {later} began {end - first[later]:.1f} s before the last sign of attempt {attempt} ({who})")

    def is_asleep(self, pid):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def sleep_through_a_cut(self, number):
        """Stops the master, cuts n2 off, and continues the master when the lease of n2 is over."""
        process = self.start(*self.TIMES, self.script("worker.sh", WORKER), self.beats, 1)
        self.running(process, 0, 2)
        master = self.master(process)
        os.kill(master, number)
        if number == signal.SIGSTOP:  # Ctrl-Z is refused in a job that may restart
            self.assertTrue(wait_until(lambda: self.is_asleep(master)))
        self.machines.cut("n2")
        time.sleep(self.LEASE_S + 1)
        self.resume(process)
        return self.finish(process)

    def test_ctrl_z_and_a_cut(self):
        done = self.sleep_through_a_cut(signal.SIGTSTP)
        self.assert_code(done, 0)
        self.assertIn("Ctrl-Z is ignored: ", done.err)

    def test_a_frozen_master_and_a_cut(self):
        self.assert_code(self.sleep_through_a_cut(signal.SIGSTOP), 0)

    def test_a_cut_node(self):
        process = self.start(*self.TIMES, self.script("worker.sh", WORKER), self.beats, 1)
        self.running(process, 0, 2)
        self.machines.cut("n2")
        self.assert_code(self.finish(process), 0)

    def test_survivors_on_a_node_that_is_left_out(self):
        # Three failures of a rank on n2 exclude the host. Its other rank survives them, and must be gone when the others continue.
        process = self.start("--nnodes", "1:2", "--nproc-per-node", 2, "--oversubscribe", "--fence", "all", "--no-python", "/usr/bin/python3", "-S", "-E",
                             self.script("survivor.py", SURVIVOR), self.beats)
        for attempt, world in enumerate((4, 4, 4, 2)):
            self.running(process, attempt, world)
        self.assert_code(self.finish(process), 0)


if __name__ == "__main__":
    main_side_by_side(4)
