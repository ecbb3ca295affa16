#!/usr/bin/env python3
"""A failed job names the rank that the others waited for in a collective: by `train`, and by workers that play it."""

import json
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, Nodes, live_processes_with, main, wait_until

# As rendezvous::CollectiveMemory lies in memory: a rank that has done one all-reduce of its world, and, but for rank 3 of four,
# waits in the second. Rank 0 fails when all have noted that.
WORKER = r"""
import os, pathlib, struct, sys, time
GROUP, STRIDE = 64_040, 256 << 10
rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
notes = pathlib.Path(sys.argv[1]) / str(attempt)
late = len(sys.argv) > 2 and eval(sys.argv[2])
name = sys.argv[3].encode().decode("unicode_escape").encode() if len(sys.argv) > 3 else b"world"

def entry(sequence, finished):
    return struct.pack("<QQqq20s12s", sequence, 116_140, 5 * sequence, finished, b"all-reduce", b"float")

made = 1 if rank == late else 2
group = struct.pack("<24siIQ", name, world, 0, made) + entry(1, 7) + (entry(2, 0) if made == 2 else b"")
with open(os.environ["DDPLAUNCH_COLLECTIVES"], "r+b", buffering=0) as memory:
    memory.seek(STRIDE * local)
    memory.write(struct.pack("<QIiiI", 0x314C4C4F43504444, attempt, rank, world, 1) + group)
notes.mkdir(parents=True, exist_ok=True)
(notes / str(rank)).touch()
while rank == 0 and len(list(notes.iterdir())) < world:
    time.sleep(0.01)
if rank == 0:
    sys.exit(7)
time.sleep(1000)
"""
MISSED = "  collectives: rank 3 has not started all-reduce 2 (116 KB) that ranks 0-2 wait in\n"


class Collectives(LaunchTest):
    def play(self, *words, args=("--nproc-per-node", 4)):
        self.script("worker.py", WORKER)
        return self.run_job("--report", self.dir / "report.json", *args, sys.executable, self.dir / "worker.py",
                            self.dir / "notes", *words)

    def report(self):
        return json.loads((self.dir / "report.json").read_text())

    def test_the_rank_that_is_waited_for_is_named(self):
        done = self.play("3")
        self.assert_code(done, 7)
        self.assertIn(MISSED, done.err)
        self.assertEqual(self.report()["root_cause"]["waited_for"],
                         "rank 3 has not started all-reduce 2 (116 KB) that ranks 0-2 wait in")

    def test_nodes_are_compared(self):
        nodes = Nodes(self, 2)
        done = self.play("3", args=("--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--nproc-per-node", 2))
        self.assert_code(done, 7)
        self.assertIn(MISSED, done.err)

    def test_each_attempt_is_judged_by_itself(self):
        done = self.play("3 if attempt == 0 else 2", args=("--nproc-per-node", 4, "--max-restarts", 1, "--restart-backoff", "10ms"))
        self.assert_code(done, 7)
        self.assertIn("  collectives: rank 2 has not started all-reduce 2 (116 KB) that ranks 0, 1 and 3 wait in\n", done.err)
        self.assertEqual([failure["waited_for"] for failure in self.report()["earlier_attempts"]],
                         ["rank 3 has not started all-reduce 2 (116 KB) that ranks 0-2 wait in"])

    def test_that_all_wait_names_nobody(self):
        done = self.play("None")
        self.assert_code(done, 7)
        self.assertNotIn("collectives", done.err)
        self.assertIsNone(self.report()["root_cause"]["waited_for"])

    def test_what_a_worker_wrote_does_not_steer_the_terminal(self):
        done = self.play("3", r"\x1b[31mred\n")
        self.assert_code(done, 7)
        self.assertRegex(done.err, r"\n  collectives: rank 3 has not started all-reduce 2 \(116 KB\) of [^\x1b\n]*red[^\n]* that ranks 0-2 wait in\n")
        self.assertNotIn("\x1b", done.err)

    def test_memory_that_a_worker_has_spoilt(self):
        """Cut, filled with rubbish, of another rank: no words, and the cause is told as ever."""
        for spoil in ("os.truncate(path, 4096)", "open(path, 'r+b').write(os.urandom(256 << 10))",
                      "open(path, 'r+b').write(struct.pack('<QIiiI', 0x314C4C4F43504444, 0, 5, 6, 1))"):
            with self.subTest(spoil=spoil):
                done = self.run_job("--nproc-per-node", 2, sys.executable, "-c", "import os, struct, sys\n"
                                    f"path = os.environ['DDPLAUNCH_COLLECTIVES']\n{spoil}\nsys.exit(9)")
                self.assert_code(done, 9)
                self.assertNotIn("collectives", done.err)

    def test_the_ranks_of_a_training_that_hangs(self):
        process = self.start("--hang-timeout", "2s", "--nproc-per-node", 3, "train", "--data", "synthetic", "--epochs", 1000,
                             "--batch-size", 10, "--comm-timeout", "100s", "--metrics-file", self.dir / "metrics")
        self.assertTrue(wait_until(lambda: self.steps() > 20, 30))
        stopped = [pid for pid, words in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")
                   if "train" in words and "\0RANK=1\0" in "\0" + pathlib.Path(f"/proc/{pid}/environ").read_text()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        done = self.finish(process)
        self.assert_code(done, 117)
        # Where it was stopped is chance; that all wait is said of a job that hung, too.
        self.assertRegex(done.err, r"\n  collectives: (rank 1 has not (started|finished)|all ranks wait in) all-reduce \d+ \(116 KB\)")

    def steps(self):
        metrics = self.dir / "metrics"
        return len(re.findall(r'"step"', metrics.read_text())) if metrics.exists() else 0


if __name__ == "__main__":
    main()
