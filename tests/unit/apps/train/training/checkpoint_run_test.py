#!/usr/bin/env python3
"""Checkpoints of the built `train`: the same bits after an interruption, other numbers of ranks, a full disk, kills.

usage: checkpoint_run_test.py PATH_OF_TRAIN [unittest options]"""
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train_run_test
from train_run_test import Ranks, run

# 41 steps an epoch; kernels under a sanitizer do a few hundred images a second.
SMALL = ("--data", "synthetic", "--limit", "163", "--batch-size", "4", "--epochs", "2")


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
                # In the middle of the first epoch, at the end of the first, in the second.
                per_epoch = -(-163 // (4 * world))
                for step in (3, per_epoch, per_epoch + 2):
                    self.good(world, *SMALL, *extra, "--checkpoint-dir", folder, "--resume", "auto", "--max-steps", step)
                    self.assertEqual(self.names(folder)[-1], f"step-{step:08d}")
                end = self.good(world, *SMALL, *extra, "--resume", folder)
                self.assertEqual(weights(end), weights(whole))
                self.assertEqual(end[0][1][-1], whole[0][1][-1])
                self.assertIn(f"going on from {folder}/step-{per_epoch + 2:08d}: step {per_epoch + 2}, epoch 2, ", end[0][1][0])

    def samples(self, folder, epoch):
        """Numbers of one epoch's samples over all ranks."""
        seen = collections.Counter()
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                head, numbers = line.split(":")
                if head.split()[0] == str(epoch):
                    seen.update(map(int, numbers.split()))
        return seen

    def test_another_number_of_ranks_goes_on_with_what_is_left(self):
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
            self.assertEqual(sum(first.values()), 164)  # 63 left for 2 ranks: one repeated
            second = self.samples(logs[2], 1)
            self.assertEqual((set(second), sum(second.values())), (set(range(163)), 164))
            state = json.loads((saved / self.names(saved)[-1] / "state.json").read_text())
            self.assertEqual((state["world_size"], state["epoch"]), (2, 2))

    def test_the_last_ones_stay_and_nothing_unfinished(self):
        saved = self.folder / "saved"
        saved.mkdir()
        (saved / ".tmp-17-step-00000099").mkdir()
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--checkpoint-every", 5, "--checkpoint-keep", 2, "--max-steps", 22)
        self.assertEqual(self.names(saved), ["step-00000020", "step-00000022"])
        self.assertEqual(self.names(saved / "step-00000022"),
                         ["model.safetensors", "optim-00000-of-00001.safetensors", "state.json"])
        (saved / "step-00000099").mkdir()  # somebody's own
        self.good(2, *SMALL, "--zero", 1, "--checkpoint-dir", saved, "--resume", "auto", "--max-steps", 30)
        self.assertEqual(self.names(saved / "step-00000030"),
                         ["model.safetensors", "optim-00000-of-00002.safetensors", "optim-00001-of-00002.safetensors",
                          "state.json"])
        ends = run(2, *SMALL, "--checkpoint-dir", str(saved))
        self.assertEqual(ends[0], ends[1])
        self.assertEqual(ends[0], (1, [], f"train: --checkpoint-dir {saved} holds step-00000030 of another training, while this one "
                                          "begins after step 0; give another --checkpoint-dir, go on from there with --resume auto, "
                                          "or remove the later checkpoints\n"))
        self.assertEqual(self.names(saved), ["step-00000020", "step-00000022", "step-00000030", "step-00000099"])

    def test_a_checkpoint_is_an_export(self):
        saved = self.folder / "saved"
        out = self.folder / "out.safetensors"
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--export", out)
        self.assertEqual((saved / self.names(saved)[-1] / "model.safetensors").read_bytes(), out.read_bytes())

    def test_the_last_checkpoint_is_of_all_nodes(self):
        # Between two averages, at one, and at the end of all epochs; a mean of three is not exact. The mlp has no
        # running statistics, which a checkpoint and a test add up in their own order.
        for world, nodes, steps in ((4, 2, 5), (4, 2, 4), (3, 3, 5), (3, 3, None)):
            with self.subTest(nodes=nodes, steps=steps):
                saved = self.folder / f"saved-{nodes}-{steps}"
                out = self.folder / f"out-{nodes}-{steps}"
                arguments = (*SMALL, "--model", "mlp", "--lr", 0.05, "--sync-every-inter", 4, *(("--max-steps", steps) if steps else ()))
                end = self.good(world, *arguments, "--checkpoint-dir", saved, "--export", out, nodes=nodes)
                self.assertEqual((saved / self.names(saved)[-1] / "model.safetensors").read_bytes(), out.read_bytes())
                again = self.good(world, *arguments, "--checkpoint-dir", saved, "--resume", "auto", nodes=nodes)
                self.assertEqual(again[0][1][-1], end[0][1][-1])

    def test_a_training_that_is_complete_says_so(self):
        saved = self.folder / "saved"
        first = self.good(1, *SMALL, "--checkpoint-dir", saved)
        for world in (1, 2):
            again = self.good(world, *SMALL, "--checkpoint-dir", saved, "--resume", "auto")[0][1]
            step = int(self.names(saved)[-1].split("-")[1])
            self.assertEqual(again[1], f"nothing is left to train: the training ended with step {step}")
            self.assertRegex(again[2], r"^epoch 2/2 test accuracy \d+\.\d\d % in \d+\.\d s$")
            self.assertEqual(again[-1], first[0][1][-1])

    def test_killed_in_any_moment_it_goes_on(self):
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

    def test_a_lost_rank_s_part_is_not_waited_for(self):
        arguments = ("--data", "synthetic", "--limit", "3000", "--epochs", "1000", "--log-interval", "1", "--zero", "1",
                     "--checkpoint-dir", str(self.folder / "saved"), "--checkpoint-every", "1")
        with Ranks(3, *arguments) as ranks:
            for _ in range(3):
                ranks.processes[0].stdout.readline()
            ranks.processes[1].kill()
            for rank in (0, 2):
                _, errors = ranks.processes[rank].communicate(timeout=40)  # a part is waited for 60 s
                self.assertEqual(ranks.processes[rank].returncode, 1)
                self.assertRegex(errors, rf"(^|\n)train: rank {rank} lost rank 1 .*\n$")

    @unittest.skipUnless(shutil.which("unshare") and shutil.which("mount"), "no unshare")
    def test_a_full_disk_leaves_training_alone(self):
        disk = self.folder / "disk"
        disk.mkdir()
        # 700 KB hold two checkpoints of 240 KB and no third beside them.
        script = (f"mount -t tmpfs -o size=700k tmpfs {disk} || exit 77; "
                  f"{train_run_test.TRAIN} --data synthetic --limit 100 --batch-size 5 --checkpoint-dir {disk}/c "
                  f"--checkpoint-every 2 --checkpoint-keep 9; code=$?; ls {disk}/c; exit $code")
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True,
                              text=True, timeout=60, check=False)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("no tmpfs of its own: " + done.stderr.strip())
        # All results are there, but a script that goes on from the end must learn that it is not on the disk.
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"^train: checkpoint step-0000000[46] not written: (write|create) .*: No space left on device; "
                                      r"training goes on, the last good one is step-0000000[24]\n"
                                      r"train: the training is complete but its last checkpoint was not written: "
                                      r"(write|create) .*step-00000020.*: No space left on device\n$")
        self.assertRegex(done.stdout, r"(?s)test accuracy .*\nstep-00000002\n(step-00000004\n)?$")

    @unittest.skipUnless(shutil.which("unshare") and shutil.which("mount"), "no unshare")
    def test_a_full_disk_of_all_parts_keeps_no_rank_waiting(self):
        disk = self.folder / "disk"
        disk.mkdir()
        port = train_run_test.free_port()
        ranks = " ".join(f"RANK={rank} $train >{self.folder}/{rank} 2>&1 & p{rank}=$!;" for rank in range(2))
        script = (f"mount -t tmpfs -o size=700k tmpfs {disk} || exit 77; export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}; "
                  f"train='{train_run_test.TRAIN} --data synthetic --limit 100 --batch-size 5 --zero 1 --checkpoint-dir {disk}/c "
                  f"--checkpoint-every 2 --checkpoint-keep 9'; {ranks} wait $p0; a=$?; wait $p1; exit $((10 * a + $?))")
        begin = time.monotonic()
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True,
                              text=True, timeout=100, check=False)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("no tmpfs of its own: " + done.stderr.strip())
        said = [(self.folder / str(rank)).read_text() for rank in range(2)]
        self.assertEqual(done.returncode, 11, said)
        self.assertLess(time.monotonic() - begin, 30, "--comm-timeout is 60 s")
        last = (r"train: the training is complete but its last checkpoint was not written: .*")
        self.assertRegex(said[0], r"train: checkpoint step-\d+ not written: .*; training goes on, the last good one is step-\d+\n")
        for text in said:
            self.assertRegex(text, last)
        self.assertNotIn("did not appear", "".join(said))

    def test_a_file_that_only_rank_0_reads_ends_all_ranks_with_the_same_words(self):
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
        self.assertRegex(refusal("--init-from", cut), rf"^train: {cut}: tensor \S+ lies outside the file; was it cut\?\n$")
        self.assertEqual(refusal("--init-from", foreign),
                         f"train: {foreign}: is no safetensors file: its header would be longer than the file\n")
        self.assertEqual(refusal("--init-from", none), f"train: open {none}: No such file or directory\n")
        self.assertEqual(refusal("--checkpoint-dir", cut), f"train: cannot write into --checkpoint-dir {cut}\n")
        self.assertEqual(refusal("--metrics-file", "/nonexistent/m"),
                         "train: create /nonexistent/m: No such file or directory\n")
        optimizer = last / "optim-00000-of-00001.safetensors"
        optimizer.write_bytes(optimizer.read_bytes()[:-4])
        self.assertRegex(refusal("--resume", saved), rf"^train: {optimizer}: tensor \S+ lies outside the file; was it cut\?\n$")
        (last / "model.safetensors").write_bytes(good[:100])
        self.assertEqual(refusal("--resume", saved),
                         f"train: {last}/model.safetensors: is no safetensors file: its header would be longer than the file\n")

    def test_what_does_not_fit_is_refused(self):
        saved = self.folder / "saved"
        self.good(1, *SMALL, "--checkpoint-dir", saved, "--max-steps", 2)
        last = f"{saved}/step-00000002"

        def refusal(*arguments):
            (code, _, errors), = run(1, *map(str, (*SMALL, *arguments)))
            self.assertEqual(code, 1)
            return errors
        self.assertEqual(refusal("--resume", saved, "--seed", 4),
                         f"train: cannot go on from {last}: --seed is 0 there and 4 here\n")
        self.assertEqual(refusal("--resume", saved, "--dtype", "float64"),
                         f"train: cannot go on from {last}: --dtype is float32 there and float64 here\n")
        self.assertEqual(refusal("--resume", self.folder), f"train: {self.folder}: is no checkpoint and holds none (step-…)\n")
        good = pathlib.Path(last, "state.json").read_text()
        state = json.loads(good)
        state["running_statistics"].pop()
        pathlib.Path(last, "state.json").write_text(json.dumps(state))
        count = len(state["running_statistics"])
        self.assertEqual(refusal("--resume", saved), f"train: {last}/state.json: has {count} running_statistics; 1 rank of this model "
                                                     f"have {count + 1}\n")
        pathlib.Path(last, "state.json").write_text(good)
        optimizer = pathlib.Path(last, "optim-00000-of-00001.safetensors")
        good = optimizer.read_bytes()
        optimizer.write_bytes(good.replace(b'"velocity"', b'"velocitx"'))
        self.assertEqual(refusal("--resume", saved), f"train: {optimizer}: has no tensor velocity\n")
        optimizer.write_bytes(good)
        parts = self.folder / "parts"
        self.good(2, *SMALL, "--zero", 1, "--checkpoint-dir", parts, "--max-steps", 1)
        first, second = (parts / "step-00000001" / f"optim-0000{i}-of-00002.safetensors" for i in range(2))
        shutil.copy(first, second)
        self.assertRegex(refusal("--resume", parts), rf"^train: {second}: begins with parameter 0 where the part before ends with \d+; "
                                                     r"is it another part's copy\?\n$")
        pathlib.Path(last, "state.json").write_text("{")
        self.assertEqual(refusal("--resume", saved), f"train: {last}/state.json: is no JSON object; was it cut?\n")


if __name__ == "__main__":
    train_run_test.TRAIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
