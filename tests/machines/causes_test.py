#!/usr/bin/env python3
"""Tests which failure of a job on several machines is named as its root cause, when others are detected before it. root_cause_test.cc has
the texts by which libraries report a lost peer, tests/scenarios/supervisor/late_*.txt the ends that come late."""

import json
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.machines import MachinesTest, main_side_by_side

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    dist.all_reduce(loss)\n'
GLOO = TRACEBACK + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.76.0.2]:40123\n"
TIMED_OUT = TRACEBACK + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] read [10.76.0.1]:40123: Connection timed out\n"
RESET = TRACEBACK + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] read [10.76.0.2]:40123: Connection reset by peer\n"
MEMORY = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    data = load()\nMemoryError\n'

# worker.sh DIRECTORY ECHOES HOW HOW3 SECONDS: all wait for a file. Then the ranks of ECHOES (a pattern) end by HOW, and SECONDS later
# rank 3 by HOW3, which the stop of the others does not impress. The remaining ranks sleep.
WORKER = """#!/bin/sh
ulimit -c 0
[ "$RANK" != 3 ] || trap '' TERM
echo up
until [ -e "$1/go" ]; do sleep 0.02; done
end() {
  case $1 in
    SIG*) kill -s "${1#SIG}" $$ ;;
    text) cat "$2" >&2; exit 1 ;;
    *) exit "$1" ;;
  esac
}
case $RANK in
  $2) end "$3" "$1/echo" ;;
  3) sleep "$5"; end "$4" "$1/error" ;;
  *) exec sleep 1000 ;;
esac
"""


class Causes(MachinesTest):
    slots = 2

    def hosts(self):
        return ",".join(f"{name}:{self.slots}" for name in self.machines.names)

    def launch(self, *args):
        self.report = self.dir / "report.json"
        process = self.start("--report", self.report, *args)
        for _ in range(self.count * self.slots):
            self.assertEqual(process.stdout.readline(), "up\n")
        return process

    def end(self, process, code):
        """Waits for the end. Returns the report's root cause, and its other failures by rank."""
        self.done = self.finish(process)
        self.assert_code(self.done, code)
        report = json.loads(self.report.read_text())
        return report["root_cause"], {one["rank"]: one for one in report["other_failures"]}


class NodeCutOff(Causes):
    """n2 is cut off, and 5 s later rank 0 on n1 reports a lost peer. The node counts as lost only 10 s after that."""

    slots = 1
    lease_s = 10

    def test_gloo_reports_a_lost_peer(self):
        (self.dir / "echo").write_text(GLOO)
        process = self.launch("--master-timeout", "15s", self.script("worker.sh", WORKER), self.dir, 0, "text", 0, 0)
        self.machines.cut("n2")
        time.sleep(5)
        (self.dir / "go").touch()
        cause, others = self.end(process, 113)
        self.assertEqual((cause["what"], cause["host"], cause["error"]["kind"]), ("node", "n2", "LinkLost"), repr(self.done))
        self.assertEqual((others[0]["exit_code"], others[0]["stopped_by_ddplaunch"]), (1, False))


class LateCause(Causes):
    """Rank 3 on n2 is the cause. Others notice it first, end first, and are the reason why ddplaunch stops all."""

    def rank_3_ends(self, how, code, echo, echoes):
        (self.dir / "echo").write_text(echo)
        (self.dir / "error").write_text(MEMORY)
        process = self.launch(self.script("worker.sh", WORKER), self.dir, echoes, "text", how, 3)
        (self.dir / "go").touch()
        cause, others = self.end(process, code)
        self.assertEqual((cause["rank"], cause["stopped_by_ddplaunch"]), (3, False), repr(self.done))
        self.assertEqual(sorted(others), [0, 1, 2])
        if echoes == "0":
            self.assertFalse(others[0]["stopped_by_ddplaunch"])

    def test_by_a_segmentation_fault(self):
        self.rank_3_ends("SIGSEGV", 128 + signal.SIGSEGV, RESET, "0")

    def test_by_an_exception_while_peers_report_a_timeout(self):
        self.rank_3_ends("text", 1, TIMED_OUT, "[0-2]")

    def test_an_end_by_another_signal_is_not_the_work_of_ddplaunch(self):
        # Rank 0 fails by itself. Rank 3 outlives SIGTERM and then crashes; the others end by SIGTERM.
        process = self.launch(self.script("worker.sh", WORKER), self.dir, 0, 7, "SIGSEGV", 0.5)
        (self.dir / "go").touch()
        cause, others = self.end(process, 7)
        self.assertEqual(cause["rank"], 0)
        self.assertEqual([(rank, one["signal"], one["stopped_by_ddplaunch"]) for rank, one in sorted(others.items())],
                         [(1, "SIGTERM", True), (2, "SIGTERM", True), (3, "SIGSEGV", False)], repr(self.done))
        self.assertNotRegex(self.done.err, r"ranks? [\d,-]*3 on n2: stopped by ddplaunch")


class Charge(Causes):
    """A host is left out after three faults: the host of the root cause, not that of the rank that ended first."""

    slots = 1

    def test_the_host_of_the_root_cause_is_charged(self):
        worker = self.script("worker.sh", f"""#!/bin/sh
ulimit -c 0
host=$(hostname)
echo "attempt $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE on $host"
[ "$TORCHELASTIC_RESTART_COUNT" -lt 3 ] || exit 0
ran={self.dir}/ran.$TORCHELASTIC_RESTART_COUNT
if [ "$host" = n1 ]; then
  until [ -e "$ran" ]; do sleep 0.02; done
  cat {self.dir}/echo >&2
  exit 1
fi
trap '' TERM
touch "$ran"
sleep 0.5
kill -SEGV $$
""")
        (self.dir / "echo").write_text(RESET)
        done = self.run_job("--nnodes", "1:2", worker)
        self.assert_code(done, 0)
        self.assertEqual([line for line in done.out.splitlines() if line.startswith("attempt 3")], ["attempt 3 of 1 on n1"], repr(done))


if __name__ == "__main__":
    main_side_by_side(6)
