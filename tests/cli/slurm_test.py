#!/usr/bin/env python3
"""Tests jobs inside a Slurm allocation whose nodes srun starts, with one slurmctld and several slurmd on this machine."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import slurm_cluster
from tests.support.launch import DDPLAUNCH, LaunchTest, live_processes_with, main, sender, wait_until
from tests.support.ports import free_port

NODES = 3
MISSING = next((name for name in (*slurm_cluster.PROGRAMS, "salloc", "sbatch", "scancel", "scontrol")
                if not shutil.which(name, path=slurm_cluster.PATH)), None)
PYTHON = "/usr/bin/python3" if pathlib.Path("/usr/bin/python3").exists() else sys.executable


@unittest.skipIf(MISSING, f"no {MISSING} here (apt-get install slurm-wlm)")
class InSlurm(LaunchTest):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.mkdtemp(prefix="ddp-slurm-")
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        try:
            cls.slurm = slurm_cluster.SlurmCluster(cls.scratch, NODES, ports=[free_port() for _ in range(1 + NODES)],
                                                   settings="KillWait=5\nSchedulerParameters=sched_interval=2\n")
        except RuntimeError as error:  # slurmd cannot run on this kernel or in this container
            raise unittest.SkipTest(str(error)) from None
        cls.addClassCleanup(cls.slurm.stop)

    def setUp(self):
        super().setUp()
        self.env = {k: v for k, v in self.env.items() if not k.startswith("SLURM")}
        self.env.update(PATH=slurm_cluster.PATH, SLURM_CONF=str(self.slurm.conf))
        self.addCleanup(self.no_job_left)

    def no_job_left(self):
        queue = lambda: subprocess.run(["squeue", "-h", "-o", "%i %T"], env=self.env, capture_output=True, text=True).stdout
        for line in queue().splitlines():
            subprocess.run(["scancel", line.split()[0]], env=self.env, check=False)
        self.assertTrue(wait_until(lambda: queue() == ""), queue())

    # The command prefix of LaunchTest's runs.
    allocation = ()

    def command(self, *args):
        return [*self.allocation, *super().command(*args)]

    def salloc(self, nodes=2, *options):
        self.allocation = ["salloc", "--quiet", f"--nodes={nodes}", *options]

    def batch(self, body, *options):
        """Starts a batch script, whose output goes to `self.batch_out`. Returns its job id."""
        self.runs += 1
        self.batch_out = self.dir / f"batch{self.runs}.out"
        script = self.script(f"batch{self.runs}.sh", f"#!/bin/bash\n{body}\n")
        done = subprocess.run(["sbatch", "--parsable", f"--output={self.batch_out}", "--open-mode=append", f"--chdir={self.dir}",
                               *options, script], env=self.env, capture_output=True, text=True, check=True)
        return done.stdout.strip().split(";")[0]

    def state(self, job):
        shown = subprocess.run(["scontrol", "--oneliner", "show", "job", job], env=self.env, capture_output=True, text=True).stdout
        found = re.search(r"JobState=(\S+).*ExitCode=(\d+):(\d+)", shown)
        return found.groups() if found else ("GONE", "", "")

    def wait_for(self, job, *states, seconds=40):
        wait_until(lambda: self.state(job)[0] in states, seconds)
        self.assertIn(self.state(job)[0], states, self.batch_text())
        return self.state(job)

    def batch_text(self):
        return self.batch_out.read_text() if self.batch_out.exists() else ""

    def test_nodes_of_the_allocation_are_the_default(self):
        self.salloc(2)
        done = self.run_job("--nproc-per-node", 2, "--label", "", "sh", "-c",
                            'echo $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE; env | grep ^SLURM >&2; exit 0')
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 0 0 4", "1 1 0 4", "2 0 1 4", "3 1 1 4"])
        self.assertRegex(done.err, r"^ddplaunch: in Slurm job \d+: its nodes are started with srun; --launcher local runs on this "
                                   r"machine only\n")
        self.assertNotIn("SLURM_", "".join(line for line in done.err.splitlines(True) if "in Slurm job" not in line))

    def test_output_is_complete_and_bytes_are_kept(self):
        self.salloc(2)
        script = self.script("bytes.py", "import sys\nfor i in range(20000):\n"
                             "    sys.stdout.buffer.write(b'%d \\xff\\x00\\x03\\x04\\r ' % i + b'x' * 60 + b'\\n')\n")
        done = self.run_job("--launcher", "slurm", "--nproc-per-node", 1, "--quiet", "--python", PYTHON, script)
        self.assert_code(done, 0)
        for rank in (0, 1):
            raw = (self.job_dir / "attempt_0" / f"rank_0000{rank}.stdout").read_bytes()
            self.assertEqual(raw, b"".join(b"%d \xff\x00\x03\x04\r " % i + b"x" * 60 + b"\n" for i in range(20000)))

    def test_environment_arrives_as_data_and_srun_adds_none(self):
        self.salloc(2)
        self.env.update(UNUSUAL="a\n'b\" $x", TMPDIR=str(self.dir), NCCL_SOCKET_IFNAME="master0")
        done = self.run_job("--quiet", "--nproc-per-node", 1, "--label", "", PYTHON, "-c",
                            f"import os; e = os.environ; print(ascii(e['UNUSUAL']), e.get('TMPDIR') == '{self.dir}', e.get('NCCL_SOCKET_IFNAME'),"
                            " e['HOME'], len(os.sched_getaffinity(0)))")
        self.assert_code(done, 0)
        self.assertEqual(done.out.splitlines(), [f"{ascii(self.env['UNUSUAL'])} False =lo {self.env['HOME']} "
                                                 f"{len(os.sched_getaffinity(0))}"] * 2)

    def test_exit_code_of_the_failing_worker_and_nothing_left(self):
        self.salloc(3)
        done = self.run_job("--quiet", "--nproc-per-node", 2, "sh", "-c",
                            'if [ $RANK = 4 ]; then echo the cause >&2; exit 9; fi; setsid sleep 100 & sleep 100')
        self.assert_code(done, 9)
        self.assertEqual(done.err.splitlines()[-1], "ddplaunch: exit 9: rank 4 on n002 exited 9")

    def test_a_subset_of_the_nodes(self):
        self.salloc(3)
        done = self.run_job("--quiet", "--launcher", "slurm", "--host", "n002,n001", "--nproc-per-node", 1, "--label", "{host} ",
                            "sh", "-c", "echo $RANK")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["n001 1", "n002 0"])
        done = self.run_job("--quiet", "--launcher", "slurm", "--host", "n000,elsewhere", "--nproc-per-node", 1, "true")
        self.assert_code(done, 111)
        self.assertRegex(done.err, "node elsewhere: srun ended with exit status [0-9]+ before the search for ddplaunchd began; its "
                                   "last lines:")
        self.assertIn("srun: error", done.err)

    def test_setup_and_workers_use_the_whole_node(self):
        # Options of the batch job for its tasks must not narrow the agent's step.
        self.salloc(2, "--ntasks-per-node=1", "--cpus-per-task=1")
        self.env.update(SLURM_CPUS_PER_TASK="1", SLURM_GPUS_PER_TASK="1", SLURM_NTASKS="2", SLURM_EXACT="1")
        done = self.run_job("--quiet", "--nproc-per-node", 2, "--label", "", "--setup", "export FROM=setup", "sh", "-c", "echo $FROM")
        self.assert_code(done, 0)
        self.assertEqual(done.out, "setup\n" * 4)

    def test_dry_run_and_refusals(self):
        self.salloc(2)
        done = self.run_job("--dry-run", "--nproc-per-node", 3, "true")
        self.assert_code(done, 0)
        self.assertRegex(done.out, r"(?m)^with srun$")
        self.assertRegex(done.out, r"(?m)^1 +n001 .* 3-5")
        self.allocation = ["srun", "--quiet", "--nodes=2", "--ntasks=4"]
        done = self.run_job("--dry-run", "true")
        self.assertEqual(done.code, 2, done)
        self.assertIn("srun has started 4 copies of this program, but one ddplaunch starts all nodes", done.err)

    def test_srun_starts_one_ddplaunch_per_node(self):
        self.env.pop("MASTER_ADDR", None)
        self.allocation = ["srun", "--quiet", "--nodes=2", "--ntasks-per-node=1"]
        done = self.run_job("--dry-run", "true")
        self.assertEqual(done.code, 0, done)
        self.assertRegex(done.out, r"(?m)^one ddplaunch on each node; they connect to n000 port 2[0-7]\d{3}$")
        done = self.run_job("true")
        self.assertEqual(done.code, 2, done)
        self.assertIn("node 0 is at n000, so all nodes need the same token: write export DDPLAUNCH_TOKEN=", done.err)
        # The names of the emulated nodes have no addresses.
        done = self.run_job("--master-addr", "127.0.0.1", "--nproc-per-node", 2, "--label", "", "sh", "-c",
                            "echo $RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 0 0 4", "1 1 0 4", "2 0 1 4", "3 1 1 4"])

    def test_a_step_of_one_task(self):
        self.salloc(2)
        self.allocation += ["srun", "--quiet", "--nodes=1", "--ntasks=1"]
        done = self.run_job("--nproc-per-node", 2, "--label", "", "sh", "-c", "echo $RANK $WORLD_SIZE")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 2", "1 2"])
        self.assertRegex(done.err, r"ddplaunch: srun has started one ddplaunch as Slurm step \d+\.0: it runs on this machine only; ")
        done = self.run_job("--launcher", "slurm", "--nproc-per-node", 1, "--label", "", "sh", "-c", "echo $RANK $WORLD_SIZE")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 2", "1 2"])

    def test_interrupt(self):
        self.salloc(2)
        process = self.start("--nproc-per-node", 1, "--label", "", "sh", "-c", "trap 'echo polite; exit 0' INT TERM; echo up; "
                             "while :; do sleep 0.1; done")
        self.assertEqual([process.stdout.readline(), process.stdout.readline()], ["up\n", "up\n"])
        ours = [pid for pid, line in [(int(p.name), p) for p in pathlib.Path("/proc").glob("[0-9]*")]
                if self.is_ours(line)]
        self.assertEqual(len(ours), 1)
        os.kill(ours[0], signal.SIGINT)
        done = self.finish(process)
        self.assertEqual(done.out, "polite\n" * 2)
        self.assertEqual(done.err.splitlines()[-1], f"ddplaunch: exit 130: stopped by SIGINT from {sender()}")

    def is_ours(self, proc):
        try:
            words = (proc / "cmdline").read_bytes().split(b"\0")
            return words[0].endswith(b"/ddplaunch") and self.job.encode() in words
        except OSError:
            return False

    def test_batch_job_with_its_exit_code(self):
        body = f"exec {DDPLAUNCH} --job-id {self.job} --job-dir {self.dir}/b --quiet --label '' --nproc-per-node 1 " \
               "sh -c 'echo rank $RANK; exit $((RANK * 6))'"
        job = self.batch(body, "--nodes=2")
        self.assertEqual(self.wait_for(job, "COMPLETED", "FAILED"), ("FAILED", "6", "0"))
        self.assertIn("rank 1\n", self.batch_text())
        self.assert_nothing_left()

    def test_scancel_is_a_graceful_stop(self):
        body = f"exec {DDPLAUNCH} --job-id {self.job} --job-dir {self.dir}/b --report {self.dir}/end.json --label '' " \
               "--nproc-per-node 1 sh -c 'trap \"echo saved $RANK; exit 0\" TERM; echo up; while :; do sleep 0.1; done'"
        job = self.batch(body, "--nodes=2")
        self.assertTrue(wait_until(lambda: self.batch_text().count("up\n") == 2), self.batch_text())
        subprocess.run(["scancel", job], env=self.env, check=True)
        self.wait_for(job, "CANCELLED")
        self.assertTrue(wait_until(lambda: (self.dir / "end.json").exists()), self.batch_text())
        self.assertTrue(wait_until(lambda: not live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")))
        text = self.batch_text()
        for rank in (0, 1):
            self.assertIn(f"saved {rank}\n", text)
        self.assertRegex(text, rf"\nddplaunch: exit 143: stopped by SIGTERM from (.*, probably the scheduler, Slurm job {job}|Slurm, probably: .*)\n")

    def test_a_signal_before_the_time_limit_reaches_the_ranks(self):
        worker = "sh -c 'trap \"echo warned $RANK\" USR1; echo up; for i in $(seq 600); do sleep 0.1; [ ! -e " \
                 f"{self.dir}/go ] || exit 0; done'"
        for flag in ("", "--batch"):
            (self.dir / "go").unlink(missing_ok=True)
            body = f"exec {DDPLAUNCH} --job-id {self.job} --job-dir {self.dir}/b{flag} --label '' --nproc-per-node 1 {worker}"
            job = self.batch(body, "--nodes=2")
            self.assertTrue(wait_until(lambda: self.batch_text().count("up\n") == 2), self.batch_text())
            # slurmctld does this for --signal=USR1@… and --signal=B:USR1@….
            subprocess.run(["scancel", "--signal=USR1", *([flag] if flag else []), job], env=self.env, check=True)
            self.assertTrue(wait_until(lambda: self.batch_text().count("warned") == 2), self.batch_text())
            (self.dir / "go").touch()
            self.assertEqual(self.wait_for(job, "COMPLETED", "FAILED"), ("COMPLETED", "0", "0"), self.batch_text())

    def test_requeue_restarts_the_job(self):
        body = f"""[ "$SLURM_RESTART_COUNT" ] && after=1
            exec {DDPLAUNCH} --job-id "{self.job}.${{SLURM_RESTART_COUNT:-0}}" --job-dir "{self.dir}/r.${{SLURM_RESTART_COUNT:-0}}" \\
                --env AFTER=$after --label '' --nproc-per-node 1 sh -c 'echo "up ${{AFTER:-first}}"; [ "$AFTER" ] || sleep 300'"""
        job = self.batch(body, "--nodes=2", "--requeue")
        self.assertTrue(wait_until(lambda: self.batch_text().count("up first\n") == 2), self.batch_text())
        subprocess.run(["scontrol", "requeue", job], env=self.env, check=True)
        # Slurm delays a requeued job; that time does not belong to ddplaunch.
        wait_until(lambda: self.state(job)[0] == "PENDING")
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], env=self.env, check=False)
        if not wait_until(lambda: self.batch_text().count("up 1\n") == 2, 25):
            self.assertEqual(self.state(job)[0], "PENDING", self.batch_text())
            self.skipTest("Slurm did not start the requeued job again in time")
        self.wait_for(job, "COMPLETED")
        self.assertEqual(live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}"), [])

    def test_the_launcher_is_killed(self):
        self.salloc(2)
        process = self.start("--nproc-per-node", 1, "--label", "", "--master-timeout", "2s", "sh", "-c",
                             "trap '' TERM HUP; echo up; while :; do sleep 0.1; done")
        self.assertEqual([process.stdout.readline(), process.stdout.readline()], ["up\n", "up\n"])
        ours = [int(p.name) for p in pathlib.Path("/proc").glob("[0-9]*") if self.is_ours(p)]
        os.kill(ours[0], signal.SIGKILL)
        process.communicate(timeout=60)
        self.assertTrue(wait_until(lambda: not live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")))


if __name__ == "__main__":
    main()
