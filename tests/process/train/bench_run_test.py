#!/usr/bin/env python3
"""Runs the built `train bench` on the ranks of one or several nodes, and checks tables, JSON, exit codes and errors.

usage: bench_run_test.py PATH_OF_TRAIN [unittest options]
"""
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from tests.support.train_ranks import Ranks, own_environment

TRAIN = ""
ROW = re.compile(r" *(\d+) +(\d+) +float +(sum|none) +(-1|0) +([\d.]+) +([\d.]+) +([\d.]+) +(\S+) +([\d.]+) +([\d.]+)")


class Nodes(Ranks):
    """`train` processes as the ranks of nodes of these sizes."""

    def __init__(self, sizes, *arguments):
        super().__init__((TRAIN, *arguments), sum(sizes), sizes)


def run(sizes, *arguments):
    with Nodes(sizes, *arguments) as nodes:
        return nodes.finish()


class Tables(unittest.TestCase):
    def table(self, sizes, *arguments):
        results = run(sizes, *arguments)
        for code, out, err in results:
            self.assertEqual((code, err), (0, ""))
        self.assertEqual([out for _, out, _ in results[1:]], [""] * (len(results) - 1), "only rank 0 prints")
        return results[0][1]

    def test_every_operation_is_correct_on_every_backend(self):
        for operation in ("allreduce", "allgather", "reducescatter", "broadcast"):
            for sizes, comm, way in (((3,), "auto", "3 ranks on 1 node, shm"), ((2, 1), "auto", "3 ranks on 2 nodes, shm+tcp"),
                                     ((2, 1), "tcp", "3 ranks, tcp")):
                with self.subTest(operation=operation, way=way):
                    text = self.table(sizes, "bench", operation, "--comm", comm, "-b", "12", "-e", "1200K", "-f", "100",
                                      "-n", "3", "-w", "1")
                    self.assertIn(f"bench {operation}, {way}, in place\n", text)
                    rows = [ROW.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]
                    self.assertEqual([int(row[1]) for row in rows], [12, 1200, 120000])
                    self.assertEqual([row[8] for row in rows], ["0", "0", "0"])
                    self.assertIn("# Out of bounds values : 0 OK\n", text)
                    tested = {"shm": "shared memory", "tcp": "TCP", "shm+tcp": "shared memory and TCP"}[way.split(", ")[1]]
                    self.assertEqual(text.splitlines()[-1].split(";")[0], f"# tested: CPU only, {tested}")

    def test_json_and_pairs(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            text = self.table((2, 2), "bench", "pairs", "-e", "64K", "-n", "3", "--json", path)
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
        self.assertIn("# bandwidth of each pair, GB/s and direction, 65536 bytes\n", text)
        self.assertEqual(list(result)[:6], ["schema", "kind", "time", "host", "rank", "world_size"])
        self.assertEqual([result[key] for key in ("schema", "kind", "host", "rank", "world_size", "nodes", "passed")],
                         ["ddp-train-record/1", "pairs", socket.gethostname(), 0, 4, 2, True])
        self.assertRegex(result["time"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual([pair["ranks"] for pair in result["pairs"]], [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
        same_node = [True, False, False, False, False, True]
        self.assertEqual([pair["same_node"] for pair in result["pairs"]], same_node)
        with tempfile.TemporaryDirectory() as folder:
            self.table((2, 2), "bench", "pairs", "--comm", "tcp", "-e", "64", "-n", "3", "--json", f"{folder}/result.json")
            result = json.loads(pathlib.Path(folder, "result.json").read_text(encoding="utf-8"))
        self.assertEqual([pair["same_node"] for pair in result["pairs"]], same_node, "over TCP too, ranks have their node")
        self.assertEqual({pair["at_once"] for pair in result["pairs"]}, {1, 2})

    def test_a_bandwidth_that_is_not_reached_is_an_exit_code(self):
        results = run((2,), "bench", "allreduce", "-b", "4K", "-e", "4K", "-n", "2", "--min-busbw", "1e6")
        self.assertEqual(results[0][0], 1)
        self.assertRegex(results[0][2], r"^train: bus bandwidth [\d.]+ GB/s at 4096 bytes is under --min-busbw 1e\+06\n$")
        self.assertEqual(results[1][::2], (0, ""))

    def test_one_process_alone(self):
        done = subprocess.run([TRAIN, "bench", "allreduce", "-e", "8", "-n", "1"], env=own_environment(), text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 rank, none, in place", done.stdout)


class LostRanks(unittest.TestCase):
    def check(self, sizes, dead, size="64K"):
        with Nodes(sizes, "bench", "allreduce", "-b", size, "-e", size, "-n", "10000000") as nodes:
            nodes.processes[0].stdout.readline()  # all ranks have met
            nodes.processes[dead].send_signal(signal.SIGKILL)
            start = time.monotonic()
            for rank, process in enumerate(nodes.processes):
                if rank == dead:
                    continue
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1)
                self.assertRegex(errors, rf"^train: rank {rank} lost rank {dead} \(.*\n$")
            self.assertLess(time.monotonic() - start, 30)  # --comm-timeout is 60 s

    def test_a_killed_rank_ends_all_of_its_node(self):
        self.check((3,), 1)

    def test_a_killed_rank_ends_all_nodes(self):
        self.check((2, 2), 2)

    def test_a_rank_killed_in_an_in_place_all_reduce(self):
        for sizes, dead in (((2,), 1), ((3,), 0), ((2, 2), 3)):
            self.check(sizes, dead, "4M")

    def test_no_named_shared_memory_or_socket_is_left(self):
        before = os.listdir("/dev/shm")
        mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
        with unittest.mock.patch.dict(os.environ, DDP_TEST_MARK=mark):
            self.check((2,), 0)
        self.assertEqual([name for name in os.listdir("/dev/shm") if name not in before and "ddp" in name and "ddp-left-" not in name], [])
        self.assertEqual(self.sockets_of(mark), [])

    def test_the_search_for_sockets_finds_them(self):
        mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("\0ddp-train-" + mark)
            one.set_inheritable(True)
            holder = subprocess.Popen(["cat"], env={**os.environ, "DDP_TEST_MARK": mark}, close_fds=False,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            # The kernel shows the environment of a process only some time after exec has closed Popen's error pipe.
            holder.stdin.write(b"runs\n")
            holder.stdin.flush()
            self.assertEqual(holder.stdout.readline(), b"runs\n")
            self.assertEqual(self.sockets_of(mark), ["@ddp-train-" + mark])
        finally:
            holder.kill()
            holder.communicate()

    @staticmethod
    def sockets_of(mark):
        """Returns the names of train's sockets that a process with this mark in its environment holds. Other tests have some, too."""
        with open("/proc/net/unix", encoding="utf-8") as file:
            names = {f"socket:[{words[6]}]": words[7] for words in map(str.split, file) if len(words) > 7 and words[7].startswith("@ddp-train-")}
        held = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (process / "environ").read_bytes():
                    held += [names[link] for fd in (process / "fd").iterdir() if (link := os.readlink(fd)) in names]
            except OSError:
                continue  # the process has ended
        return held


class OptionErrors(unittest.TestCase):
    def refused(self, *arguments, **env):
        done = subprocess.run([TRAIN, *arguments], env=own_environment() | env, text=True, capture_output=True, timeout=60)
        return done.returncode, done.stderr

    def test_wrong_options(self):
        code, text = self.refused("bench", "gather")
        self.assertEqual(
            (code, text), (2, "train bench: OPERATION gather: give allreduce, allgather, reducescatter, broadcast, alltoall, sendrecv or pairs\n"))
        code, text = self.refused("bench", "allreduce", "-b", "8Q", "--comm_timeout", "soon", "-g", "8", "--min-busbw", "nan",
                                  "--stepfactor", "0")
        self.assertEqual(code, 2)
        self.assertEqual(text.splitlines(), [
            "train bench: --minbytes 8Q: give a size like 8, 64K, 1.5M or 2G",
            "train bench: --stepfactor 0: give a number of at least 1",
            "train bench: --min-busbw nan: give a number from 0 to 1000000000",
            "train bench: --comm-timeout soon: give a time like 500ms, 15s, 2m or 1h",
            "train bench: --ngpus 8: a rank uses one GPU at most; start more ranks with --nproc-per-node"])
        code, text = self.refused("bench", "allreduce", "-b", "1K", "-e", "8")
        self.assertEqual((code, text), (2, "train bench: -b is larger than -e: 1024 and 8 bytes\n"))
        code, text = self.refused("bench", "pairs")
        self.assertEqual((code, text), (2, "train bench: pairs needs at least two ranks\n"))

    def test_sizes_beyond_the_memory_are_refused_before_the_start(self):
        for arguments in (("bench", "allreduce", "-b", "1024G"), ("bench", "pairs", "-e", "1024G")):
            # This is rank 1 of a world of two without a rank 0; train must refuse before it searches for rank 0.
            code, text = self.refused(*arguments, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", GROUP_RANK="0",
                                      MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
            self.assertEqual(code, 2, text)
            each = "1.0" if arguments[1] == "allreduce" else "2.0"
            self.assertRegex(text, rf"^train bench: {arguments[1]}: messages of 1099511627776 bytes need {each} TiB of memory for "
                                   r"each rank, and host \S+ has [\d.]+ [GM]iB left for its 2 ranks; write a smaller -b or -e\n$")
        code, text = self.refused("health", "--device", "cpu", "--memory", "16777216")
        self.assertEqual(code, 2, text)
        self.assertRegex(text, r"^train health: --memory 16777216: 16.0 TiB of memory for each rank, and host \S+ has ")
        code, text = self.refused("bench", "allreduce", "-e", "1024G", "-i", "4")
        self.assertEqual((code, text), (2, "train bench: -i: from 8 to 1099511627776 bytes in steps of 4 are more than 10000 sizes; use a "
                                           "larger -i, or -f 2\n"))

    def test_memory_that_a_limit_refuses_is_reported(self):
        limit = 256 << 20
        done = subprocess.run([TRAIN, "bench", "allreduce", "-b", "512M", "-n", "1", "-w", "0"], text=True, capture_output=True, timeout=60,
                              env=own_environment(), check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        if "Sanitizer" in done.stderr:
            self.skipTest("a sanitizer needs more than such a limit leaves")
        self.assertEqual((done.returncode, done.stderr),
                         (1, "train: this process cannot allocate 512 MiB of memory for the messages; write a smaller -b or -e\n"))

    def test_the_path_of_the_result_is_checked_first(self):
        for code, out, err in run((2,), "bench", "allreduce", "-e", "8", "--json", "/nonexistent/a"):
            self.assertEqual((code, out, err), (1, "", "train: --json /nonexistent/a: there is no directory /nonexistent/\n"))

    def test_the_operation_is_named_and_comes_first(self):
        self.assertEqual(self.refused("bench", "-b", "8"),
                         (2, "train bench: name an operation: allreduce, allgather, reducescatter, broadcast, alltoall, sendrecv or pairs\n"))
        self.assertEqual(self.refused("--comm", "tcp", "bench")[1],
                         'train: unexpected word "bench"; train --help lists all options\n')
        # Version 0.2 removes this spelling of earlier versions.
        self.assertEqual(self.refused("--bench", "allreduce", "-e", "8", "-n", "1"), (0, ""))

    def test_help_needs_no_operation(self):
        done = subprocess.run([TRAIN, "bench", "--help"], env=own_environment(), text=True, capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("--min-busbw", done.stdout)

    def test_comm_shm_without_the_node_of_a_rank_is_refused(self):
        code, text = self.refused("bench", "allreduce", "--comm", "shm", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                  MASTER_PORT="1")
        self.assertEqual(code, 2)
        self.assertEqual(text, "train bench: --comm shm needs GROUP_RANK and LOCAL_WORLD_SIZE, which ddplaunch and torchrun set: "
                               "these variables say which ranks share a node\n")


if __name__ == "__main__":
    TRAIN = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
