#!/usr/bin/env python3
"""Runs whole trainings over an emulated GPU and NCCL: `train` linked with tests/support/fake_cuda.cc, and the library of
tests/support/fake_nccl.cc.

usage: emulated_nccl_test.py PATH_OF_EMULATED_TRAIN PATH_OF_LIBRARY [unittest options]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "process/train"))
import bench_run_test  # noqa: E402
import train_run_test  # noqa: E402
from train_run_test import run  # noqa: E402

# The emulated GPU takes long for a convolution. net_steps_test compares steps of the ConvNet with the CPU's.
SMALL = ("--model", "mlp", "--mlp-width", "24", "--mlp-depth", "1")
TASK = ("--data", "synthetic", "--limit", "200", "--batch-size", "10", "--max-steps", "6")
FEW = (*SMALL, *TASK)
CONVNET = ("--model", "convnet")
NCCL = ("--comm", "nccl", "--share-gpu")


def faulty_rank(rank, fault):
    """Returns a context in which one rank of `bench_run_test` has the variable `fault`."""
    script = pathlib.Path(os.environ["FAKE_NCCL_DIR"], "faulty")
    script.write_text(f'#!/bin/sh\n[ "$RANK" != {rank} ] || export {fault}\nexec {bench_run_test.TRAIN} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    return unittest.mock.patch.object(bench_run_test, "TRAIN", str(script))


class EmulatedNccl(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # Ranks passes these variables to its processes.
        for name in ("FAKE_NCCL_TRANSPORT", "FAKE_NCCL_SPOIL", "FAKE_NCCL_SPOIL_SENT", "FAKE_NCCL_SPOIL_SUM_SENT", "FAKE_NCCL_SPLIT", "FAKE_NCCL_REGISTER", "FAKE_NCCL_WINDOWS", "FAKE_CUDA_GRAPH_END", "FAKE_NCCL_LOG",
                     "FAKE_NCCL_FAIL_CAPTURED", "FAKE_NCCL_INIT", "FAKE_CUDA_MIB", "CUDA_VISIBLE_DEVICES"):
            self.addCleanup(os.environ.pop, name, None)
        for name, value in (("DDPLAUNCH_NCCL_LIBRARY", LIBRARY), ("FAKE_CUDA_GPUS", "1"), ("FAKE_NCCL_VERSION", "22809"),
                            ("FAKE_NCCL_DIR", folder.name)):
            os.environ[name] = value

    def good(self, world, *arguments, nodes=1):
        device = () if "--device" in arguments else ("--device", "cpu")
        model = () if CONVNET[1] in arguments else SMALL
        results = run(world, *model, *TASK, *device, *arguments, nodes=nodes)
        hashes = set()
        for code, lines, errors in results:
            self.assertEqual((code, errors), (0, ""))
            hashes |= {match[1] for line in lines if (match := re.fullmatch(r"rank \d+ weights ([0-9a-f]{16})", line))}
        self.assertEqual(len(hashes), 1, "all ranks end with the same bits")
        return results, hashes

    def test_two_ranks_get_the_same_bits_as_over_tcp(self):
        for dtype in ("float32", "float64"):
            results, over_nccl = self.good(2, *NCCL, *CONVNET, "--dtype", dtype)
            self.assertEqual(results[0][1][0], f"NCCL 2.28.9 ({LIBRARY})")
            _, over_tcp = self.good(2, "--comm", "tcp", *CONVNET, "--dtype", dtype)
            self.assertEqual(over_nccl, over_tcp, dtype)

    def test_gpus_and_nccl_are_used_or_the_training_ends_with_the_reason(self):
        def ranks(*more, code=0, **environment):
            with unittest.mock.patch.dict(os.environ, environment), train_run_test.Ranks(2, *FEW, "--device", "auto", *more) as started:
                results = started.finish()
            self.assertEqual([result[0] for result in results], [code] * 2, results)
            return results, started.tested[0]

        def refused(*more, **environment):
            results, _ = ranks(*more, code=1, **environment)
            self.assertEqual(len({errors for _, _, errors in results}), 1)
            self.assertEqual([lines for _, lines, _ in results], [[], []])
            return results[0][2]

        results, tested = ranks(FAKE_CUDA_GPUS="2")
        self.assertEqual(results[0][1][:2], [f"NCCL 2.28.9 ({LIBRARY})", "device gpu, nccl"])
        self.assertEqual(tested, "tested: 2 × emulated GPU, NCCL 2.28.9")
        instead = "use the CPUs with --device cpu"
        seen = r", and rank 0 on \S+ sees 1 GPU; "
        works = f"give each rank a GPU that works, or {instead}"
        self.assertRegex(refused(FAKE_CUDA_GPUS="1"), rf"^train: rank 1 on \S+: this process sees 1 GPU, none for local rank 1{seen}{works}\n$")
        self.assertRegex(refused(FAKE_CUDA_GPUS="2", FAKE_CUDA_CAPABILITY="7"),
                         rf"^train: rank 0 on \S+: emulated GPU has compute capability 7\.0; 7\.5 is needed; and 1 more rank{seen}{works}\n$")
        self.assertRegex(refused(FAKE_CUDA_GPUS="2", FAKE_NCCL_VERSION="21804"),
                         rf"^train: rank 0 on \S+: {LIBRARY} is NCCL 2\.18\.4; 2\.19\.0 or newer is needed; and 1 more rank{seen}"
                         f"install NCCL for every rank, or {instead}\n$")
        self.assertRegex(refused("--comm", "tcp", FAKE_CUDA_GPUS="2"), rf"^train: --comm tcp needs the CPU{seen}{instead}\n$")
        os.environ["FAKE_CUDA_GPUS"] = "4"
        self.assertRegex(refused(CUDA_VISIBLE_DEVICES="3"),
                         rf"^train: rank 1 on \S+: its GPU is also that of rank 0{seen}start one rank per GPU, or {instead}\n$")
        results, _ = ranks(CUDA_VISIBLE_DEVICES="3,1")
        self.assertEqual(results[0][1][1], "device gpu, nccl")
        _, tested = ranks(CUDA_VISIBLE_DEVICES="3,1,0")
        self.assertEqual(tested, "tested: 2 × emulated GPU, NCCL 2.28.9; 1 visible GPU not tested")
        os.environ["CUDA_VISIBLE_DEVICES"] = "3"
        for rank, (code, _, errors) in enumerate(run(2, *FEW, "--comm", "nccl", "--device", "gpu")):
            self.assertEqual(code, 1)
            self.assertRegex(errors, rf"^train: rank {rank} over NCCL: ncclInvalidUsage: .* during start of NCCL .*; two ranks on one GPU need --comm nccl --share-gpu\n$")
        for code, _, errors in run(2, *FEW, "--comm", "nccl", "--device", "auto"):
            self.assertEqual(code, 1)
            self.assertRegex(errors, r"^train: --comm nccl: rank 1 on \S+: its GPU is also that of rank 0; start one rank per GPU, or use --share-gpu\n$")
        del os.environ["CUDA_VISIBLE_DEVICES"]
        os.environ["FAKE_CUDA_GPUS"] = "1"
        for code, _, errors in run(2, *FEW, "--device", "gpu"):
            self.assertEqual(code, 1)
            self.assertRegex(errors, r"^train: rank 1 on \S+: this process sees 1 GPU, none for local rank 1; give each rank a GPU that "
                                     r"works, or use the CPUs with --device cpu\n$")
        for code, _, _ in run(2, *FEW, "--device", "gpu", "--comm", "tcp"):
            self.assertEqual(code, 0)

    def test_the_default_on_gpus_sends_large_messages_and_has_a_known_result(self):
        os.environ |= {"FAKE_CUDA_GPUS": "2", "FAKE_CUDA_MIB": "1024"}
        with tempfile.TemporaryDirectory() as folder:
            train_run_test.write_like_fashion_mnist(folder, 2, 2)
            with train_run_test.Ranks(2, "--device", "auto", "--data", folder) as ranks:
                results = ranks.finish(timeout=250)
        self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 2)
        self.assertEqual(results[0][1][1:3], ["device gpu, nccl", "model mlp (--mlp-width 2560 --mlp-depth 3 --lr 0.1), the default on GPUs"])
        self.assertRegex(ranks.verdict[0], r"^verdict: [89]\d\.\d % of the test images are right, at least 75 % are expected; \d+ % of a step in collectives "
                                           r"that run alone; all-reduce of 25\.0 MiB at \d+\.\d\d GB/s busbw$")

    def test_one_rank_with_another_nccl_ends_the_job(self):
        """It must not send the other ranks to the CPU."""
        os.environ["FAKE_CUDA_GPUS"] = "2"
        second = "/bin/sh", "-c", f'[ "$RANK" = 0 ] || export FAKE_NCCL_VERSION=22808; exec {train_run_test.TRAIN} "$@"', "train"
        with unittest.mock.patch.object(train_run_test, "COMMAND", second):
            for code, lines, errors in run(2, *FEW, "--device", "auto"):
                self.assertEqual((code, lines), (1, []))
                self.assertRegex(errors, r"^train: rank 1 on \S+ has NCCL 2\.28\.8, rank 0 on \S+ has NCCL 2\.28\.9, and rank 0 on \S+ sees 1 GPU; install "
                                         r"the same version on all nodes, or name its file by DDPLAUNCH_NCCL_LIBRARY, or use the CPUs with --device cpu\n$")

    def test_all_kinds_of_communication_work(self):
        for more in ((), ("--sync-bn", "--clip-norm", "1"), ("--zero", "1"), ("--accumulate", "2"),
                     ("--bucket-cap-mb", "0.01", "--first-bucket-mb", "0.01")):
            with self.subTest(more=more):
                self.assertEqual(self.good(2, *NCCL, *CONVNET, *more)[1], self.good(2, "--comm", "tcp", *CONVNET, *more)[1])
        self.good(3, *NCCL)

    def test_a_large_model_gets_the_same_bits_as_over_tcp(self):
        more = ("--mlp-width", "600", "--mlp-depth", "2")  # 3.3 MB of gradients
        self.assertEqual(self.good(2, *NCCL, *more)[1], self.good(2, "--comm", "tcp", *more)[1])

    def test_nodes_are_averaged_every_few_steps(self):
        # A sum of four numbers has several orders, so the bits may differ, but not the printed digits.
        over_nccl, _ = self.good(4, *NCCL, "--sync-every-inter", "3", "--dtype", "float64", nodes=2)
        over_shm, _ = self.good(4, "--comm", "shm", "--sync-every-inter", "3", "--dtype", "float64", nodes=2)
        self.assertEqual(over_nccl[0][1][-1], over_shm[0][1][-1])
        self.good(2, *NCCL, "--sync-every-inter", "3", nodes=2)
        self.good(2, *NCCL, "--sync-every-inter", "3", nodes=1)

    def test_all_reduce_in_captured_graphs(self):
        for more in (CONVNET, ("--mlp-width", "100", "--clip-norm", "1")):
            with self.subTest(more=more):
                gpu = (*NCCL, "--device", "gpu", *more)
                _, expected = self.good(2, *gpu)
                for cap in ("0", "0.05"):  # 0: a bucket for each tensor
                    _, bits = self.good(2, *gpu, "--bucket-cap-mb", cap, "--first-bucket-mb", "0")
                    self.assertEqual(bits, expected, cap)

    def losses(self, world, *arguments, nodes=1):
        """Returns rank 0's record of each step, and the test's last line."""
        path = os.path.join(os.environ["FAKE_NCCL_DIR"], "metrics")
        results, _ = self.good(world, *arguments, "--dtype", "float64", "--metrics-file", path, nodes=nodes)
        with open(path, encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        os.remove(path)
        steps = [(record["step"], record["loss"], record.get("norm"), record.get("dropped")) for record in records if record["kind"] == "step"]
        return steps, results[0][1][-1]

    def test_steps_on_the_gpu_learn_like_steps_on_the_host(self):
        for world, nodes, more in ((2, 1, (*CONVNET, "--clip-norm", "1")), (2, 1, ("--optimizer", "adamw", "--weight-decay", "0.1", "--clip-value", "0.01")),
                                   (3, 1, ("--inject-nan", "1:4")), (4, 2, ("--sync-every-inter", "3")),
                                   (2, 1, ("--lr-schedule", "cosine", "--warmup-steps", "3")),
                                   (2, 1, ("--accumulate", "2", "--clip-norm", "1")), (2, 1, ("--zero", "1", "--clip-norm", "1")),
                                   (2, 1, (*CONVNET, "--accumulate", "3", "--bucket-cap-mb", "0.05", "--first-bucket-mb", "0.01", "--inject-nan", "1:2")),
                                   (2, 1, ("--accumulate", "65", "--batch-size", "2")),  # more than a graph contains
                                   (2, 1, ("--zero", "1", "--accumulate", "3", "--first-bucket-mb", "0")),
                                   (4, 2, ("--sync-every-inter", "2", "--accumulate", "2", "--clip-norm", "0.5")),
                                   (3, 1, ("--bucket-cap-mb", "0.01", "--first-bucket-mb", "0.001", "--inject-nan", "0:3"))):
            with self.subTest(more=more):
                comm = "shm" if nodes > 1 else "tcp"
                there, last = self.losses(world, *NCCL, "--device", "gpu", *more, nodes=nodes)
                here, expected = self.losses(world, "--comm", comm, *more, nodes=nodes)
                self.assertEqual((len(there), last), (len(here), expected))
                for mine, theirs in zip(there, here):
                    self.assertEqual((mine[0], mine[3]), (theirs[0], theirs[3]))
                    for one, other in zip(mine[1:3], theirs[1:3]):
                        if one is not None or other is not None:
                            self.assertTrue(one == other or abs(one - other) < 1e-7, (mine, theirs))

    def test_what_a_gpu_cannot_do_is_refused_before_anything_starts(self):
        for options, why in ((("--zero", "1", "--sync-every-inter", "2"), "--zero 1 is only for --sync-every-inter 1: "),
                             (("--zero", "1", "--on-peer-loss", "rejoin"), "--zero 1 cannot be used with --on-peer-loss rejoin: "),
                             (("--sync-bn",), "--sync-bn cannot be used with --device gpu: ")):
            for code, lines, errors in run(2, *CONVNET, *TASK, *NCCL, "--device", "gpu", *options):
                self.assertEqual((code, lines), (2, []))
                self.assertTrue(errors.startswith("train: " + why), errors)

    def test_a_peer_is_lost_in_a_captured_all_reduce(self):
        # Over sockets NCCL reports the loss. Inside a node only the deadline ends the wait. Neither NCCL nor the fake ends a
        # communicator while a graph holds its sums. The graph in flight ends by the abort only, so the abort begins before the graph
        # is destroyed. A batch of 32 synthetic images has more bytes than the run time can stage without waiting for the stream.
        small, large = (("--batch-size", size) for size in ("2", "32"))
        reported = "ncclRemoteError: remote process exited or there was a network error"
        late = "the other ranks did not join the operation within 3 s"
        for way, why, shape, graph_end in (("net", reported, small, "defers"), ("net", reported, small, "waits"),
                                           ("p2p", late, small, "defers"), ("p2p", late, large, "waits")):
            os.environ |= {"FAKE_NCCL_TRANSPORT": way, "FAKE_CUDA_GRAPH_END": graph_end}
            with self.subTest(way=way, shape=shape, graph_end=graph_end), train_run_test.Ranks(
                    2, *SMALL, "--data", "synthetic", "--limit", "1000000", *shape, *NCCL, "--device", "gpu",
                    "--comm-timeout", "3s", nodes=1) as ranks:
                while not ranks.processes[0].stdout.readline().startswith("epoch 1/1 step 50"):
                    self.assertIsNone(ranks.processes[0].poll())
                ranks.processes[1].kill()
                _, errors = ranks.processes[0].communicate(timeout=60)
                self.assertEqual(ranks.processes[0].returncode, 1)
                self.assertRegex(errors, rf"^train: rank 0 over NCCL: {why} during all-reduce of step \d+\n$")

    def test_an_all_reduce_fails_during_its_capture(self):
        # The unfinished graph holds the communicator, so the capture is ended before the abort. The second step is captured while the
        # first is in flight, so the report names the first.
        os.environ["FAKE_NCCL_FAIL_CAPTURED"] = "1"
        for rank, (code, _, errors) in enumerate(run(2, *FEW, *NCCL, "--device", "gpu")):
            self.assertEqual((code, errors), (1, f"train: rank {rank} over NCCL: ncclSystemError: an injected error during all-reduce of "
                                                 "step 1\n"))

    def test_the_flight_recorder_has_the_all_reduces_of_replayed_graphs(self):
        with tempfile.TemporaryDirectory() as folder:
            with train_run_test.Ranks(2, "--model", "convnet", "--data", "synthetic", "--limit", "100000", "--batch-size", "2", *NCCL, "--device", "gpu",
                                      "--flight-recorder", folder, nodes=1) as ranks:
                while not ranks.processes[0].stdout.readline().startswith("epoch 1/1 step 50"):
                    self.assertIsNone(ranks.processes[0].poll())
                ranks.processes[1].kill()
                ranks.processes[0].communicate(timeout=60)
            entries = [json.loads(line) for line in pathlib.Path(folder, "rank-0.jsonl").read_text().splitlines()[1:]]
            gradients = [one for one in entries if one["kind"] == "all-reduce" and one["bytes"] > 100000]
            self.assertGreater(len(gradients), 50, "one all-reduce per step")
            self.assertEqual([one["finished"] != 0 for one in gradients[:50]], [True] * 50)
            reported = subprocess.run([train_run_test.TRAIN, "--read-flight-recorder", folder], text=True, capture_output=True)
            self.assertRegex(reported.stdout, r"^rank 1 left no record; rank 0 waits in all-reduce \d+ \(113 KiB\)\n$")

    def test_nccl_that_cannot_start_is_named(self):
        os.environ |= {"FAKE_NCCL_INIT": "2", "FAKE_CUDA_GPUS": "2"}
        reason = f"over NCCL: ncclSystemError: an injected error during start of NCCL 2.28.9 ({LIBRARY})"
        for rank, (code, _, errors) in enumerate(run(2, *FEW, "--device", "auto")):
            self.assertEqual((code, errors), (1, f"train: rank {rank} {reason}; --device cpu works without it\n"))
        for rank, (code, _, errors) in enumerate(run(2, *FEW, "--comm", "nccl", "--device", "gpu")):
            self.assertEqual((code, errors), (1, f"train: rank {rank} {reason}\n"))

    def test_a_rank_without_its_own_gpu_gets_a_hint_about_share_gpu(self):
        with train_run_test.Ranks(2, *FEW, "--comm", "nccl", nodes=1) as ranks:
            out, errors = ranks.processes[1].communicate(timeout=60)
            self.assertEqual((ranks.processes[1].returncode, out, errors), (
                2, "", "train: --comm nccl: this process sees 1 GPU, none for local rank 1; start one rank per GPU, or use "
                       "--share-gpu\n"))

    def test_a_library_that_is_missing_or_too_old(self):
        os.environ["DDPLAUNCH_NCCL_LIBRARY"] = "/nonexistent/libnccl.so.2"
        (code, lines, errors), = run(1, *FEW, *NCCL)
        self.assertEqual((code, lines, errors), (
            2, [], "train: --comm nccl: DDPLAUNCH_NCCL_LIBRARY names a library that cannot be loaded: /nonexistent/libnccl.so.2: cannot "
                   "open shared object file: No such file or directory\n"))
        os.environ |= {"DDPLAUNCH_NCCL_LIBRARY": LIBRARY, "FAKE_NCCL_VERSION": "21804"}
        (code, lines, errors), = run(1, *FEW, *NCCL)
        self.assertEqual((code, lines, errors), (2, [], f"train: --comm nccl: {LIBRARY} is NCCL 2.18.4; 2.19.0 or newer is needed\n"))

    def test_no_gpu(self):
        os.environ["FAKE_CUDA_GPUS"] = "0"
        (code, lines, errors), = run(1, *FEW, *NCCL)
        self.assertEqual((code, lines, errors), (2, [], "train: --comm nccl needs an NVIDIA GPU: cudaGetDeviceCount: "
                                                        "cudaErrorNoDevice (no CUDA-capable device is detected)\n"))


class Bench(unittest.TestCase):
    """Tests `train bench` on the buffers of the emulated GPU."""
    setUp = EmulatedNccl.setUp
    SIZES = ("-b", "12", "-e", "1200K", "-f", "100", "-n", "3", "-w", "1")

    def bench(self, *arguments, world=3, **environment):
        with unittest.mock.patch.dict(os.environ, environment):
            results = bench_run_test.run((world,), "bench", *arguments)
        for _, out, _ in results[1:]:
            self.assertEqual(out, "", "only rank 0 prints")
        return results

    def test_every_operation_is_correct(self):
        for operation, *more in (("allreduce",), ("allgather",), ("reducescatter",), ("broadcast",), ("alltoall",), ("sendrecv",),
                                 ("allreduce", "--out-of-place"), ("allgather", "--out-of-place"), ("reducescatter", "--out-of-place"),
                                 ("broadcast", "--out-of-place")):
            with self.subTest(operation=operation, more=more):
                results = self.bench(operation, *NCCL, *self.SIZES, *more)
                self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 3)
                lines = results[0][1].splitlines()
                self.assertEqual(lines[0], f"# NCCL 2.28.9 ({LIBRARY})")
                place = "out of place" if more or operation in ("alltoall", "sendrecv") else "in place"
                self.assertRegex(lines[1], rf"^# train .* bench {operation}, 3 ranks, nccl, buffers registered, {place}$")
                rows = [bench_run_test.ROW.fullmatch(line) for line in lines if not line.startswith("#")]
                self.assertEqual([int(row[1]) for row in rows], [12, 1200, 120000])
                part = 12 if operation in ("allgather", "reducescatter", "alltoall") else 4  # nccl-tests counts the elements of one rank
                self.assertEqual([int(row[2]) for row in rows], [12 // part, 1200 // part, 120000 // part])
                self.assertEqual([row[8] for row in rows], ["0", "0", "0"])
                self.assertIn("# Out of bounds values : 0 OK", lines)

    def test_gpus_and_nccl_are_used_without_being_asked_for(self):
        os.environ["FAKE_CUDA_GPUS"] = "3"
        for more, way, tested in (((), ", nccl, buffers registered, in place", "3 × emulated GPU, NCCL 2.28.9"),
                                  (("--device", "cpu"), ", shm, in place", "CPU only, shared memory; 1 visible GPU not tested"),
                                  (("--comm", "tcp"), ", tcp, in place", "CPU only, TCP; 1 visible GPU not tested")):
            results = self.bench("allreduce", *self.SIZES, *more)
            self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 3)
            lines = results[0][1].splitlines()
            self.assertTrue(any(line.endswith(way) for line in lines), lines)
            self.assertEqual(lines[-1], "# tested: " + tested)
        os.environ["FAKE_CUDA_GPUS"] = "2"
        for code, out, errors in self.bench("allreduce", *self.SIZES):
            self.assertEqual((code, out), (1, ""))
            self.assertRegex(errors, r"^train: rank 2 on \S+: this process sees 2 GPUs, none for local rank 2, and rank 0 on \S+ sees 1 GPU; give each "
                                     r"rank a GPU that works, or use the CPUs with --device cpu\n$")
        for more in ((), ("--device", "gpu"), ("--comm", "nccl")):
            [(code, out, errors)] = self.bench("allreduce", *self.SIZES, *more, world=1)
            self.assertEqual((code, out), (1, ""))
            self.assertRegex(errors, "^train: one rank has no other GPU to send to: start one rank per GPU; ")
        [(code, out, _)] = self.bench("allreduce", *self.SIZES, "--device", "cpu", world=1)
        self.assertEqual((code, out.splitlines()[-1]), (0, "# tested: CPU only, one rank; 1 visible GPU not tested"))
        results = self.bench("allreduce", *self.SIZES, *NCCL)  # three ranks share two GPUs
        self.assertEqual(results[0][1].splitlines()[-1], "# tested: 2 × emulated GPU, NCCL 2.28.9")

    def test_what_is_not_compared_is_not_right(self):
        with tempfile.TemporaryDirectory() as folder:
            results = self.bench("pairs", *NCCL, "-e", "1K", "-n", "1", "-c", "0", "--json", f"{folder}/pairs")
            record = json.loads(pathlib.Path(folder, "pairs").read_text(encoding="utf-8"))
        self.assertEqual([code for code, _, _ in results], [0] * 3)
        self.assertEqual({row["wrong"] for row in record["pairs"] + record["groups"]}, {None})
        results = self.bench("allreduce", *NCCL, *self.SIZES, "-c", "0")
        self.assertIn("# Out of bounds values : N/A, nothing was compared", results[0][1].splitlines())

    def test_too_large_sizes_for_a_shared_gpu_are_refused_first(self):
        for code, out, errors in self.bench("allreduce", *NCCL, "-b", "27M", "-n", "1"):
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(errors, r"^train bench: allreduce: messages of 28311552 bytes need 27\.0 MiB of GPU 0 \(emulated GPU\), "
                                     r"which has 26\.7 MiB for a rank; write a smaller -b or -e\n$")
        for code, _, errors in self.bench("allreduce", *NCCL, "-b", "1M", "-e", "1M", "-n", "1"):
            self.assertEqual((code, errors), (0, ""))

    def test_a_wrong_sum_is_found_on_the_gpu(self):
        os.environ["FAKE_NCCL_SPOIL"] = "1200"
        for operation in ("allreduce", "reducescatter"):
            with self.subTest(operation=operation), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "result.json")
                results = self.bench(operation, *NCCL, *self.SIZES, "--json", path)
                self.assertEqual([code for code, _, _ in results], [1, 0, 0])
                self.assertEqual(results[0][2], "train: 3 wrong elements at 1200 bytes, on 3 of 3 ranks, which only see it; find the faulty rank "
                                                "with train bench pairs and train health\n")
                self.assertIn("# Out of bounds values : 3 FAILED\n", results[0][1])
                with open(path, encoding="utf-8") as file:
                    result = json.load(file)
                self.assertEqual([result[key] for key in ("kind", "operation", "backend", "world_size", "passed")],
                                 ["bench", operation, "nccl", 3, False])
                self.assertEqual([(row["bytes"], row["wrong"]) for row in result["rows"]], [(12, 0), (1200, 3), (120000, 0)])

    def faulty(self, rank, fault, *arguments, sizes=(4,)):
        """Runs a bench of whose ranks one has the variables `fault`."""
        os.environ["FAKE_CUDA_GPUS"] = "4"
        with faulty_rank(rank, fault), tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "result.json")
            results = bench_run_test.run(sizes, "bench", *arguments, "-n", "3", "-w", "1", "--json", str(path))
            return results, json.loads(path.read_text(encoding="utf-8"))

    def test_of_ranks_with_a_wrong_sum_the_culprit_is_named_and_not_the_witnesses(self):
        at = "train: {} wrong elements at 12000 bytes, "
        faulty = ": its memory or its links are faulty\n"
        for rank in (1, 2):
            for fault, wrong, witnesses, culprits, text in (
                    ("FAKE_NCCL_SPOIL_SENT=2000", 4, [0, 1, 2, 3], [rank], f"on 4 of 4 ranks; most wrong exchanges of two ranks are with rank {rank}"),
                    ("FAKE_NCCL_SPOIL=12000", 1, [rank], [], f"only on rank {rank}")):
                results, record = self.faulty(rank, fault, "allreduce", "-b", "12000", "-e", "12000")
                self.assertEqual([code for code, _, _ in results], [1, 0, 0, 0])
                self.assertEqual(results[0][2], at.format(wrong).replace("1 wrong elements", "1 wrong element") + text + faulty)
                row, = record["rows"]
                self.assertEqual((row["wrong"], row["wrong_ranks"], row["culprits"]), (wrong, witnesses, culprits))
        for operation in ("allgather", "alltoall"):
            results, record = self.faulty(2, "FAKE_NCCL_SPOIL_SENT=2000", operation, "-b", "12000", "-e", "12000")
            self.assertEqual(record["rows"][0]["culprits"], [2], results)

    def test_a_late_rank_is_named(self):
        _, record = self.faulty(2, "FAKE_CUDA_LATE_MS=50", "allreduce", "-b", "8", "-e", "8")
        self.assertEqual(record["rows"][0]["late_rank"], 2)

    def test_pairs_are_measured_between_gpus(self):
        os.environ["FAKE_CUDA_GPUS"] = "2"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "result.json")
            results = bench_run_test.run((2, 2), "bench", "pairs", "-e", "200000", "-n", "3", "--json", str(path))
            record = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 4)
        self.assertEqual(results[0][1].splitlines()[-1], "# tested: 4 × emulated GPU, NCCL 2.28.9")
        self.assertEqual(record["backend"], "nccl")
        kinds = [(pair["ranks"], pair["same_node"], pair["same_rail"], pair["at_once"], pair["wrong"]) for pair in record["pairs"]]
        self.assertEqual(kinds, [([0, 1], True, False, 1, 0), ([0, 2], False, True, 2, 0), ([0, 3], False, False, 2, 0),
                                 ([1, 2], False, False, 2, 0), ([1, 3], False, True, 2, 0), ([2, 3], True, False, 1, 0)])

    def test_a_rank_with_faulty_or_slow_links_is_named_and_not_its_peers(self):
        for fault in ("FAKE_NCCL_SPOIL_SENT=20000", "FAKE_NCCL_SPOIL=20000"):
            results, record = self.faulty(2, fault, "pairs", "-e", "20000")
            self.assertEqual([code for code, _, _ in results], [1, 0, 0, 0])
            self.assertEqual(results[0][2], "train: rank 2: wrong bytes or no connection in 3 of 3 pairs\n")
            self.assertEqual([pair["wrong"] for pair in record["pairs"]], [0, 4, 0, 4, 0, 4])
        results, record = self.faulty(3, "FAKE_NCCL_SLOW_US=20000", "pairs", "-e", "20000")
        self.assertEqual([code for code, _, _ in results], [0] * 4)
        self.assertEqual([pair["ranks"] for pair in record["pairs"] if pair["outlier"]], [[0, 3], [1, 3], [2, 3]], record["pairs"])
        self.assertIn("\n# slow: rank 3: more than 20 % under the median of the others in 3 of 3 pairs\n", results[0][1])

    def test_a_faulty_link_in_a_node_is_named_by_its_rank_or_by_its_pair(self):
        for peers, bad, said in (("0,2", [[0, 1], [1, 2]], "rank 1: wrong bytes or no connection in 2 of 3 pairs"),
                                 ("2", [[1, 2]], "rank 1 - rank 2: 8 wrong bytes")):
            results, record = self.faulty(1, f"FAKE_NCCL_SPOIL_PEERS={peers}", "pairs", "-e", "20000", sizes=(3, 1))
            self.assertEqual([code for code, _, _ in results], [1, 0, 0, 0])
            self.assertEqual(results[0][2], f"train: {said}\n")
            self.assertEqual([pair["ranks"] for pair in record["pairs"] if pair["wrong"]], bad)

    def test_a_split_that_fails_on_one_rank_ends_all(self):
        os.environ["FAKE_CUDA_GPUS"] = "2"
        failed = "ncclSystemError: an injected error during split"
        with faulty_rank(1, "FAKE_NCCL_SPLIT=2"):
            results = bench_run_test.run((2, 2), "bench", "pairs", "-e", "2000", "-n", "1")
        self.assertEqual([code for code, _, _ in results], [1] * 4)
        self.assertEqual(results[1][2], f"train: rank 1 over NCCL: {failed}\n")
        for rank in (0, 2, 3):
            self.assertRegex(results[rank][2], rf"^train: rank {rank} over NCCL: ncclRemoteError: .* during split\n$")
        os.environ["FAKE_NCCL_SPLIT"] = "2"
        for rank, (code, lines, errors) in enumerate(run(2, *FEW, *NCCL, "--sync-every-inter", "3", nodes=2)):
            self.assertEqual((code, errors), (1, f"train: rank {rank} over NCCL: {failed}\n"), lines)

    def test_groups_per_node_and_rail_name_the_slow_rank(self):
        results, record = self.faulty(3, "FAKE_NCCL_SLOW_US=20000", "pairs", "-e", "20000", sizes=(2, 2))
        self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 4)
        self.assertEqual([(group["kind"], group["number"], group["ranks"], group["outlier"], group["wrong"]) for group in record["groups"]],
                         [("node", 0, [0, 1], False, 0), ("node", 1, [2, 3], True, 0), ("rail", 0, [0, 2], False, 0), ("rail", 1, [1, 3], True, 0)], record)
        self.assertRegex(results[0][1], r"\n#  rail 1, 2 ranks: \d+\.\d\d GB/s\n")
        results, record = self.faulty(1, "FAKE_NCCL_SPOIL_SENT=20000", "pairs", "-e", "20000", sizes=(2, 1))
        self.assertEqual([(group["kind"], group["number"], group["ranks"], group["wrong_ranks"]) for group in record["groups"]],
                         [("node", 0, [0, 1], [0, 1]), ("rail", 0, [0, 2], [])])
        self.assertEqual(results[0][2], "train: rank 1: wrong bytes or no connection in 2 of 2 pairs\n")
        results, record = self.faulty(0, "A=1", "pairs", "-e", "200", sizes=(3,))
        self.assertEqual([group["ranks"] for group in record["groups"]], [[0, 1, 2]])

    def test_numbers_of_16_bits_are_measured_and_compared(self):
        for type_name in ("bfloat16", "half"):
            for operation in ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall"):
                results = self.bench(operation, *NCCL, *self.SIZES, "-d", type_name)
                self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 3)
                self.assertRegex(results[0][1], rf"(?m)^ +1200 +(600|200) +{type_name} ")
                self.assertIn("# Out of bounds values : 0 OK\n", results[0][1])
            with unittest.mock.patch.dict(os.environ, FAKE_NCCL_SPOIL="1200"):
                self.assertEqual([code for code, _, _ in self.bench("allreduce", *NCCL, *self.SIZES, "-d", type_name)], [1, 0, 0])
        for what in (("allreduce", "-d", "half"), ("alltoall",), ("allreduce", "--out-of-place")):
            for more in ((), ("--device", "cpu")):
                for code, out, errors in self.bench(*what, *more, FAKE_CUDA_GPUS="0"):
                    self.assertEqual((code, out), (2 if more else 1, ""))
                    self.assertTrue(errors.endswith(" is measured over NCCL only\n"), errors)

    def test_windows_are_created_by_all_ranks_and_released(self):
        os.environ |= {"FAKE_NCCL_WINDOWS": "1", "FAKE_CUDA_GPUS": "3"}
        own = ("--comm", "nccl", "--device", "gpu")
        for code, _, errors in run(3, *FEW, *own, "--share-gpu"):
            self.assertEqual((code, errors), (0, ""))
        self.assertFalse(pathlib.Path(os.environ["FAKE_NCCL_DIR"], "windows").exists(), "none on a shared GPU")
        for code, _, errors in run(3, *FEW, *own):
            self.assertEqual((code, errors), (0, ""))
        self.assertEqual(pathlib.Path(os.environ["FAKE_NCCL_DIR"], "windows").read_text(), "www" * 2)  # gradients and verdict

    def test_a_rank_without_a_window_sends_all_to_plain_buffers(self):
        os.environ["FAKE_CUDA_GPUS"] = "3"
        for windows, buffers in (("1", "windows"), ("2", "registered"), ("3", "registered")):
            os.environ["FAKE_NCCL_WINDOWS"] = windows
            results = self.bench("allreduce", *self.SIZES)
            self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 3)
            self.assertIn(f", nccl, buffers {buffers}, in place\n", results[0][1])
            for code, _, errors in run(3, *FEW, "--comm", "nccl", "--device", "gpu"):
                self.assertEqual((code, errors), (0, ""))

    def test_the_log_is_read_after_the_first_operation_and_warnings_are_shown(self):
        """From 2.22 on, NCCL makes its connections in the first operation."""
        os.environ |= {"FAKE_CUDA_GPUS": "2", "FAKE_NCCL_LOG": "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
                                                               "h:1:1 [0] misc.cc:9 NCCL WARN a cable is loose\n"}
        results = self.bench("allreduce", *self.SIZES, world=2)
        self.assertEqual([(code, errors) for code, _, errors in results], [(0, "train: NCCL warns: a cable is loose\n")] * 2)
        lines = results[0][1].splitlines()
        self.assertEqual((lines[0], lines[-1]), (f"# NCCL 2.28.9 ({LIBRARY}) over P2P", "# tested: 2 × emulated GPU, NCCL 2.28.9 over P2P"))

    def test_the_last_line_names_all_links_however_many_there_are(self):
        links = " ".join(f"[{number}]mlx5_{number}:1/IB" for number in range(40))
        os.environ |= {"FAKE_CUDA_GPUS": "2", "FAKE_NCCL_LOG": f"h:1:1 [0] NCCL INFO NET/IB : Using {links}\nh:1:1 [0] NCCL INFO Using network IB\n"}
        results = self.bench("allreduce", *self.SIZES, world=2)
        self.assertTrue(results[0][1].splitlines()[-1].endswith("+mlx5_39:1/IB"), results[0][1])

    def test_the_memory_of_windows_is_not_freed_after_an_abort(self):
        os.environ |= {"FAKE_NCCL_WINDOWS": "1", "FAKE_CUDA_GPUS": "2"}
        with bench_run_test.Nodes((2,), "bench", "allreduce", "--comm", "nccl", "-b", "64K", "-e", "64K", "-n", "10000000") as nodes:
            self.assertTrue(any("windows" in line for line in iter(nodes.processes[0].stdout.readline, "")))
            nodes.processes[1].kill()
            _, errors = nodes.processes[0].communicate(timeout=60)
        self.assertRegex(errors, r"^train: rank 0 over NCCL: ncclRemoteError: .* during \S+\n$")

    def test_memory_that_cannot_be_registered_is_no_failure(self):
        os.environ["FAKE_NCCL_REGISTER"] = "0"
        said = "train: sums are copied through NCCL's buffers: ncclCommRegister: ncclSystemError: an injected error\n"
        results = self.bench("allreduce", *NCCL, *self.SIZES)
        self.assertEqual([(code, errors) for code, _, errors in results], [(0, said)] * 3)
        self.assertIn(", nccl, buffers not registered, in place\n", results[0][1])
        for code, _, errors in run(2, *FEW, *NCCL, "--device", "gpu"):
            self.assertEqual((code, errors), (0, said))

    def test_a_rank_that_is_killed(self):
        for way, why in (("net", "ncclRemoteError: remote process exited or there was a network error"),
                         ("p2p", "the other ranks did not join the operation within 2 s")):
            os.environ["FAKE_NCCL_TRANSPORT"] = way
            with self.subTest(way=way), bench_run_test.Nodes((2,), "bench", "allreduce", *NCCL, "-b", "64K", "-e", "64K", "-n",
                                                             "10000000", "--comm-timeout", "2s") as nodes:
                nodes.processes[0].stdout.readline()  # all ranks have met
                nodes.processes[1].kill()
                _, errors = nodes.processes[0].communicate(timeout=60)
                self.assertEqual(nodes.processes[0].returncode, 1)
                self.assertRegex(errors, rf"^train: rank 0 over NCCL: {why} during \S+\n$")

    def test_option_errors(self):
        for arguments, why in ((("allreduce", "--share-gpu"), "--share-gpu is only for --comm nccl\n"),
                               (("pairs", *NCCL, "-d", "half"), "pairs sends bytes, out of place; remove -d and --out-of-place\n"),
                               (("allreduce", "--comm", "tcp", "--device", "gpu"), "--comm tcp needs the host's memory; remove --device gpu\n"),
                               (("allreduce", "--comm", "nccl", "--device", "cpu"), "--comm nccl needs the GPUs' memory; remove --device cpu\n")):
            for result in self.bench(*arguments, world=1):
                self.assertEqual(result, (2, "", "train bench: " + why))
        for variable, value, why in (("FAKE_CUDA_GPUS", "0", "--comm nccl needs an NVIDIA GPU: cudaGetDeviceCount: "
                                                             "cudaErrorNoDevice (no CUDA-capable device is detected)"),
                                     ("FAKE_NCCL_VERSION", "21804", f"--comm nccl: {LIBRARY} is NCCL 2.18.4; 2.19.0 or newer is "
                                                                    "needed")):
            with unittest.mock.patch.dict(os.environ, {variable: value}):
                self.assertEqual(self.bench("allreduce", *NCCL, world=1), [(2, "", f"train bench: {why}\n")])


class Health(unittest.TestCase):
    """Tests that `train health` sums over NCCL where it tests GPUs."""
    setUp = EmulatedNccl.setUp

    def health(self, *more, sizes=(2,)):
        with tempfile.TemporaryDirectory() as folder:
            results = bench_run_test.run(sizes, "health", "50ms", "--memory", "2", *more, "--json", f"{folder}/health")
            path = pathlib.Path(folder, "health")
            return results, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def test_the_sum_is_that_of_nccl(self):
        os.environ |= {"FAKE_CUDA_GPUS": "2", "FAKE_NCCL_SPOIL": str(16 << 20)}
        results, record = self.health()
        self.assertEqual([code for code, _, _ in results], [1, 0])
        self.assertEqual(results[0][2], "train: sums are wrong on 2 of 2 ranks, and no single rank or pair explains it; run train bench allreduce on "
                                        "halves of the hosts to find the fault, and compare their versions of driver and NCCL\n")
        self.assertEqual([rank["wrong_sums"] for rank in record["ranks"]], [3, 3])
        self.assertEqual(record["passed"], False)
        self.assertTrue(record["tested"].startswith("tested: 2 × emulated GPU, NCCL 2.28.9"), record["tested"])
        results, record = self.health("--comm", "shm")
        self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 2)
        self.assertTrue(record["tested"].startswith("tested: 2 × emulated GPU, shared memory"), record["tested"])

    def test_a_faulty_link_in_a_node_is_blamed_on_its_rank_and_not_on_the_witnesses(self):
        os.environ["FAKE_CUDA_GPUS"] = "3"
        with faulty_rank(1, "FAKE_NCCL_SPOIL_PEERS=0,2 FAKE_NCCL_SPOIL_SUM_SENT=1000000"):
            results, record = self.health(sizes=(3, 1))
        self.assertEqual([code for code, _, _ in results], [0, 1, 0, 0])
        self.assertEqual([rank["wrong_sums"] for rank in record["ranks"]], [3] * 4)
        self.assertEqual([(finding["rank"], finding["item"]) for finding in record["findings"] if finding["level"] == "error"],
                         [(1, "pair"), (1, "pair"), (1, "sum")])
        self.assertRegex(results[0][2], r"^train: rank 1 on \S+, GPU 1 \(emulated GPU\): \d+ wrong bytes in the exchange with rank 0 on \S+; "
                                        r"\d+ wrong bytes in the exchange with rank 2 on \S+; 3 wrong elements in the sum over all ranks\n$")

    def test_wrong_sums_of_groups_name_their_rank(self):
        os.environ["FAKE_CUDA_GPUS"] = "2"
        with faulty_rank(3, "FAKE_NCCL_SPOIL_SUM_SENT=1048576"):
            results, record = self.health(sizes=(2, 2))
        self.assertEqual([code for code, _, _ in results], [0, 0, 0, 1])
        self.assertEqual([group["wrong_ranks"] for group in record["groups"]], [[], [2, 3], [], [1, 3]])
        self.assertRegex(results[0][2], r"^train: rank 3 on \S+, GPU 1 \(emulated GPU\): sums in node 1 and rail 1 are wrong; 3 wrong elements in the sum "
                                        r"over all ranks\n$")

    def test_gpus_without_nccl_do_not_pass(self):
        os.environ |= {"FAKE_CUDA_GPUS": "2", "DDPLAUNCH_NCCL_LIBRARY": "/nonexistent/libnccl.so.2"}
        results, record = self.health()
        self.assertEqual(([code for code, _, _ in results], record), ([1, 1], None))
        self.assertRegex(results[0][2], r"^train: rank 0 on \S+: DDPLAUNCH_NCCL_LIBRARY names a library that cannot be loaded: .*; install NCCL for every "
                                        r"rank, or use the CPUs with --device cpu\n$")


if __name__ == "__main__":
    train_run_test.TRAIN = bench_run_test.TRAIN = sys.argv.pop(1)
    LIBRARY = sys.argv.pop(1)
    unittest.main(verbosity=2)
