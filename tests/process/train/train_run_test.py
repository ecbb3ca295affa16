#!/usr/bin/env python3
"""Runs the built `train` as one and as several ranks and checks lines, exit codes and error texts.

usage: train_run_test.py PATH_OF_TRAIN [unittest options]
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
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from tests.support import train_ranks

TRAIN = ""
COMMAND = ()  # instead of TRAIN
SHORT = "DDP_SHORT_TESTS" in os.environ
FASHION = "/usr/share/datasets/fashion-mnist"
HEAD = ["schema", "kind", "time", "host", "rank", "world_size"]  # the first keys of every record


class Ranks(train_ranks.Ranks):
    """A world of `train`. It trains on the CPU unless `arguments` name a device."""

    def __init__(self, world, *arguments, nodes=None, more=None):
        if "--device" not in arguments and arguments[:1] not in (("bench",), ("health",), ("--read-flight-recorder",)):
            arguments = ("--device", "cpu", *arguments)
        super().__init__((*(COMMAND or (TRAIN,)), *arguments), world, nodes and [world // nodes] * nodes, more)

    def finish(self, timeout=240):
        """Returns (exit code, stdout lines, stderr) of each rank. Rank 0's last two lines are in `self.tested` and `self.verdict`."""
        ends = [(code, out.splitlines(), err) for code, out, err in super().finish(timeout)]
        self.tested, self.verdict = ([lines.pop() if lines and lines[-1].startswith(start) else "" for _, lines, _ in ends]
                                     for start in ("tested: ", "verdict: "))
        return ends


def run(world, *arguments, nodes=None, more=None):
    with Ranks(world, *arguments, nodes=nodes, more=more) as ranks:
        return ranks.finish()


def accuracy_of(lines):
    return float(re.fullmatch(r"test accuracy (\d+\.\d) % \((\d+)/(\d+)\)", lines[-1])[1])


def with_crc32(data, wanted):
    """Returns `data` with the lowest bits of its last 64 bytes so that its CRC-32 is `wanted`. A CRC is linear in such changes."""
    data, basis = bytearray(data), {}
    before = zlib.crc32(data)
    for place in range(64):
        data[-1 - place] ^= 1
        effect, places = zlib.crc32(data) ^ before, 1 << place
        data[-1 - place] ^= 1
        while effect and (known := basis.get(effect.bit_length())):
            effect, places = effect ^ known[0], places ^ known[1]
        if effect:
            basis[effect.bit_length()] = effect, places
    missing, chosen = before ^ wanted, 0
    while missing:
        effect, places = basis[missing.bit_length()]
        missing, chosen = missing ^ effect, chosen ^ places
    for place in range(64):
        data[-1 - place] ^= chosen >> place & 1
    return bytes(data)


def write_like_fashion_mnist(folder, label, test_label):
    """Writes few images, all alike, with the checksums of Fashion-MNIST. Some labels are one higher."""
    for part, images, value, sums in (("train", 100, label, (0xae65dccd, 0x2ed6e46a)), ("t10k", 250, test_label, (0x12728439, 0x242bc73f))):
        train_ranks.write_images(folder, part, with_crc32(bytes([128]) * (images * 784), sums[0]), with_crc32(bytes([value]) * images, sums[1]))


class Training(unittest.TestCase):
    def check_world(self, world, *arguments):
        with Ranks(world, *arguments) as ranks:
            results = ranks.finish()
        self.verdict = ranks.verdict[0]
        hashes = []
        for rank, (code, lines, errors) in enumerate(results):
            self.assertEqual((code, errors), (0, ""))
            found = [re.fullmatch(r"rank (\d+) weights ([0-9a-f]{16})", line) for line in lines]
            found = [match for match in found if match]
            self.assertEqual(len(found), 1)
            self.assertEqual(found[0][1], str(rank))
            hashes.append(found[0][2])
            if rank:
                self.assertEqual(len(lines), 1, "only rank 0 reports progress")
        self.assertEqual(len(set(hashes)), 1)
        self.assertEqual(results[0][1][-2], f"weights equal on {world} rank{'s' if world > 1 else ''}: {hashes[0]}")
        return results[0][1]

    def test_one_process_learns_the_synthetic_data(self):
        lines = self.check_world(1, "--data", "synthetic", "--limit", "2000", "--log-interval", "10")
        self.assertGreater(accuracy_of(lines), 80)
        self.assertTrue(lines[-1].endswith("/2000)"))
        self.assertRegex(lines[0], r"^epoch 1/1 step 10/20 loss \d+\.\d+ \d+ images/s$")
        self.assertRegex(lines[2], r"^epoch 1/1 loss \d+\.\d+ test accuracy \d+\.\d\d % in \d+\.\d s$")

    def test_ranks_end_with_equal_weights_and_count_every_test_image_once(self):
        # No number divides 1001 evenly: neither 3 ranks, nor batches of 7 on each rank's part of the training images.
        lines = self.check_world(3, "--data", "synthetic", "--limit", "1001", "--batch-size", "7", "--epochs", "2")
        self.assertTrue(lines[-1].endswith("/1001)"))
        self.assertTrue(any(line.startswith("epoch 2/2 step 48/48 ") for line in lines))

    def test_the_last_line_says_what_was_tested(self):
        for world, nodes, transport in ((1, None, "one rank"), (2, None, "TCP"), (2, 1, "shared memory"), (4, 2, "shared memory and TCP")):
            with Ranks(world, "--data", "synthetic", "--limit", "400", nodes=nodes) as ranks:
                self.assertEqual({code for code, _, _ in ranks.finish()}, {0})
            self.assertRegex(ranks.tested[0], rf"^tested: CPU only, {transport}(; \d+ visible GPUs? not tested)?$")
            self.assertEqual(set(ranks.tested[1:]), set() if world == 1 else {""})

    def test_the_default_length_has_the_same_steps_on_any_number_of_ranks(self):
        """Ranks that divide the images must not end after a few steps."""
        with tempfile.TemporaryDirectory() as folder:
            for part, images in (("train", 400), ("t10k", 40)):
                train_ranks.write_images(folder, part, bytes(784 * images), bytes(i % 10 for i in range(images)))
            for more, epochs in (((), 4), (("--limit", "400"), 1), (("--epochs", "2"), 2), (("--max-steps", "3"), 1)):
                with Ranks(4, "--data", folder, "--batch-size", "10", *more) as ranks:
                    results = ranks.finish()
                self.assertEqual([(code, errors) for code, _, errors in results], [(0, "")] * 4)
                self.assertEqual(sum(bool(re.match(r"epoch \d+/\d+ .*test accuracy", line)) for line in results[0][1]), epochs)
                unknown = ", ".join((" ".join(more), "--batch-size 10")).removeprefix(", ")
                self.assertRegex(ranks.verdict[0], rf"^verdict: \d+\.\d % of the test images are right; no known result with {unknown}; \d+ % of a step in "
                                                   r"collectives; all-reduce of 113 KiB at \d+\.\d\d GB/s busbw$")
            with Ranks(1, "--data", folder) as ranks:
                self.assertEqual(ranks.finish()[0][::2], (0, ""))
            self.assertRegex(ranks.verdict[0], r"^verdict: \d+\.\d % of the test images are right; no known result of images that are not Fashion-MNIST's$")

    def test_a_visible_gpu_that_cannot_be_used_is_an_error(self):
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="63"):
            if run(1, "--device", "gpu", "--max-steps", "1", "--data", "synthetic")[0][0] == 0:
                self.skipTest("there are 64 GPUs")
            for world in (1, 2):
                for code, lines, errors in run(world, "--device", "auto", "--data", "synthetic", "--limit", "400"):
                    self.assertEqual((code, lines), (2 if world == 1 else 1, []))
                    self.assertRegex(errors, r"^train: rank 0 on \S+: (no usable NVIDIA GPU|this build has no GPU code): .*, and rank 0 on \S+ sees "
                                             r"1 GPU; give each rank a GPU that works, or use the CPUs with --device cpu\n$")
            with Ranks(2, "--data", "synthetic", "--limit", "400") as ranks:
                self.assertEqual({code for code, _, _ in ranks.finish()}, {0})
            self.assertRegex(ranks.tested[0], r"^tested: CPU only, TCP; \d visible GPUs? not tested$")

    @unittest.skipUnless(os.path.isdir(FASHION), "Debian's dataset-fashion-mnist is not installed")
    @unittest.skipIf(SHORT, "DDP_SHORT_TESTS is set")
    def test_fashion_mnist_reaches_85_percent_on_1_and_4_ranks(self):
        accuracies = []
        for world in (1, 4):
            accuracies.append(accuracy_of(self.check_world(world, "--data", FASHION)))
            self.assertRegex(self.verdict, r"^verdict: 8\d\.\d % of the test images are right, at least 80 % are expected")
        print("Fashion-MNIST, one epoch, 1 and 4 ranks:", accuracies, file=sys.stderr)
        self.assertGreaterEqual(min(accuracies), 85)
        self.assertLessEqual(max(accuracies) - min(accuracies), 2)

    @unittest.skipIf(SHORT, "DDP_SHORT_TESTS is set")
    def test_the_known_result_of_the_mlp_is_reached_or_the_exit_code_is_1(self):
        """One step teaches one class, of which the test images are, or are not. Only the checksums are those of Fashion-MNIST."""
        for test_label, code, verdict, error in (
                (2, 0, r"verdict: [89]\d\.\d % of the test images are right, at least 75 % are expected", ""),
                (4, 1, r"verdict: 0\.0 % of the test images are right, at least 75 % are expected",
                 "train: 0.0 % of the test images are right, and this training reaches 75 % on sound hardware: a device or the network of a rank is "
                 "faulty\n")):
            with tempfile.TemporaryDirectory() as folder:
                write_like_fashion_mnist(folder, 2, test_label)
                with Ranks(1, "--data", folder, "--model", "mlp", "--mlp-width", "2560", "--mlp-depth", "3", "--lr", "0.1") as ranks:
                    (ended, lines, errors), = ranks.finish()
            self.assertEqual((ended, errors), (code, error), lines)
            self.assertRegex(ranks.verdict[0], f"^{verdict}$")

    def test_a_model_that_needs_more_memory_than_there_is_is_refused(self):
        huge = ("--model", "mlp", "--mlp-width", "65536", "--mlp-depth", "1000", "--data", "synthetic", "--limit", "10")
        for code, lines, errors in run(2, *huge):
            self.assertEqual((code, lines), (2, []))
            self.assertRegex(errors, r"^train: the MLP needs \d+\.\d TiB of memory for each rank, and host \S+ has \S+ \wiB left for its (2 ranks|rank); "
                                     r"make --mlp-width or --mlp-depth smaller\n$")

    @unittest.skipIf(SHORT, "DDP_SHORT_TESTS is set: sanitizers need address space")
    def test_a_limit_of_memory_is_named(self):
        limited = ("/bin/sh", "-c", f'ulimit -v 300000; exec {TRAIN} "$@"', "train")
        with unittest.mock.patch.object(sys.modules[__name__], "COMMAND", limited):
            (code, lines, errors), = run(1, "--model", "mlp", "--mlp-width", "4000", "--mlp-depth", "5", "--data", "synthetic", "--limit", "10")
        self.assertEqual((code, lines, errors), (1, [], "train: this process cannot get the memory that its options need; make sizes smaller, or raise the "
                                                        "limit of its memory (ulimit -v)\n"))


class Engine(unittest.TestCase):
    SMALL = ("--data", "synthetic", "--limit", "400", "--batch-size", "10")

    def good(self, world, *arguments, nodes=None):
        results = run(world, *self.SMALL, *map(str, arguments), nodes=nodes)
        for code, _, errors in results:
            self.assertEqual((code, errors), (0, ""))
        return results[0][1]

    def weights(self, lines):
        return next(line for line in lines if line.startswith("weights equal on")).rsplit(" ", 1)[1]

    def test_a_nan_of_one_rank_drops_the_step_on_all(self):
        lines = self.good(2, "--inject-nan", "1:2", "--log-interval", "1", "--max-steps", "3")
        self.assertIn("step 2 dropped on all ranks: the gradient is not finite; the weights are unchanged", lines)
        self.assertIn("epoch 1/1 step 2/20 ", "\n".join(lines))
        self.assertEqual([line for line in lines if re.match(r"epoch 1/1 step 2/20 .*(loss|nan)", line)], [])

    def test_buckets_threads_and_shards_change_no_bit_of_two_ranks_sums(self):
        # With two ranks a sum has only one order.
        first = self.weights(self.good(2))
        for extra in (("--bucket-cap-mb", 0.01, "--first-bucket-mb", 0), ("--threads", 3), ("--zero", 1)):
            self.assertEqual(self.weights(self.good(2, *extra)), first, extra)
        self.assertNotEqual(self.weights(self.good(2, "--seed", 6)), first)

    def test_other_options_of_training_learn_too(self):
        for world, extra in ((2, ("--sync-bn",)), (1, ("--accumulate", 3, "--epochs", 2)),
                             (1, ("--model", "mlp", "--lr", 0.05)), (1, ("--kernels", "generic")),
                             (2, ("--optimizer", "adamw", "--lr", 0.002, "--lr-schedule", "cosine", "--warmup-steps", 5)),
                             (1, ("--clip-norm", 1, "--clip-value", 0.1))):
            with self.subTest(extra=extra):
                self.assertGreater(accuracy_of(self.good(world, *extra)), 60)

    def test_metrics_profile_and_samples(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            lines = self.good(2, "--metrics-file", place / "m.jsonl", "--profile", place / "trace.json", "--sample-log", place,
                              "--clip-norm", 1, "--inject-nan", "0:2")
            every = [json.loads(line) for line in (place / "m.jsonl").read_text().splitlines()]
            for record in every:
                self.assertEqual(list(record)[:6], HEAD)
                self.assertEqual((record["schema"], record["host"], record["rank"], record["world_size"]),
                                 ("ddp-train-record/1", socket.gethostname(), 0, 2))
            self.assertEqual([record["kind"] for record in every], ["step"] * 20 + ["interval", "epoch"])
            self.assertEqual(list(every[-2])[6:], ["step", "epoch", "loss", "images_per_second"])
            self.assertEqual(list(every[-1])[6:], ["epoch", "test_correct", "test_total", "loss", "seconds"])
            records = [record for record in every if record["kind"] != "interval"]
            self.assertEqual([record["step"] for record in records[:-1]], list(range(1, 21)))
            self.assertEqual(list(records[0])[6:], ["step", "epoch", "loss", "lr", "images", "norm", "dropped", "seconds"])
            self.assertEqual(set(records[0]["seconds"]), {"data", "forward", "backward", "communication", "optimizer"})
            self.assertEqual([record["dropped"] for record in records[:3]], [False, True, False])
            self.assertEqual(records[-1]["test_total"], 400)
            self.assertEqual(f"test accuracy {records[-1]['test_correct'] / 4:.1f} % ({records[-1]['test_correct']}/400)", lines[-1])
            for rank in range(2):
                events = json.loads((place / f"trace.rank{rank}.json").read_text())["traceEvents"]
                self.assertEqual({event["pid"] for event in events}, {rank})
                self.assertEqual({event["args"]["step"] for event in events[1:]}, set(range(1, 21)))
                self.assertEqual({event["name"] for event in events[1:]}, set(records[0]["seconds"]))
                samples = (place / f"rank-{rank}").read_text().splitlines()
                self.assertEqual(len(samples), 20)
                self.assertTrue(samples[0].startswith("0 1: "))
            self.assertTrue(any(re.fullmatch(r"forward +\d+\.\d{3} +\d+\.\d{3}", line) for line in lines))
            end = "\n".join(lines)
            self.assertRegex(end, r"(?m)^slowest rank [01]: computes \d+\.\d{3} ms per step, \d+ % over the median rank$")
            self.assertRegex(end, r"(?m)^slowest rank at p99 [01]: computes \d+\.\d{3} ms, \d+ % over the median rank$")

    @unittest.skipIf(SHORT, "DDP_SHORT_TESTS is set")
    def test_a_rank_that_is_stopped_in_slices_is_named_by_the_profile(self):
        with tempfile.TemporaryDirectory() as folder, Ranks(2, "--data", "synthetic", "--limit", "6000", "--batch-size", "20", "--epochs", "2",
                                                            "--log-interval", "1", "--profile", f"{folder}/t.json") as ranks:
            ranks.processes[0].stdout.readline()
            victim = ranks.processes[1]
            while victim.poll() is None:
                victim.send_signal(signal.SIGSTOP)
                time.sleep(0.05)
                victim.send_signal(signal.SIGCONT)
                time.sleep(0.05)  # most stops fall into a wait for the other rank, and the machine's own noise is 5 %
            (code, lines, errors), other = ranks.finish()
            self.assertEqual((code, errors, other[0], other[2]), (0, "", 0, ""))
            lost = re.search(r"(?m)^rank 1 loses (\d+\.\d) % of its time in steps that take more than twice its median; ", "\n".join(lines))
            # Where a step takes longer than a slice, all steps of the rank have a pause, and it is slow instead.
            slow = re.search(r"(?m)^slowest rank 1: computes \d+\.\d+ ms per step, (\d+) % over the median rank$", "\n".join(lines))
            self.assertTrue(lost and float(lost[1]) > 10 or slow and int(slow[1]) > 50, lines[-6:])

    def test_a_bar_is_drawn_in_place_and_only_on_request(self):
        text = "\n".join(self.good(1, "--bar", "always"))
        # Reading as text has turned the carriage returns into line ends.
        self.assertRegex(text, r"\nepoch 1/1 \[#*\.+\] \d+/40 loss \d.*\n\x1b\[Kepoch 1/1 step 40/40 loss ".replace(".*", "(?s:.*)"))
        for quiet in ((), ("--bar", "never")):
            self.assertNotIn("[", "\n".join(self.good(1, *quiet)))

    def test_nodes_that_are_averaged_every_few_steps_end_equal(self):
        every = self.good(4, "--epochs", 2, nodes=2)
        seldom = self.good(4, "--epochs", 2, "--sync-every-inter", 4, nodes=2)
        self.assertGreater(accuracy_of(seldom), 60)
        self.assertNotEqual(self.weights(every), self.weights(seldom))

    def test_a_closed_reader_of_a_pipe_does_not_end_the_training(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = f"{folder}/pipe"
            os.mkfifo(pipe)
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            with Ranks(2, *self.SMALL, "--epochs", "3", "--log-interval", "1", "--metrics-file", pipe) as ranks:
                ranks.processes[0].stdout.readline()
                os.close(reader)
                (code, lines, errors), other = ranks.finish()
            self.assertEqual((code, errors), (0, f"train: --metrics-file {pipe}: Broken pipe; training continues without this file\n"))
            self.assertGreater(accuracy_of(lines), 60)
            self.assertEqual((other[0], other[2]), (0, ""))

    def test_closed_standard_descriptors_are_not_reused_for_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "m.jsonl")
            arguments = " ".join([TRAIN, *self.SMALL, "--log-interval", "1", "--metrics-file", str(path), "--export", f"{folder}/w"])
            for closed in ("<&- >&- 2>&-", ">&-", "<&-"):
                path.unlink(missing_ok=True)
                done = subprocess.run(["sh", "-c", f"{arguments} {closed}"], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
                self.assertEqual(kinds, ["step", "interval"] * 40 + ["epoch"])

    def test_results_that_cannot_be_written_are_no_success(self):
        lost = ("train: write standard output: {0}; later output is dropped\n"
                "train: standard output is incomplete: write standard output: {0}\n")
        with open("/dev/full", "w", encoding="ascii") as full:
            for arguments in (self.SMALL, ("bench", "broadcast", "--maxbytes", "64")):
                done = subprocess.run([TRAIN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (116, lost.format("No space left on device")))
            done = subprocess.run([TRAIN, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 116)
            self.assertRegex(done.stderr, r"^train: standard output is incomplete: write standard output: .*\n$")
        # The help of a reader that has seen enough is no failure: it ends as other programs do.
        for words in (("--help",), ("--version",), ("bench", "--help")):
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run([TRAIN, *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""))
        with tempfile.TemporaryDirectory() as folder, Ranks(2, *self.SMALL, "--log-interval", "1", "--export", f"{folder}/w") as ranks:
            ranks.processes[0].stdout.close()
            _, errors = ranks.processes[1].communicate(timeout=60)
            self.assertEqual((ranks.processes[1].returncode, errors), (0, ""))
            self.assertEqual(ranks.processes[0].stderr.read(), lost.format("Broken pipe"))
            self.assertEqual(ranks.processes[0].wait(timeout=60), 116)
            self.assertTrue(pathlib.Path(folder, "w").exists())
            ranks.processes[0].stderr.close()
            ranks.processes[0].stdout = ranks.processes[0].stderr = None

    def test_traces_that_cannot_be_written_suppress_no_result(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink("/dev/full", f"{folder}/t.rank1.json")
            ends = run(2, *self.SMALL, "--profile", f"{folder}/t.json")
            text = f"train: write {folder}/t.rank1.json: No space left on device\n"
            self.assertEqual([(code, errors) for code, _, errors in ends], [(1, text)] * 2)
            self.assertGreater(accuracy_of(ends[0][1]), 60)

    def test_a_full_file_has_complete_lines_only(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "m.jsonl")
            done = subprocess.run([TRAIN, *self.SMALL, "--metrics-file", path], text=True, capture_output=True, timeout=60,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)))
            self.assertEqual((done.returncode, done.stderr),
                             (0, f"train: --metrics-file {path}: File too large; training continues without this file\n"))
            self.assertIn("test accuracy ", done.stdout)
            text = path.read_text()
            self.assertTrue(3000 < len(text) <= 4000 and text.endswith("\n"), text[-100:])
            for line in text.splitlines():
                json.loads(line)

    def test_a_sample_log_needs_its_directory(self):
        (code, _, errors), = run(1, *self.SMALL, "--sample-log", "/nonexistent")
        self.assertEqual((code, errors), (1, "train: --sample-log /nonexistent: not a directory; create it on the node of each rank\n"))

    def test_a_full_disk_ends_the_sample_log_and_not_the_training(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([TRAIN, *self.SMALL, "--sample-log", folder], text=True, capture_output=True, timeout=60,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)))
            path = pathlib.Path(folder, "rank-0")
            self.assertEqual((done.returncode, done.stderr),
                             (0, f"train: --sample-log {path}: File too large; training continues without this file\n"))
            self.assertRegex(path.read_text(), r"^(0 \d+:( \d+){10}\n)+$")
            path.unlink()
            pathlib.Path(folder, "rank-1").mkdir()  # rank 0 reports the same
            for code, lines, errors in run(2, *self.SMALL, "--sample-log", folder):
                self.assertEqual((code, lines, errors), (1, [], f"train: --sample-log {folder}/rank-1: Is a directory\n"))

    def test_initial_weights_are_read_from_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/w.safetensors"
            self.good(1, "--export", path)
            lines = self.good(2, "--init-from", path, "--lr", 0)
            self.assertGreater(accuracy_of(lines), 60)
            (code, _, errors), = run(1, *self.SMALL, "--init-from", path, "--model", "mlp")
            self.assertEqual((code, errors), (1, f"train: {path}: tensor 0.weight is missing; check that the file is of --model mlp\n"))


class LostRanks(unittest.TestCase):
    LONG = ("--data", "synthetic", "--limit", "3000", "--epochs", "10000", "--log-interval", "1")

    def test_all_ranks_name_a_killed_one_at_once(self):
        with Ranks(3, *self.LONG) as ranks:
            ranks.processes[0].stdout.readline()  # training is under way
            ranks.processes[1].kill()
            start = time.monotonic()
            for rank in (0, 2):
                _, errors = ranks.processes[rank].communicate(timeout=60)
                self.assertEqual(ranks.processes[rank].returncode, 1)
                self.assertRegex(errors, rf"^train: rank {rank} lost rank 1 \(127\.0\.0\.1:\d+\): connection "
                                         r"(closed|reset) during all-(reduce|gather) of .*\d+\n$", f"rank {rank}")
            self.assertLess(time.monotonic() - start, 30)  # --comm-timeout is 60 s

    def test_a_rank_killed_between_two_averages_of_the_nodes_is_named_on_all(self):
        with Ranks(4, *self.LONG, "--sync-every-inter", "1000000", nodes=2) as ranks:
            ranks.processes[0].stdout.readline()
            ranks.processes[3].kill()
            for rank in range(3):
                _, errors = ranks.processes[rank].communicate(timeout=60)
                self.assertEqual(ranks.processes[rank].returncode, 1)
                self.assertRegex(errors, rf"^train: rank {rank} lost rank 3 \(.*\n$")

    def test_a_frozen_rank_is_named_by_ranks_that_wait_for_its_neighbors(self):
        # The limit is longer than any step takes here. Otherwise an innocent rank would be silent too.
        limit = 8 if SHORT else 5
        cases = ((2, 1, (), None), (5, 2, ("--comm", "tcp"), None), (4, 3, (), 2), (3, 1, (), 1), (4, 1, ("--sync-every-inter", "3"), 2))
        for world, stopped, arguments, nodes in cases[1:3] if SHORT else cases:
            with self.subTest(world=world, arguments=arguments, nodes=nodes), \
                    Ranks(world, *self.LONG, "--comm-timeout", f"{limit}s", *arguments, nodes=nodes) as ranks:
                ranks.processes[0].stdout.readline()
                ranks.processes[stopped].send_signal(signal.SIGSTOP)
                why = rf"127\.0\.0\.1:\d+\): no data for {limit} s during " if world == 2 else ""
                for rank in set(range(world)) - {stopped}:
                    _, errors = ranks.processes[rank].communicate(timeout=60)
                    self.assertEqual(ranks.processes[rank].returncode, 1)
                    self.assertRegex(errors, rf"^train: rank {rank} lost rank {stopped} \({why}.*\n$")
                ranks.processes[stopped].send_signal(signal.SIGCONT)
                _, errors = ranks.processes[stopped].communicate(timeout=60)
                self.assertRegex(errors, rf"^train: rank {stopped} was reported lost by .* \(was this process stopped\?\) during ")

    def test_sigterm_ends_a_rank_at_once(self):
        with Ranks(1, *self.LONG) as ranks:
            ranks.processes[0].stdout.readline()
            ranks.processes[0].terminate()
            ranks.processes[0].communicate(timeout=60)
            self.assertEqual(ranks.processes[0].returncode, -signal.SIGTERM)


class OptionErrors(unittest.TestCase):
    def refused(self, *arguments):
        (code, lines, errors), = run(1, *arguments)
        self.assertEqual((code, lines), (2, []))
        return errors

    def test_options(self):
        wrong = (
            (("--model", "vit"), 'unknown --model "vit" (auto, convnet, mlp)'),
            (("--threads", "0"), "--threads 0: give a whole number from 1 to 1024"),
            (("--dtype", "bf16"), "unknown --dtype \"bf16\" (float32, float64, bfloat16)"),
            (("--batch-size", "0"), "--batch-size 0: give a whole number from 1 to 16384"),
            (("--comm-timeout", "soon"), "--comm-timeout soon: give a time like 500ms, 15s, 2m or 1h"),
            (("--inject-nan", "3"), "--inject-nan 3: give RANK:STEP; steps begin with 1"),
            (("--optimizer", "lion"), 'unknown --optimizer "lion" (sgd, adamw)'),
            (("--zero", "2"), 'unknown --zero "2" (0, 1)'),
            (("--limit", "1.5"), "--limit 1.5: give a whole number"),
            (("--bach-size", "3"), "unknown option --bach-size; did you mean --batch-size?"),
            (("--lr", "nan"), "--lr nan: give a number"),
            (("--clip-norm", "-NaN"), "--clip-norm -NaN: give a number"),
            (("--bucket-cap-mb", "nan"), "--bucket-cap-mb nan: give a number from 0 to 1000000"),
            (("--weight-decay", "inf"), "--weight-decay inf: give a number from 0 to 1000000"),
            (("--momentum", "1e999"), "--momentum 1e999: give a number from 0 to 1"),
            (("--comm", "foo"), 'unknown --comm "foo" (auto, tcp, shm, nccl)'),
            (("--kernels", "z80"), 'unknown --kernels "z80" (generic, x86_64_v2, x86_64_v3, x86_64_v4)'))
        # All are reported at once.
        errors = self.refused(*(word for words, _ in wrong for word in words)).splitlines()
        self.assertEqual(sorted(errors), sorted(f"train: {text}" for _, text in wrong))
        for arguments, text in (
                (("--comm", "shm", "--bench", "allreduce", "-b", "1M"),
                 "--bench is a subcommand and comes first: train bench OPERATION [OPTION…]"),
                (("--health=1s",), "--health is a subcommand and comes first: train health [TIME] [OPTION…]"),
                (("--threads", "2", "--health"), "--health is a subcommand and comes first: train health [TIME] [OPTION…]"),
                (("extra",), 'unexpected word "extra"; train --help lists all options')):
            with self.subTest(arguments):
                self.assertEqual(self.refused(*arguments), f"train: {text}\n")

    def test_contradicting_options_are_refused(self):
        for arguments, text in (
                (("--zero", "1", "--sync-every-inter", "2"), "--zero 1 is only for --sync-every-inter 1: nodes with "
                                                             "different weights cannot share one optimizer state"),
                (("--sync-bn", "--model", "mlp"), "--sync-bn cannot be used with --model mlp, which has no batch normalization"),
                (("--sync-bn", "--sync-every-inter", "2"), "--sync-bn is only for --sync-every-inter 1: SyncBN needs all ranks in every "
                                                           "step"),
                (("--resume", "c", "--init-from", "w"), "--init-from cannot be used with --resume: both set the initial weights; give one of "
                                                        "them"),
                (("--checkpoint-every", "3", "--checkpoint-dir", "c", "--sync-every-inter", "2"), "--checkpoint-every must be a multiple of "
                 "--sync-every-inter: between two averages the nodes differ"),
                (("--inject-nan", "1:1"), "--inject-nan names rank 1 of 1"),
                (("--optimizer", "adamw", "--beta1", "1"), "--beta1 1: give a number of at least 0 and below 1"),
                (("--optimizer", "adamw", "--beta2", "1"), "--beta2 1: give a number of at least 0 and below 1"),
                (("--resume", "auto"), "--resume auto needs --checkpoint-dir, which has the checkpoints"),
                (("--checkpoint-every", "3"), "--checkpoint-every needs --checkpoint-dir"),
                (("--optimizer", "adamw", "--momentum", "0.5"), "--momentum is only for --optimizer sgd"),
                (("--mlp-depth", "3"), "--mlp-depth is only for --model mlp"),
                (("--comm", "tcp", "--sync-every-inter", "2"), "--sync-every-inter needs shared memory inside the nodes; remove "
                                                               "--comm tcp")):
            # Options are checked before any work: train does not even search for the data, which is missing.
            (code, lines, errors), = run(1, "--data", "/nonexistent", *arguments)
            self.assertEqual((code, lines, errors), (2, [], f"train: {text}\n"))
        # No rank waits for the other one.
        results = run(2, "--data", "/nonexistent", "--sync-every-inter", "2")
        self.assertEqual([result[0] for result in results], [2, 2])
        self.assertIn("--sync-every-inter needs GROUP_RANK and LOCAL_WORLD_SIZE", results[0][2])

    def test_paths_of_results_are_checked_before_the_training(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.rank1.json").mkdir()
            for arguments, text in (
                    (("--export", f"{folder}/none/w"), f"--export {folder}/none/w.tmp: there is no directory {folder}/none/"),
                    (("--export", folder), f"--export {folder}: exists and is not a regular file"),
                    (("--profile", f"{folder}/a.json"), f"--profile {folder}/a.rank1.json: is a directory; name a file")):
                for code, lines, errors in run(2, "--data", "synthetic", "--limit", "40", *arguments):
                    self.assertEqual((code, lines, errors), (1, [], f"train: {text}\n"))
            self.assertEqual(os.listdir(folder), ["a.rank1.json"], "no other files are left")

    def test_help_and_options_with_underscores(self):
        (code, lines, errors), = run(1, "--help")
        self.assertEqual((code, errors), (0, ""))
        self.assertTrue(any("--batch-size" in line for line in lines))
        self.assertIn("Instead of training: train bench --help", "\n".join(lines[:4]))
        # Each use has only its own options.
        options = {use: {word for line in run(1, *use, "--help")[0][1] for word in re.findall(r"^ +(?:-\w, ?)?(--[a-z-]+)", line)}
                   for use in ((), ("bench",), ("health",))}
        self.assertLessEqual({"--data", "--lr", "--resume"}, options[()])
        self.assertFalse(options[()] & {"--bench", "--health", "--memory", "--pairs", "--min-busbw"})
        for use, own in ((("bench",), "--min-busbw"), (("health",), "--memory")):
            self.assertIn(own, options[use])
            self.assertFalse(options[use] & {"--data", "--lr", "--resume"})
        (code, _, errors), = run(1, "--data", "synthetic", "--limit=100", "--batch_size=50", "--log_interval", "1")
        self.assertEqual((code, errors), (0, ""))

    def test_a_pipe_instead_of_a_file_is_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = f"{folder}/pipe"
            os.mkfifo(pipe)
            os.mkfifo(f"{folder}/train-images-idx3-ubyte")
            pathlib.Path(folder, "train-labels-idx1-ubyte").touch()
            checkpoint = pathlib.Path(folder, "step-00000001")
            checkpoint.mkdir()
            os.mkfifo(checkpoint / "state.json")
            synthetic = ("--data", "synthetic", "--limit", "10")
            for arguments, text in (
                    (("--data", folder), f"{folder}/train-images-idx3-ubyte: not a regular file"),
                    ((*synthetic, "--init-from", pipe), f"{pipe}: not a regular file"),
                    ((*synthetic, "--init-from", folder), f"{folder}: not a regular file"),
                    ((*synthetic, "--init-from", "/dev/zero"), "/dev/zero: not a regular file"),
                    ((*synthetic, "--resume", str(checkpoint)), f"open {checkpoint}/state.json: Operation not supported"),
                    ((*synthetic, "--metrics-file", pipe), f"--metrics-file {pipe}: No such device or address")):
                with self.subTest(arguments):
                    with Ranks(1, *arguments) as ranks:
                        self.assertEqual(ranks.finish(timeout=20), [(1, [], f"train: {text}\n")])

    def test_options_that_must_be_equal_are_compared(self):
        small = ("--data", "synthetic", "--limit", "500", "--max-steps", "1")
        for more, text in ((("--seed", "4"), "--seed is 4 on rank 1 and 0 on rank 0"),
                           (("--limit", "50"), "the number of training images is 50 on rank 1 and 500 on rank 0"),
                           (("--export", "/tmp/w"), "--export is a path on rank 1 and not given on rank 0")):
            for code, lines, errors in run(3, *small, more={1: more}):
                self.assertEqual((code, lines, errors), (1, [], f"train: {text}; give all ranks the same value\n"))

    def test_nodes_with_other_data_do_not_train_together(self):
        with tempfile.TemporaryDirectory(prefix="ddp-data-") as folder:
            for node in ("a", "b"):
                os.mkdir(f"{folder}/{node}")
                for part in ("train", "t10k"):
                    kinds = 3 if (node, part) == ("b", "train") else 7
                    train_ranks.write_images(f"{folder}/{node}", part, bytes(range(196)) * 4 * 40, bytes(i % kinds for i in range(40)))
            small = ("--batch-size", "4", "--max-steps", "2")
            same = {rank: ("--data", f"{folder}/a") for rank in range(4)}
            host = socket.gethostname()
            for code, lines, errors in run(4, *small, nodes=2, more=same | {3: ("--data", f"{folder}/b"), 2: ("--data", f"{folder}/b")}):
                self.assertEqual((code, lines, errors),
                                 (1, [], "train: the training labels (train-labels-idx1-ubyte) of rank 2 "
                                         f"({host}), rank 3 ({host}) are not those of rank 0 ({host}); give all nodes the same data\n"))
            # A checkpoint of one setting cannot be resumed with another.
            saved = f"{folder}/saved"
            (code, _, errors), = run(1, *small, "--data", f"{folder}/a", "--checkpoint-dir", saved)
            self.assertEqual((code, errors), (0, ""))
            for code, _, errors in run(2, "--batch-size", "4", "--data", f"{folder}/b", "--resume", saved):
                self.assertEqual((code, errors), (1, f"train: cannot resume from {saved}/step-00000002: the training labels differ"
                                                     "; resume with the same options and data, or name another checkpoint\n"))

    def test_ranks_with_different_backends_are_named(self):
        for more, text in ((("--comm", "tcp"), "--comm is tcp on rank 1 and auto on rank 0"),
                           (("--dtype", "float64"), "--dtype is float64 on rank 1 and float32 on rank 0"),
                           (("--sync-every-inter", "2"), "--sync-every-inter is given on rank 1 and not given on rank 0")):
            with Ranks(2, "--data", "synthetic", "--limit", "40", nodes=1, more={1: more}) as ranks:
                _, errors = ranks.processes[1].communicate(timeout=60)
                self.assertEqual((ranks.processes[1].returncode, errors),
                                 (1, f"train: {text}; give all ranks the same value\n"))

    def test_missing_data(self):
        (code, _, errors), = run(1, "--data", "/nonexistent")
        self.assertEqual(code, 1)
        self.assertEqual(errors, "train: /nonexistent/train-images-idx3-ubyte: no such file, neither plain nor .gz; "
                                 "give a directory with the four MNIST files by --data (Debian's package "
                                 "dataset-fashion-mnist brings them), or --data synthetic\n")


if __name__ == "__main__":
    TRAIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
