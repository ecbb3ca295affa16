#!/usr/bin/env python3
"""Tests checkpoints of the built `train`: interruptions, other numbers of ranks, a full disk, kills.

usage: checkpoint_run_test.py PATH_OF_TRAIN PATH_OF_FAULT_DISK [unittest options]"""
import collections
import itertools
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from tests.process.train import train_run_test
from tests.process.train.train_run_test import Ranks, run
from tests.support.ports import free_port

# 41 steps an epoch; kernels under a sanitizer process a few hundred images a second.
SMALL = ("--data", "synthetic", "--limit", "163", "--batch-size", "4", "--epochs", "2")


FAULT_DISK = ""


def faulty_disk(**faults):
    """Preloads tests/support/fault_disk.cc with these faults into the processes that start in the `with` block."""
    # A preloaded library comes before the sanitizer's.
    options = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
    return unittest.mock.patch.dict(os.environ, LD_PRELOAD=FAULT_DISK, ASAN_OPTIONS=options, **faults)


def sign(checkpoint):
    """Writes the CRC-32 of the present files into state.json. Numbers keep their text, since Python may write other digits."""
    text = "".join((checkpoint / "state.json").read_text().split())
    for name in ("model", "optimizer"):
        crc = zlib.crc32((checkpoint / f"{name}.safetensors").read_bytes())
        text = re.sub(rf'"{name}_crc32":\d+', f'"{name}_crc32":{crc}', text)
    text = re.sub(r',"state_crc32":\d+', "", text)
    (checkpoint / "state.json").write_text(f'{text[:-1]},"state_crc32":{zlib.crc32(text.encode())}}}')


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def grow(path):
    """Adds a tensor of 256 GiB as a hole in the file. The header is correct."""
    content = path.read_bytes()
    size, = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + size])
    end = len(content) - 8 - size
    header["huge"] = {"dtype": "F32", "shape": [1 << 36], "data_offsets": [end, end + (1 << 38)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size:])
    os.truncate(path, 8 + len(text) + end + (1 << 38))


def weights(results):
    return next(line for line in results[0][1] if line.startswith("weights equal on")).rsplit(" ", 1)[1]


class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-checkpoint-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def good(self, world, *arguments, nodes=None):
        results = run(world, *map(str, arguments), nodes=nodes)
        for code, _, errors in results:
            self.assertEqual((code, errors), (0, ""))
        return results

    def names(self, folder):
        return sorted(path.name for path in folder.iterdir())

    def test_an_interrupted_training_ends_with_the_same_bits(self):
        for world, extra in ((1, ()), (2, ("--optimizer", "adamw", "--lr", "0.001")), (3, ("--zero", "1", "--dtype", "float64"))):
            with self.subTest(world=world):
                whole = self.good(world, *SMALL, *extra)
                folder = self.folder / f"world-{world}"
                # The interruption is in the middle of the first epoch, at its end, or in the second epoch.
                per_epoch = -(-163 // (4 * world))
                for step in (3, per_epoch, per_epoch + 2):
                    self.good(world, *SMALL, *extra, "--checkpoint-dir", folder, "--resume", "auto", "--max-steps", step)
                    self.assertEqual(self.names(folder)[-1], f"step-{step:08d}")
                end = self.good(world, *SMALL, *extra, "--resume", folder)
                self.assertEqual(weights(end), weights(whole))
                self.assertEqual(end[0][1][-1], whole[0][1][-1])
                self.assertIn(f"resuming from {folder}/step-{per_epoch + 2:08d}: step {per_epoch + 2}, epoch 2, ", end[0][1][0])

    def samples(self, folder, epoch):
        """Returns the numbers of one epoch's samples over all ranks."""
        seen = collections.Counter()
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                head, numbers = line.split(":")
                if head.split()[0] == str(epoch):
                    seen.update(map(int, numbers.split()))
        return seen

    def test_another_number_of_ranks_continues_with_the_remaining_samples(self):
        for zero in ((), ("--zero", "1")):
            shutil.rmtree(self.folder)
            logs = [self.folder / f"log-{i}" for i in range(3)]
            for log in logs:
                log.mkdir(parents=True)
            saved = self.folder / "saved"
            arguments = (*SMALL, *zero, "--checkpoint-dir", saved, "--resume", "auto", "--sample-log")
            self.good(4, *arguments, logs[0], "--max-steps", 4)
            self.good(3, *arguments, logs[1], "--max-steps", 7)
            end = self.good(2, *arguments, logs[2])
            self.assertIn("3 ranks then, 2 now", end[0][1][0])
            used = [sum(self.samples(log, 0).values()) for log in logs]
            self.assertEqual(used[:2], [64, 36])
            first = sum((self.samples(log, 0) for log in logs), collections.Counter())
            self.assertEqual(set(first), set(range(163)))
            self.assertEqual(sum(first.values()), 164)  # 63 samples are left for 2 ranks: one is repeated
            second = self.samples(logs[2], 1)
            self.assertEqual((set(second), sum(second.values())), (set(range(163)), 164))
            state = json.loads((saved / self.names(saved)[-1] / "state.json").read_text())
            self.assertEqual((state["world_size"], state["epoch"]), (2, 2))

    def test_a_training_that_writes_no_checkpoint_keeps_no_more_either(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 5, "--max-steps", 20)
        self.good(1, *arguments, "--checkpoint-keep", 9)
        self.assertEqual(len(self.names(saved)), 4)
        self.good(1, *arguments, "--checkpoint-keep", 2, "--resume", "auto")
        self.assertEqual(self.names(saved), ["step-00000015", "step-00000020"])

    def test_only_the_newest_complete_checkpoints_are_kept(self):
        saved = self.folder / "saved"
        saved.mkdir()
        (saved / ".tmp-17-step-00000099").mkdir()
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 5, "--checkpoint-keep", 2, "--max-steps", 22)
        self.assertEqual(self.names(saved), ["step-00000020", "step-00000022"])
        self.assertEqual(self.names(saved / "step-00000022"),
                         ["model.safetensors", "optimizer.safetensors", "state.json"])
        (saved / "step-00000099").mkdir()  # belongs to the user
        self.good(2, *SMALL, "--zero", 1, "--checkpoint-dir", saved, "--resume", "auto", "--max-steps", 30)
        self.assertEqual(self.names(saved / "step-00000030"), self.names(saved / "step-00000022"))
        ends = run(2, *SMALL, "--checkpoint-dir", str(saved))
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[0], (1, [], f"train: --checkpoint-dir {saved} holds step-00000030 of another training, while this one "
                                          "begins after step 0; give another --checkpoint-dir, resume from there with --resume auto, "
                                          "or remove the later checkpoints\n"))
        self.assertEqual(self.names(saved), ["step-00000020", "step-00000022", "step-00000030", "step-00000099"])

    def test_an_export_is_flushed_with_its_name(self):
        log = self.folder / "log"
        with faulty_disk(DDP_FSYNC_LOG=str(log)):
            self.good(1, *SMALL, "--max-steps", 1, "--export", self.folder / "out")
        self.assertEqual(log.read_text().splitlines(), [f"{self.folder}/out.tmp", str(self.folder)])

    def test_both_files_of_a_checkpoint_are_flushed_together(self):
        with faulty_disk(DDP_FSYNC_PAIRS="1"):
            self.good(2, *SMALL, "--zero", 1, "--checkpoint-dir", self.folder / "saved", "--checkpoint-every", 1, "--max-steps", 2)
        self.assertEqual(self.names(self.folder / "saved"), ["step-00000001", "step-00000002"])

    def test_a_checkpoint_is_an_export(self):
        saved = self.folder / "saved"
        out = self.folder / "out.safetensors"
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--export", out)
        self.assertEqual((saved / self.names(saved)[-1] / "model.safetensors").read_bytes(), out.read_bytes())

    def test_the_last_checkpoint_has_the_average_of_all_nodes(self):
        # The training ends between two averages, at one, or at the end of all epochs. A mean of three is not exact. The mlp
        # has no running statistics, which a checkpoint and a test would add up in different orders.
        for world, nodes, steps in ((4, 2, 5), (4, 2, 4), (3, 3, 5), (3, 3, None)):
            with self.subTest(nodes=nodes, steps=steps):
                saved = self.folder / f"saved-{nodes}-{steps}"
                out = self.folder / f"out-{nodes}-{steps}"
                arguments = (*SMALL, "--model", "mlp", "--lr", 0.05, "--sync-every-inter", 4, *(("--max-steps", steps) if steps else ()))
                end = self.good(world, *arguments, "--checkpoint-dir", saved, "--export", out, nodes=nodes)
                self.assertEqual((saved / self.names(saved)[-1] / "model.safetensors").read_bytes(), out.read_bytes())
                again = self.good(world, *arguments, "--checkpoint-dir", saved, "--resume", "auto", nodes=nodes)
                self.assertEqual(again[0][1][-1], end[0][1][-1])

    def test_a_complete_training_is_reported_at_resume(self):
        saved = self.folder / "saved"
        first = self.good(1, *SMALL, "--checkpoint-dir", saved)
        for world in (1, 2):
            again = self.good(world, *SMALL, "--checkpoint-dir", saved, "--resume", "auto")[0][1]
            step = int(self.names(saved)[-1].split("-")[1])
            self.assertEqual(again[1], f"training is already complete: it ended with step {step}")
            self.assertRegex(again[2], r"^epoch 2/2 test accuracy \d+\.\d\d % in \d+\.\d s$")
            self.assertEqual(again[-1], first[0][1][-1])

    def test_a_training_killed_at_any_moment_continues(self):
        whole = self.good(1, *SMALL, "--dtype", "float64")
        saved = self.folder / "saved"
        arguments = (*SMALL, "--dtype", "float64", "--checkpoint-dir", str(saved), "--checkpoint-every", "1", "--resume", "auto",
                     "--log-interval", "1")
        for lines in (2, 5, 9, 14):
            with Ranks(1, *arguments) as ranks:
                for _ in range(lines):
                    ranks.processes[0].stdout.readline()
                ranks.processes[0].kill()
        self.assertEqual(weights(self.good(1, *arguments)), weights(whole))

    def test_the_optimizer_of_all_ranks_is_in_one_file(self):
        for world in (1, 2):  # 7165 parameters: the second part is padded
            arguments = (*SMALL, "--model", "mlp", "--mlp-width", 9, "--mlp-depth", 1, "--dtype", "float64", "--optimizer", "adamw", "--max-steps", 2, "--checkpoint-dir")
            whole, sharded = self.folder / f"whole-{world}", self.folder / f"sharded-{world}"
            self.good(world, *arguments, whole)
            self.good(world, *arguments, sharded, "--zero", 1)
            for name in self.names(whole / "step-00000002"):
                self.assertEqual(*((folder / "step-00000002" / name).read_bytes() for folder in (whole, sharded)), name)

    def test_a_lost_rank_is_not_waited_for(self):
        arguments = ("--data", "synthetic", "--limit", "3000", "--epochs", "1000", "--log-interval", "1", "--zero", "1",
                     "--checkpoint-dir", str(self.folder / "saved"), "--checkpoint-every", "1")
        with Ranks(3, *arguments) as ranks:
            for _ in range(3):
                ranks.processes[0].stdout.readline()
            ranks.processes[1].kill()
            for rank in (0, 2):
                _, errors = ranks.processes[rank].communicate(timeout=40)
                self.assertEqual(ranks.processes[rank].returncode, 1)
                self.assertRegex(errors, rf"(^|\n)train: rank {rank} lost rank 1 .*\n$")
                self.assertNotIn("checkpoint step", errors)

    def test_divergence_keeps_the_good_checkpoints(self):
        saved, metrics = self.folder / "saved", self.folder / "metrics"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 1, "--checkpoint-keep", 3)
        self.good(2, *arguments, "--max-steps", 3)
        for code, _, errors in run(2, *map(str, (*arguments, "--resume", "auto", "--lr", 1e38, "--metrics-file", metrics))):
            self.assertEqual(code, 1)
            self.assertRegex(errors, r"(^|\n)train: the gradients of 5 steps in a row, up to step \d+, are not finite: training has diverged; try a smaller --lr\n$")
        steps = [json.loads(line) for line in metrics.read_text().splitlines() if '"kind":"step"' in line]
        dropped = {f"step-{record['step']:08d}" for record in steps if record["dropped"]}
        self.assertGreaterEqual(len(dropped), 4)
        self.assertIn("step-00000003", self.names(saved))
        self.assertEqual(dropped.intersection(self.names(saved)), set())

    def test_a_training_that_ends_with_dropped_steps_writes_no_final_files(self):
        saved, out = self.folder / "saved", self.folder / "out"
        arguments = ("--data", "synthetic", "--limit", 400, "--batch-size", 100, "--model", "mlp", "--mlp-width", 8,
                     "--checkpoint-dir", saved, "--checkpoint-keep", 1, "--export", out)
        self.good(1, *arguments)
        out.unlink()
        (code, _, errors), = run(1, *map(str, (*arguments, "--epochs", 2, "--lr", 1e30, "--resume", "auto")))
        self.assertEqual((code, errors), (1, "train: checkpoint step-00000008 not written: the step was dropped\n"
                                             "train: the gradients of 3 steps in a row, up to step 8, are not finite: training has "
                                             "diverged; try a smaller --lr\n"))
        self.assertEqual((self.names(saved), out.exists()), (["step-00000004"], False))

    def test_a_training_whose_last_step_is_dropped_is_no_success(self):
        # The weights are good, but they are not on the disk.
        arguments = (*SMALL, "--max-steps", 3, "--inject-nan", "1:3", "--export", self.folder / "out")
        self.good(2, *arguments)
        text = "train: the training is complete but its last checkpoint was not written: step 3 was dropped\n"
        ends = run(2, *map(str, (*arguments, "--checkpoint-every", 2, "--checkpoint-dir", self.folder / "saved")))
        self.assertEqual([(code, errors) for code, _, errors in ends],
                         [(1, "train: checkpoint step-00000003 not written: the step was dropped\n" + text), (1, text)])
        self.assertEqual(self.names(self.folder / "saved"), ["step-00000002"])
        self.assertTrue((self.folder / "out").exists())

    def test_a_training_that_ends_with_infinite_weights_fails_and_leaves_no_file(self):
        saved, out = self.folder / "saved", self.folder / "out"
        text = "the weights after step 1 are not finite: training has diverged; try a smaller --lr"
        for extra in ((), ("--zero", "1")):
            ends = run(2, *map(str, (*SMALL, *extra, "--model", "mlp", "--lr", 1e38, "--weight-decay", 1e6, "--max-steps", 1,
                                     "--checkpoint-dir", saved, "--export", out)))
            self.assertEqual([end[0] for end in ends], [1, 1])
            self.assertEqual(ends[0][2], "train: checkpoint step-00000001 not written: its weights or its optimizer's state are not "
                                         f"finite; training continues, without a checkpoint so far\ntrain: {text}\n")
            self.assertEqual(ends[1][2], f"train: {text}\n")
            self.assertEqual((self.names(saved), out.exists()), ([], False))

    def test_a_slow_disk_times_out_no_rank(self):
        # A checkpoint takes five flushes, so the second one waits longer than the ranks tolerate a silent rank.
        for extra in ((), ("--zero", "1")):
            saved = self.folder / f"saved{len(extra)}"
            with faulty_disk(DDP_FSYNC_DELAY_MS="800"):
                self.good(2, *SMALL, *extra, "--checkpoint-dir", saved, "--checkpoint-every", 1, "--max-steps", 2,
                          "--comm-timeout", "3s")
            self.assertEqual(self.names(saved), ["step-00000001", "step-00000002"])

    def test_a_file_that_opens_slowly_times_out_no_rank(self):
        for option, value, slow in (("--export", "out", "out"), ("--metrics-file", "out", "out"), ("--profile", "out", "out.rank0"),
                                    ("--sample-log", "", "rank-0")):
            folder = self.folder / option
            folder.mkdir()
            with self.subTest(option=option), faulty_disk(DDP_OPEN_DELAY=f"{folder}/{slow}"):
                self.good(2, *SMALL, "--max-steps", 1, "--comm-timeout", "2s", option, folder / value)

    def test_rank_0_without_the_checkpoint_that_another_rank_has_is_an_error(self):
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        self.good(1, *SMALL, "--checkpoint-dir", theirs, "--max-steps", 4)
        text = (f"train: --resume auto: rank 0 finds no checkpoint in {{}}, and rank 1 finds step-00000004 there; give a --checkpoint-dir that "
                "all nodes share, copy the checkpoint to rank 0's node, or remove it to start from scratch\n")
        def ends():
            return run(2, *map(str, (*SMALL, "--max-steps", 8, "--resume", "auto")), more={
                0: ("--checkpoint-dir", str(ours)), 1: ("--checkpoint-dir", str(theirs))})
        self.assertEqual(ends(), [(1, [], text.format(place)) for place in (ours, theirs)])
        self.good(1, *SMALL, "--checkpoint-dir", ours, "--max-steps", 2)
        text = text.replace("no checkpoint", "only step-00000002")
        self.assertEqual(ends(), [(1, [], text.format(place)) for place in (ours, theirs)])

    def test_ranks_that_name_different_checkpoints_do_not_train_together(self):
        saved, other = self.folder / "saved", self.folder / "other"
        arguments = (*SMALL, "--max-steps", 8)
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 2, "--max-steps", 4)
        self.good(1, *SMALL, "--checkpoint-dir", other, "--lr", 0.001, "--max-steps", 4)
        first, last = saved / "step-00000002", saved / "step-00000004"

        def ends(*paths, more=()):
            return run(2, *map(str, arguments), more={rank: ("--resume", str(path), *more) for rank, path in enumerate(paths)})
        advice = "; name the same checkpoint on all ranks, or remove the other one"
        for mine, theirs, found, told in ((first, last, first.name, last.name), (saved, first, last.name, first.name),
                                          (saved, other, last.name, f"another {last.name}")):
            text = f"train: --resume: rank 0 finds {found} in its path, and rank 1 finds {told} in its own{advice}\n"
            self.assertEqual(ends(mine, theirs), [(1, [], text)] * 2)
        text = "train: --resume is auto on rank 1 and a path on rank 0; give all ranks the same value\n"
        self.assertEqual(ends(saved, "auto", more=("--checkpoint-dir", str(saved))), [(1, [], text)] * 2)
        # Nodes may have a copy in another place, or none.
        copy = self.folder / "copy"
        shutil.copytree(saved, copy)
        for theirs in (copy, last, self.folder / "none"):
            self.assertEqual([(code, errors) for code, _, errors in ends(saved, theirs)], [(0, "")] * 2)

    def test_a_shorter_warm_up_at_resume_starts_the_cosine_at_its_end(self):
        arguments = ("--data", "synthetic", "--limit", 400, "--batch-size", 10, "--lr", 0.1, "--lr-schedule", "cosine", "--max-steps")
        rates = []
        for warmup, saved in ((5, "same"), (20, "longer")):
            metrics = self.folder / f"{saved}.jsonl"
            self.good(1, *arguments, 8, "--warmup-steps", warmup, "--checkpoint-dir", self.folder / saved)
            self.good(1, *arguments, 10, "--warmup-steps", 5, "--resume", self.folder / saved, "--metrics-file", metrics)
            rates.append([json.loads(line)["lr"] for line in metrics.read_text().splitlines() if '"kind":"step"' in line])
        self.assertEqual(len(rates[0]), 2)
        for same, longer in zip(*rates):
            self.assertAlmostEqual(same, longer, 12)

    @unittest.skipUnless(shutil.which("unshare") and shutil.which("mount"), "no unshare")
    def test_a_full_disk_does_not_end_training(self):
        disk = self.folder / "disk"
        disk.mkdir()
        # 700 KB hold two checkpoints of 240 KB, but no third one.
        script = (f"mount -t tmpfs -o size=700k tmpfs {disk} || exit 77; "
                  f"{train_run_test.TRAIN} --data synthetic --limit 100 --batch-size 5 --checkpoint-dir {disk}/c "
                  f"--checkpoint-every 2 --checkpoint-keep 9; code=$?; ls {disk}/c; exit $code")
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True,
                              text=True, timeout=60, check=False)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("cannot mount a tmpfs: " + done.stderr.strip())
        # All results are there, but a script that continues from the end must learn that the checkpoint is not on the disk.
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"^train: checkpoint step-0000000[46] not written: (write|create) .*: No space left on "
                                      r"device; training continues, the last good one is step-0000000[24]\n"
                                      r"train: the training is complete but its last checkpoint was not written: "
                                      r"(write|create) .*step-00000020.*: No space left on device\n$")
        self.assertRegex(done.stdout, r"(?s)test accuracy .*\nstep-00000002\n(step-00000004\n)?$")

    @unittest.skipUnless(shutil.which("unshare") and shutil.which("mount"), "no unshare")
    def test_a_full_disk_for_all_files_keeps_no_rank_waiting(self):
        disk = self.folder / "disk"
        disk.mkdir()
        port = free_port()
        ranks = " ".join(f"RANK={rank} $train >{self.folder}/{rank} 2>&1 & p{rank}=$!;" for rank in range(2))
        script = (f"mount -t tmpfs -o size=700k tmpfs {disk} || exit 77; export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}; "
                  f"train='{train_run_test.TRAIN} --data synthetic --limit 100 --batch-size 5 --zero 1 --checkpoint-dir {disk}/c "
                  f"--checkpoint-every 2 --checkpoint-keep 9'; {ranks} wait $p0; a=$?; wait $p1; exit $((10 * a + $?))")
        begin = time.monotonic()
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True,
                              text=True, timeout=100, check=False)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("cannot mount a tmpfs: " + done.stderr.strip())
        said = [(self.folder / str(rank)).read_text() for rank in range(2)]
        self.assertEqual(done.returncode, 11, said)
        self.assertLess(time.monotonic() - begin, 30, "--comm-timeout is 60 s")
        last = (r"train: the training is complete but its last checkpoint was not written: .*")
        self.assertRegex(said[0], r"train: checkpoint step-\d+ not written: .*; training continues, the last good one is step-\d+\n")
        for text in said:
            self.assertRegex(text, last)
        self.assertNotIn("did not appear", "".join(said))

    def test_an_error_in_a_file_of_rank_0_ends_all_ranks_alike(self):
        saved = self.folder / "saved"
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--max-steps", 1)
        last = saved / "step-00000001"
        good = (last / "model.safetensors").read_bytes()
        cut, foreign, none = (self.folder / name for name in ("cut", "foreign", "none"))
        cut.write_bytes(good[:-4])
        foreign.write_bytes(b"\x80\x02}q\x00" * 100)  # a pickle, as torch.save writes it

        def refusal(*arguments):
            ends = run(2, *map(str, (*SMALL, *arguments)))
            self.assertEqual(ends[0], ends[1])
            self.assertEqual(ends[0][:2], (1, []))
            return ends[0][2]
        self.assertRegex(refusal("--init-from", cut), rf"^train: {cut}: tensor \S+ lies outside the file; is the file truncated\?\n$")
        self.assertEqual(refusal("--init-from", foreign),
                         f"train: {foreign}: not a safetensors file: its header would be longer than the file\n")
        self.assertEqual(refusal("--init-from", none), f"train: --init-from {none}: No such file or directory; give a safetensors file on the node of rank 0\n")
        self.assertEqual(refusal("--checkpoint-dir", cut), f"train: --checkpoint-dir {cut}: Not a directory\n")
        self.assertEqual(refusal("--metrics-file", "/nonexistent/m"),
                         "train: --metrics-file /nonexistent/m: No such file or directory; give a file in a directory that "
                         "exists on the node of rank 0\n")
        optimizer = last / "optimizer.safetensors"
        optimizer.write_bytes(optimizer.read_bytes()[:-4])
        self.assertRegex(refusal("--resume", saved), rf"^train: {optimizer}: tensor \S+ lies outside the file; is the file truncated\?\n$")
        (last / "model.safetensors").write_bytes(good[:100])
        self.assertEqual(refusal("--resume", saved),
                         f"train: {last}/model.safetensors: not a safetensors file: its header would be longer than the file\n")

    def damaged(self, saved):
        """Damages the checkpoint of step 8 in several ways, one after the other, and restores it after each."""
        last, other, kept = saved / "step-00000008", saved / "step-00000004", self.folder / "kept"
        shutil.copytree(last, kept)

        def set_nan(name):
            content = (last / name).read_bytes()
            (last / name).write_bytes(content[:-4] + struct.pack("<f", float("nan")))
            sign(last)

        def flip_the_seed():
            path = last / "state.json"
            path.write_text(path.read_text().replace('"seed": 0,', '"seed": 1,'))
        reported = r"is damaged or does not belong to this checkpoint: its CRC-32 is [0-9a-f]{8}, state.json has [0-9a-f]{8}"
        for damage, name, text in (
                (lambda: flip_a_bit(last / "model.safetensors"), "model.safetensors", reported),
                (lambda: flip_a_bit(last / "optimizer.safetensors"), "optimizer.safetensors", reported),
                (lambda: flip_a_bit(last / "state.json"), "state.json", ".*"),
                (flip_the_seed, "state.json", r"is damaged: its CRC-32 is [0-9a-f]{8} and [0-9a-f]{8} was written"),
                (lambda: (last / "state.json").unlink(), "state.json", "No such file or directory"),
                (lambda: os.truncate(last / "state.json", 1 << 40), "state.json", "is larger than 64 MiB: train did not write this file"),
                (lambda: shutil.copy(other / "model.safetensors", last), "model.safetensors", reported),
                (lambda: (last / "optimizer.safetensors").unlink(), "optimizer.safetensors", ".*"),
                (lambda: grow(last / "model.safetensors"), "model.safetensors", "tensor huge is unknown to the convnet"),
                (lambda: grow(last / "optimizer.safetensors"), "optimizer.safetensors", "has a tensor huge, which this optimizer "
                                                                                        "does not have"),
                (lambda: set_nan("model.safetensors"), "model.safetensors", "tensor fc.bias has a number that is not finite"),
                (lambda: set_nan("optimizer.safetensors"), "optimizer.safetensors", "tensor velocity has a number that is not finite")):
            damage()
            yield rf"train: (open )?{last}/{name}: {text}"
            shutil.rmtree(last)
            shutil.copytree(kept, last)

    def test_a_damaged_checkpoint_is_refused(self):
        saved = self.folder / "saved"
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 4, "--max-steps", 8)
        # The last path gets the other damages.
        for text, path in zip(self.damaged(saved), itertools.chain((saved / "step-00000008", f"{saved}/step-00000008//"), itertools.repeat(saved))):
            (code, lines, errors), = run(1, *map(str, (*SMALL, "--resume", path)))
            self.assertEqual((code, lines), (1, []))
            self.assertRegex(errors, rf"^{text}; --checkpoint-dir {saved} --resume auto resumes from the last good checkpoint\n$")
        flip_a_bit(saved / "step-00000004" / "model.safetensors")
        flip_a_bit(saved / "step-00000008" / "model.safetensors")
        for code, lines, errors in run(2, *map(str, (*SMALL, "--checkpoint-dir", saved, "--resume", "auto"))):
            self.assertEqual((code, lines), (1, []))
            self.assertRegex(errors, rf"^train: {saved}/step-00000008/model.safetensors: is damaged .*; none of the 2 checkpoints in "
                                     rf"{saved} is good; to start over, give another --checkpoint-dir\n$")
        # Without a usable checkpoint no directory was renamed.
        self.assertEqual(self.names(saved), ["step-00000004", "step-00000008"])

    def test_a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--max-steps", 2)
        self.good(1, *arguments)
        for extra in (("--resume", "auto"), ("--resume", saved), ()):
            with faulty_disk(DDP_UNREADABLE=str(saved)):
                (code, lines, errors), = run(1, *map(str, (*arguments, *extra)))
            self.assertEqual((code, lines, errors), (1, [], f"train: read {saved}: Input/output error\n"))

    def test_without_any_state_json_training_does_not_start_over(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 4, "--max-steps", 8)
        self.good(1, *arguments)
        for path in saved.glob("*/state.json"):
            path.unlink()
        (code, lines, errors), = run(1, *map(str, (*arguments, "--resume", "auto")))
        self.assertEqual((code, lines, errors), (1, [], f"train: open {saved}/step-00000008/state.json: No such file or directory; none "
                                                        f"of the 2 checkpoints in {saved} is good; to start over, give another --checkpoint-dir\n"))

    def test_training_continues_from_the_last_good_checkpoint(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 4, "--max-steps", 8)
        whole = self.good(2, *arguments)
        # The damaged checkpoint is written again, even on a disk that cannot exchange two names.
        for number, text in enumerate(self.damaged(saved)):
            fault = {"DDP_NO_EXCHANGE": "1"} if number % 2 else {}
            with faulty_disk(**fault):
                first, second = run(2, *map(str, (*arguments, "--resume", "auto")))
            self.assertEqual((first[0], second[0], second[2]), (0, 0, ""))
            self.assertRegex(first[2], rf"^{text}; renamed to {saved}/step-00000008.damaged; resuming from the last good checkpoint, "
                                       rf"{saved}/step-00000004\n$")
            self.assertEqual(weights([first, second]), weights(whole))
            self.assertEqual(self.names(saved), ["step-00000004", "step-00000008", "step-00000008.damaged"])
            shutil.rmtree(saved / "step-00000008.damaged")
            if number < 2:
                self.assertEqual(weights(self.good(2, *arguments, "--resume", saved / "step-00000008")), weights(whole))

    def test_skipped_damaged_checkpoints_are_neither_counted_nor_removed(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--resume", "auto")
        self.good(1, *arguments, "--checkpoint-every", 1, "--checkpoint-keep", 3, "--max-steps", 6)
        (saved / "step-00000006.damaged").mkdir()
        (saved / "step-00000005.damaged").symlink_to("/nonexistent/x")
        for step in (5, 6):
            flip_a_bit(saved / f"step-0000000{step}" / "model.safetensors")
        (code, _, errors), = run(1, *map(str, (*arguments, "--checkpoint-every", 10, "--checkpoint-keep", 2, "--max-steps", 10)))
        self.assertEqual(code, 0)
        end = f"; resuming from the last good checkpoint, {saved}/step-00000004"
        self.assertRegex(errors, rf"^train: {saved}/step-00000006/.*; renamed to {saved}/step-00000006.damaged-2{end}\n"
                                 rf"train: {saved}/step-00000005/.*; renamed to {saved}/step-00000005.damaged-2{end}\n$")
        self.assertEqual(self.names(saved), ["step-00000004", "step-00000005.damaged", "step-00000005.damaged-2", "step-00000006.damaged", "step-00000006.damaged-2",
                                             "step-00000010"])
        self.assertEqual(self.names(saved / "step-00000006.damaged-2"), ["model.safetensors", "optimizer.safetensors", "state.json"])

    def test_an_undamaged_checkpoint_is_not_skipped(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 4, "--max-steps", 8)
        self.good(1, *arguments)
        last = saved / "step-00000008"
        names = [path.name for path in sorted(saved.iterdir())]
        state, model = (last / "state.json").read_text(), last / "model.safetensors"

        def error():
            (code, lines, errors), = run(1, *map(str, (*arguments, "--resume", "auto")))
            self.assertEqual((code, lines, [path.name for path in sorted(saved.iterdir())]), (1, [], names))
            return errors
        model.rename(self.folder / "model")
        model.symlink_to(model)
        self.assertEqual(error(), f"train: open {model}: Too many levels of symbolic links\n")
        (self.folder / "model").rename(model)
        other = re.sub(r'"format":\s*\d+', '"format":99', state)
        (last / "state.json").write_text(other)
        sign(last)
        self.assertRegex(error(), rf"^train: {last}/state.json: is of format 99 and this train reads format \d+; use the version "
                                  rf"of train that wrote it\n$")

    def test_a_checkpoint_with_the_name_of_another_step_is_skipped(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 4, "--resume", "auto", "--max-steps")
        self.good(1, *arguments, 8)
        shutil.copytree(saved / "step-00000004", saved / "step-00000030")
        (code, _, errors), = run(1, *map(str, (*arguments, 12)))
        self.assertEqual((code, errors), (0, f"train: {saved}/step-00000030: is the checkpoint of step 4, which is not the step in "
                                             f"its name; renamed to "
                                             f"{saved}/step-00000030.damaged; resuming from the last good checkpoint, "
                                             f"{saved}/step-00000008\n"))

    def test_a_model_of_another_size_is_not_taken_for_damage(self):
        saved = self.folder / "saved"
        arguments = (*SMALL, "--model", "mlp", "--checkpoint-dir", saved, "--resume", "auto")
        self.good(1, *arguments, "--mlp-width", 8, "--mlp-depth", 1, "--max-steps", 2)
        for option, value, there in (("--mlp-width", 9, 8), ("--mlp-depth", 2, 1)):
            for resume in ("auto", saved):
                size = {"--mlp-width": 8, "--mlp-depth": 1} | {option: value}
                (code, _, errors), = run(1, *map(str, (*SMALL, "--model", "mlp", "--checkpoint-dir", saved, "--resume", resume,
                                                       *itertools.chain(*size.items()), "--max-steps", 4)))
                self.assertEqual((code, errors), (1, f"train: cannot resume from {saved}/step-00000002: {option} is {there} there and {value} "
                                                     "here; resume with the same options and data, or name another checkpoint\n"))
        # As if a later one had been made with other options: the earlier one fits.
        self.good(1, *SMALL, "--model", "mlp", "--mlp-width", 9, "--mlp-depth", 1, "--checkpoint-dir", self.folder / "other", "--max-steps", 3)
        shutil.copytree(self.folder / "other" / "step-00000003", saved / "step-00000003")
        (code, _, errors), = run(1, *map(str, (*arguments, "--mlp-width", 8, "--mlp-depth", 1, "--max-steps", 4)))
        self.assertEqual((code, errors), (1, f"train: cannot resume from {saved}/step-00000003: --mlp-width is 9 there and 8 here; resume "
                                             "with the same options and data, or name another checkpoint\n"))
        self.assertEqual(self.names(saved), ["step-00000002", "step-00000003"])
        # The first checkpoints of this format do not have the size.
        shutil.rmtree(saved / "step-00000003")
        state = saved / "step-00000002" / "state.json"
        state.write_text(re.sub(r'"mlp_(width|depth)":\s*\d+,', "", state.read_text()))
        sign(saved / "step-00000002")
        self.good(1, *arguments, "--mlp-width", 8, "--mlp-depth", 1, "--max-steps", 4)

    def test_a_checkpoint_that_does_not_fit_is_refused(self):
        saved = self.folder / "saved"
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--max-steps", 2)
        last = f"{saved}/step-00000002"

        def refusal(*arguments):
            (code, _, errors), = run(1, *map(str, (*SMALL, *arguments)))
            self.assertEqual(code, 1)
            return errors
        advice = "; resume with the same options and data, or name another checkpoint"
        self.assertEqual(refusal("--resume", saved, "--seed", 4),
                         f"train: cannot resume from {last}: --seed is 0 there and 4 here{advice}\n")
        self.assertEqual(refusal("--resume", saved, "--dtype", "float64"),
                         f"train: cannot resume from {last}: --dtype is float32 there and float64 here{advice}\n")
        self.assertEqual(refusal("--resume", saved, "--model", "mlp"),
                         f"train: cannot resume from {last}: --model is convnet there and mlp here{advice}\n")
        self.assertEqual(refusal("--resume", self.folder), f"train: {self.folder}: is not a checkpoint and contains none (step-…)\n")
        good = pathlib.Path(last, "state.json").read_text()
        pathlib.Path(last, "state.json").write_text(re.sub(r",\s*[^,]+\]", "]", good))  # drops the last number
        sign(pathlib.Path(last))
        count = len(json.loads(good)["running_statistics"]) - 1
        self.assertEqual(refusal("--resume", saved), f"train: {last}/state.json: has {count} running_statistics; 1 rank of this model "
                                                     f"have {count + 1}\n")
        pathlib.Path(last, "state.json").write_text(good)
        optimizer = pathlib.Path(last, "optimizer.safetensors")
        good = optimizer.read_bytes()
        optimizer.write_bytes(good.replace(b'"velocity"', b'"velocitx"'))
        sign(pathlib.Path(last))
        self.assertEqual(refusal("--resume", saved), f"train: {optimizer}: has no tensor velocity\n")
        pathlib.Path(last, "state.json").write_text("{")
        self.assertEqual(refusal("--resume", saved), f"train: {last}/state.json: is not a JSON object; is it truncated?\n")


if __name__ == "__main__":
    train_run_test.TRAIN = sys.argv.pop(1)
    FAULT_DISK = sys.argv.pop(1)
    unittest.main(verbosity=2)
