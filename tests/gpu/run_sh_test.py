#!/usr/bin/env python3
"""The script that `./dev gpu` packs, with programs that are played."""
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("run.sh")


class RunSh(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        (self.place / "bin").mkdir()
        shutil.copy(SCRIPT, self.place)

    def program(self, name, text):
        path = self.place / "bin" / name
        path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
        path.chmod(0o755)

    def run_it(self, **environment):
        # No tools of the machine's own: the same steps are skipped everywhere.
        done = subprocess.run(["bash", str(self.place / "run.sh")], cwd="/", capture_output=True, text=True, timeout=100,
                              env={"PATH": "/usr/bin:/bin", **environment}, check=False)
        results = json.loads((self.place / "results.json").read_text(encoding="utf-8"))
        return done, results, {step["step"]: step for step in results["steps"]}

    def test_figures_reasons_and_the_exit_code(self):
        self.program("gpu_parity", "echo '{\"check\":\"parity\",\"ok\":true}'\n")
        self.program("gpu_check", 'case $1 in replay) echo "it said \\"no\\"\tand \\\\ went" >&2; exit 3;; '
                                  "train) echo 'skipped: no GPU' >&2; exit 77;; speed) exit 0;; *) exit 2;; esac\n")
        done, results, steps = self.run_it()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(steps["parity"]["figures"], {"check": "parity", "ok": True})
        self.assertEqual((steps["parity"]["state"], steps["speed"]["state"]), ("ok", "ok"))
        self.assertEqual((steps["replay"]["state"], steps["replay"]["reason"]),
                         ("failed", 'exit code 3: it said "no" and \\ went'))
        self.assertEqual((steps["train"]["state"], steps["train"]["reason"]), ("skipped", "no GPU"))
        self.assertEqual((steps["nccl"]["state"], steps["nccl"]["reason"]), ("skipped", "train is not here"))
        self.assertEqual(results["failed"], 1)

    def test_where_everything_is_skipped_so_is_the_whole(self):
        for name in ("gpu_parity", "gpu_check"):
            self.program(name, "echo 'skipped: no GPU' >&2\nexit 77\n")
        self.program("train", "echo 'train: no GPU' >&2\nexit 2\n")
        done, results, steps = self.run_it()
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertEqual((results["ok"], results["failed"]), (0, 0))
        self.assertEqual(results["skipped"], len(steps))
        for name in ("device-train", "nccl"):
            self.assertEqual((steps[name]["state"], steps[name]["reason"]), ("skipped", "train: no GPU"))

    def test_two_ranks_must_give_the_same_weights_over_nccl_as_over_tcp(self):
        for name in ("gpu_parity", "gpu_check"):
            self.program(name, "exit 77\n")
        self.program("train", 'case "$*" in *nccl*) way=a;; *) way=${OTHER:-a};; esac\n'
                              'echo "weights equal on $WORLD_SIZE ranks: $way"; echo "test accuracy 50.0 % (1/2)"\n')
        _, _, steps = self.run_it()
        self.assertEqual((steps["nccl"]["state"], steps["nccl"]["figures"]), ("ok", {"nccl": "a", "tcp": "a"}))
        self.assertEqual(steps["device-train"]["state"], "ok")
        _, _, steps = self.run_it(OTHER="b")
        self.assertEqual((steps["nccl"]["state"], steps["nccl"]["reason"]),
                         ("failed", "exit code 1: other weights over NCCL than over TCP"))

    def test_the_time_is_bounded(self):
        for name in ("gpu_parity", "gpu_check"):
            self.program(name, '[ "$1" ] || exit 2\nexec sleep 100\n')
        done, _, steps = self.run_it(DDP_GPU_SECONDS="2")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(steps["parity"]["reason"], "^not ready after [12] seconds$")
        self.assertEqual(steps["replay"]["reason"], "the 2 seconds are over")


if __name__ == "__main__":
    unittest.main()
