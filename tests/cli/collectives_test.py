#!/usr/bin/env python3
"""Tests that a failed job names the rank for which the others waited in a collective, with `train` and with fake workers."""

import json
import os
import pathlib
import re
import resource
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, Nodes, live_processes_with, main, wait_until

# This is the memory layout of rendezvous::FlightRecorderMemory. A rank has done one all-reduce of its world, and waits in the
# second, except the late rank. Rank 0 fails when all have recorded that and the ranks in `ended` have ended.
WORKER = r"""
import json, os, pathlib, struct, sys, time
STRIDE = 256 << 10
rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
notes = pathlib.Path(sys.argv[1]) / str(attempt)
play = json.loads(sys.argv[2])

def entry(sequence, finished):
    return struct.pack("<QQqq20s12s", sequence, 116_140, 5 * sequence, finished, b"all-reduce", b"float")

made = 1 if rank == play["late"][attempt] else 2
name = play.get("name", "world").encode()
group = struct.pack("<24siiQ", name, 0, world, made) + entry(1, 7) + (entry(2, 0) if made == 2 else b"")
with open(os.environ["DDPLAUNCH_COLLECTIVES"], "r+b", buffering=0) as memory:
    memory.seek(STRIDE * local)
    memory.write(struct.pack("<QIiiI", 0x314C4C4F43504444, attempt, rank, world, 1) + group)
notes.mkdir(parents=True, exist_ok=True)
(notes / f".{rank}").write_text(str(os.getpid()))
os.rename(notes / f".{rank}", notes / f"rank{rank}")
ended = play.get("ended", [])
if rank in ended:
    sys.exit(0)
while rank == 0 and len(list(notes.glob("rank*"))) < world:
    time.sleep(0.01)
while rank == 0 and any(os.path.exists("/proc/" + (notes / f"rank{one}").read_text()) for one in ended):
    time.sleep(0.01)
if rank == 0:
    exec(play.get("fail", "sys.exit(7)"))
time.sleep(1000)
"""
MISSED = "  collectives: rank 3 has not started all-reduce 2 (113 KiB) that ranks 0-2 wait in\n"


class Collectives(LaunchTest):
    def play(self, *late, args=("--nproc-per-node", 4), **rest):
        """Runs the fake workers. `late` has for each attempt the rank that has not started the collective of the others."""
        self.script("worker.py", WORKER)
        return self.run_job("--report", self.dir / "report.json", *args, sys.executable, self.dir / "worker.py",
                            self.dir / "notes", json.dumps({"late": late, **rest}))

    def on_nodes(self):
        nodes = Nodes(self, 2)
        return "--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--nproc-per-node", 2

    def report(self):
        return json.loads((self.dir / "report.json").read_text())

    def test_the_rank_that_others_wait_for_is_named(self):
        done = self.play(3)
        self.assert_code(done, 7)
        self.assertIn(MISSED, done.err)
        self.assertEqual(self.report()["root_cause"]["waited_for"],
                         "rank 3 has not started all-reduce 2 (113 KiB) that ranks 0-2 wait in")

    def test_nodes_are_compared(self):
        done = self.play(3, args=self.on_nodes())
        self.assert_code(done, 7)
        self.assertIn(MISSED, done.err)

    def test_each_attempt_is_analyzed_separately(self):
        done = self.play(3, 2, args=("--nproc-per-node", 4, "--max-restarts", 1, "--restart-backoff", "10ms"))
        self.assert_code(done, 7)
        self.assertIn("  collectives: rank 2 has not started all-reduce 2 (113 KiB) that ranks 0-1,3 wait in\n", done.err)
        self.assertEqual([failure["waited_for"] for failure in self.report()["earlier_attempts"]],
                         ["rank 3 has not started all-reduce 2 (113 KiB) that ranks 0-2 wait in"])

    def test_no_rank_is_named_when_all_ranks_wait(self):
        done = self.play(None)
        self.assert_code(done, 7)
        self.assertNotIn("collectives", done.err)
        self.assertIsNone(self.report()["root_cause"]["waited_for"])

    def test_text_of_a_worker_does_not_control_the_terminal(self):
        done = self.play(3, name="\x1b[31mred\n")
        self.assert_code(done, 7)
        self.assertRegex(done.err, r"\n  collectives: rank 3 has not started all-reduce 2 \(113 KiB\) of \?\[31mred\? that ranks 0-2 wait in\n")
        self.assertNotIn("\x1b", done.err)

    def test_corrupted_memory_of_a_worker_is_ignored(self):
        """Fills the memory with garbage or another rank's data: the report has no desync analysis but the usual cause. A
        worker cannot truncate the memory that the other processes map."""
        for spoil in ("open(path, 'r+b').write(os.urandom(256 << 10))",
                      "open(path, 'r+b').write(struct.pack('<QIiiI', 0x314C4C4F43504444, 0, 5, 6, 1))",
                      "try:\n  os.truncate(path, 0)\nexcept PermissionError:\n  pass\nelse:\n  sys.exit(11)"):
            with self.subTest(spoil=spoil):
                done = self.run_job("--nproc-per-node", 2, sys.executable, "-c", "import os, struct, sys\n"
                                    f"path = os.environ['DDPLAUNCH_COLLECTIVES']\n{spoil}\nsys.exit(9)")
                self.assert_code(done, 9)
                self.assertNotIn("collectives", done.err)

    def test_a_limit_of_file_sizes_ends_no_job(self):
        limit = 100 << 10
        done = self.run_job("--nproc-per-node", 2, "true",
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assert_code(done, 0)

    def test_a_rank_that_fails_by_itself_blames_no_other_rank(self):
        """The position of the other ranks at that moment has no meaning."""
        done = self.play(3, fail="os.kill(os.getpid(), 9)")
        self.assert_code(done, 137)
        self.assertNotIn("collectives", done.err)
        done = self.play(0)  # rank 0, which fails, waits in no collective
        self.assert_code(done, 7)
        self.assertNotIn("collectives", done.err)

    def test_ranks_that_ended_are_reported_as_ended(self):
        done = self.play(3, ended=[2, 3], args=self.on_nodes())
        self.assert_code(done, 7)
        self.assertIn("  collectives: ranks 2-3 have ended; ranks 0-1 wait in all-reduce 2 (113 KiB)\n", done.err)

    def test_a_hanging_training_names_its_ranks(self):
        process = self.start("--hang-timeout", "2s", "--nproc-per-node", 3, "train", "--device", "cpu", "--data", "synthetic", "--epochs", 1000,
                             "--batch-size", 10, "--comm-timeout", "100s", "--metrics-file", self.dir / "metrics")
        self.assertTrue(wait_until(lambda: self.steps() > 20))
        stopped = [pid for pid, words in live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")
                   if "train" in words and "\0RANK=1\0" in "\0" + pathlib.Path(f"/proc/{pid}/environ").read_text()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        done = self.finish(process)
        self.assert_code(done, 117)
        # The moment of the stop is random. The report says that all ranks wait if a job that hung has no missing rank.
        self.assertRegex(done.err, r"\n  collectives: (rank 1 has not (started|finished)|all ranks wait in) all-reduce \d+ \(113 KiB\)")

    def steps(self):
        metrics = self.dir / "metrics"
        return len(re.findall(r'"step"', metrics.read_text())) if metrics.exists() else 0


if __name__ == "__main__":
    main()
