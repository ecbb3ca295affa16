#!/usr/bin/env python3
"""Tests the restart budget: attempts of the whole job, on one machine and over SSH."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch
from tests.support.launch import LaunchTest, Nodes, main, wait_until
from tests.support.ports import free_port

# Rank 1 fails in the attempts before $1, with code $2, when all ranks have printed a line. The others wait to be stopped.
FAILING = """#!/bin/sh
attempt=$TORCHELASTIC_RESTART_COUNT
echo "attempt $attempt of $TORCHELASTIC_MAX_RESTARTS rank $RANK/$WORLD_SIZE port $MASTER_PORT"
: > "$TMP_RANKS/$attempt.$RANK"
[ "$attempt" -ge "$1" ] && exit 0
[ "$RANK" = 1 ] || exec sleep 1000
while set -- "$1" "$2" "$TMP_RANKS/$attempt".*; [ $# -lt $((WORLD_SIZE + 2)) ]; do sleep 0.01; done
echo "boom $attempt" >&2
exit "$2"
"""

TORCH = """
import os, torch, torch.distributed as dist
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="env://")
total = torch.ones(1)
dist.all_reduce(total)
print("attempt", attempt, "sum", int(total.item()), flush=True)
dist.barrier()  # both have printed before rank 1 ends
if attempt == 0 and rank == 1:
    os._exit(9)  # sys.exit would close the connections long before the process ends, and the others could fail first
dist.barrier()  # in attempt 0 rank 1 never comes
"""


def failing(test):
    (test.dir / "ranks").mkdir()
    return ["--env", f"TMP_RANKS={test.dir}/ranks", "--env", "OMP_NUM_THREADS=1", test.script("failing.sh", FAILING)]


class Restarts(LaunchTest):

    def options(self, restarts):
        return ["--nproc-per-node", 3, "--max-restarts", restarts, "--restart-backoff", "50ms", "--label", "none"]

    def test_restarts_continue_until_an_attempt_succeeds(self):
        done = self.run_job(*self.options(3), *failing(self), 2, 5)
        self.assert_code(done, 0)
        for attempt in range(3):
            for rank in range(3):
                self.assertRegex(done.out, rf"(?m)^attempt {attempt} of 3 rank {rank}/3 port \d+$")
        self.assertNotIn("attempt 3", done.out)
        self.assertIn("ddplaunch: rank 1 on localhost exited 5; restart 1 of 3 in 50 ms\n", done.err)
        self.assertIn("ddplaunch: rank 1 on localhost exited 5; restart 2 of 3 in 100 ms\n", done.err)
        for attempt in range(2):  # files of an attempt are never deleted, and no other attempt writes into them
            self.assertEqual((self.job_dir / f"attempt_{attempt}/rank_00001.stderr").read_text(), f"boom {attempt}\n")
        self.assertTrue((self.job_dir / "attempt_2/rank_00000.stdout").exists())

    def test_a_fixed_port_is_free_for_each_attempt(self):
        port = free_port()
        done = self.run_job(*self.options(2), "--master-port", port, *failing(self), 2, 5)
        self.assert_code(done, 0)
        for attempt in range(3):
            self.assertIn(f"attempt {attempt} of 2 rank 0/3 port {port}\n", done.out)

    def test_a_restarted_rank_0_continues_to_read_stdin(self):
        reader = self.script("reader.sh", '#!/bin/sh\n[ "$RANK" = 0 ] || exec sleep 100\nread line\n'
                             'echo "got $line"\n[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 1\ncat\nexit 0\n')
        process = self.start("--nproc-per-node", 1, "--max-restarts", 1, "--restart-backoff", "10ms", "--label", "none",
                             "--stdin", 0, "--env", "OMP_NUM_THREADS=1", reader, stdin=subprocess.PIPE)
        process.stdin.write("one\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), "got one\n")
        self.assertTrue(wait_until(lambda: (self.job_dir / "attempt_0").exists()))
        self.assertIn("restart 1 of 1", process.stderr.readline())
        process.stdin.write("two\nthree\n")
        process.stdin.close()
        process.stdin = None
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(done.out, "got two\nthree\n")


class RestartsOverSsh(LaunchTest):
    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes.of_class(cls, 2)

    def over_ssh(self, *args):
        return self.run_job("--hostfile", self.nodes.hostfile, "--ssh-config", self.nodes.ssh_config, *args)

    def test_attempts_over_two_nodes(self):
        done = self.over_ssh("--nproc-per-node", 2, "--max-restarts", 2, "--restart-backoff", "50ms", "--label", "none",
                             *failing(self), 2, 5)
        self.assert_code(done, 0)
        for attempt in range(3):
            self.assertEqual(done.out.count(f"attempt {attempt} of 2"), 4)

    @unittest.skipUnless(pytorch.can_join_store(), pytorch.why_not())
    def test_torch_connects_to_the_new_store_after_a_restart(self):
        self.env.update(pytorch.environment())
        script = self.script("job.py", TORCH)
        done = self.over_ssh("--nproc-per-node", 1, "--max-restarts", 1, "--restart-backoff", "50ms", "--label", "none",
                             "--python", "/usr/bin/python3", script)
        self.assert_code(done, 0)
        self.assertEqual(done.out.count("attempt 0 sum 2\n"), 2)
        self.assertEqual(done.out.count("attempt 1 sum 2\n"), 2)
        self.assertIn("rank 1 on 127.0.0.3 exited 9; restart 1 of 1", done.err)


if __name__ == "__main__":
    main()
