#!/usr/bin/env python3
"""Tests jobs over real SSH to several nodes of one sshd, through libssh and through the OpenSSH program."""

import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, LaunchTest, Nodes, live_processes_with, main, wait_until


class SshCluster(LaunchTest):
    def cluster(self, count, **settings):
        nodes = Nodes(self, count, **settings)
        self.ssh = ["--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config]
        return nodes

    def hostfile(self, text):
        path = self.dir / "hosts"
        path.write_text(text)
        return path

    def test_ranks_follow_the_hostfile(self):
        nodes = self.cluster(3)
        hosts = self.hostfile("# order and unequal slots\n127.0.0.3 slots=1\n127.0.0.2:2\nroot@127.0.0.4 slots=1\n")
        done = self.run_job("--hostfile", hosts, "--ssh-config", nodes.ssh_config, "--label", "", "sh", "-c",
                            'echo $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $CROSS_SIZE')
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()),
                         ["0 0 0 4 1 0 3", "1 0 1 4 2 1 3", "2 1 1 4 2 1 3", "3 0 2 4 1 2 3"])

    def test_label_names_host_and_rank(self):
        self.cluster(2)
        done = self.run_job(*self.ssh, "--nproc-per-node", 2, "sh", "-c", "echo hi; echo ho >&2")
        self.assert_code(done, 0)
        expected = [f"[127.0.0.{2 + r // 2}:{r}] " for r in range(4)]
        self.assertEqual(sorted(done.out.splitlines()), [label + "hi" for label in expected])
        self.assertEqual(sorted(line for line in done.err.splitlines() if line.startswith("[")),
                         [label + "ho" for label in expected])

    def test_first_failure_stops_every_node(self):
        self.cluster(4)
        done = self.run_job(*self.ssh, "--nproc-per-node", 2, "sh", "-c",
                            'if [ $RANK = 5 ]; then echo the cause >&2; exit 9; fi; sleep 100')
        self.assert_code(done, 9)
        self.assertLess(done.seconds, 24)
        self.assertIn("rank 5 on 127.0.0.4 exited 9", done.err)
        self.assertIn("the cause", done.err)
        self.assertEqual(done.err.splitlines()[-1], "ddplaunch: exit 9: rank 5 on 127.0.0.4 exited 9")

    def test_through_the_ssh_program(self):
        nodes = self.cluster(2)
        done = self.run_job("--hostfile", nodes.hostfile, "--ssh-command", f"ssh -F {nodes.ssh_config}",
                            "--nproc-per-node", 1, "sh", "-c", 'echo $RANK; exit $((RANK * 4))')
        self.assert_code(done, 4)
        self.assertIn("[127.0.0.3:1] 1", done.out)  # rank 0 may be stopped before it prints

    def test_environment_travels_as_data(self):
        self.cluster(2)
        self.env["SECRET_TOKEN"] = "s3cr3t 'value'\n$(x)"
        self.env["SLURM_PROCID"] = "17"
        done = self.run_job(*self.ssh, "--nproc-per-node", 1, "--label", "", "--env", "EXTRA=a b", sys.executable, "-c",
                            "import os; print(ascii(os.environ['SECRET_TOKEN']), os.environ['EXTRA'],"
                            " os.environ.get('SLURM_PROCID'))")
        self.assert_code(done, 0)
        self.assertEqual(done.out, f"{ascii(self.env['SECRET_TOKEN'])} a b None\n" * 2)

    def test_noisy_start_up_file(self):
        noisy = self.dir / "noisy"
        noisy.write_text("echo Welcome to the machine\necho 'module: command not found' >&2\n")
        self.cluster(2, NODES_BASHRC=str(noisy))
        done = self.run_job(*self.ssh, "--nproc-per-node", 1, "sh", "-c", "echo $RANK")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["[127.0.0.2:0] 0", "[127.0.0.3:1] 1"])
        self.assertIn("127.0.0.2: Welcome to the machine", done.err)

    def test_interrupt_ends_all_nodes(self):
        self.cluster(3)
        process = self.start(*self.ssh, "--nproc-per-node", 1, "sh", "-c", "echo up; exec sleep 100")
        for _ in range(3):
            self.assertTrue(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process, timeout=20), 130)

    def test_killed_master_leaves_nothing_on_the_nodes(self):
        self.cluster(2)
        process = self.start(*self.ssh, "--nproc-per-node", 2, "sh", "-c", "echo up; sleep 100")
        for _ in range(4):
            self.assertTrue(process.stdout.readline())
        process.kill()
        process.communicate()
        mark = f"DDPLAUNCH_JOB_ID={self.job}\0"
        self.assertTrue(wait_until(lambda: not live_processes_with(mark)), live_processes_with(mark))

    def test_a_killed_agent_is_a_lost_node_and_leaves_nothing(self):
        self.cluster(2)
        process = self.start(*self.ssh, "--nproc-per-node", 1, "sh", "-c", "echo $PPID; sleep 100")
        agents = [int(process.stdout.readline().split("] ")[1]) for _ in range(2)]
        os.kill(agents[1], signal.SIGKILL)
        self.assert_code(self.finish(process, timeout=30), 113)

    def test_a_restarted_sshd_does_not_affect_the_job(self):
        nodes = self.cluster(2)
        process = self.start(*self.ssh, "--nproc-per-node", 1, "sh", "-c",
                             "echo up; while ! [ -e go ]; do sleep 0.05; done; echo bye")
        for _ in range(2):
            self.assertTrue(process.stdout.readline())
        nodes.restart_sshd()
        # The new sshd takes another job, whose end does not affect the first.
        other = subprocess.run([DDPLAUNCH, "--job-id", self.job + "-other", "--job-dir", self.dir / "other", *self.ssh,
                                "--nproc-per-node", "1", "true"], env=self.env, cwd=self.dir, timeout=30)
        self.assertEqual(other.returncode, 0)
        (self.dir / "go").touch()
        done = self.finish(process, timeout=30)
        self.assert_code(done, 0)
        self.assertEqual(done.out.count("bye"), 2)

    def test_dry_run_starts_nothing(self):
        done = self.run_job("--host", "nowhere.invalid:2", "--dry-run", "sh", "-c", "true")
        self.assert_code(done, 0)
        self.assertIn("nowhere.invalid", done.out)
        self.assertFalse(self.job_dir.exists())


if __name__ == "__main__":
    main()
