#!/usr/bin/env python3
"""Tests ddplaunch hosts, --hosts-from, and workers whose names equal a verb of ddplaunch."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, LaunchTest, Nodes, main, without_waits


class Hosts(LaunchTest):
    def ssh(self):
        return "--ssh-config", Nodes.of_class(Hosts, 2).ssh_config

    def hosts(self, *args, stdin=None):
        return subprocess.run([DDPLAUNCH, "hosts", *map(str, args)], capture_output=True, text=True, timeout=120,
                              input=stdin if stdin is not None else "", env=self.env, cwd=self.dir, check=False)

    def test_one_machine_under_two_names_is_a_warning(self):
        ssh = self.script("ssh", '#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nexec sh -c "$2"\n')
        advice = "list it once, with slots=N, or its ranks share LOCAL_RANK and GPU\n"
        for second, is_warned in (("nodea.example.org", True), ("nodea.example.org gpus=0", False)):
            (self.dir / "hosts").write_text(f"nodea{' gpus=1' if not is_warned else ''}\n{second}\n")
            done = self.run_job("--ssh-command", ssh, "--hostfile", "hosts", "--nproc-per-node", 1, "true")
            self.assert_code(done, 0)
            self.assertEqual(f"warning: nodea, nodea.example.org are one machine; {advice}" in done.err, is_warned, done.err)
        done = self.hosts("--ssh-command", ssh, "--host", "nodea,nodea.example.org")
        self.assertIn(f"warning: nodea,nodea.example.org: these are one machine; {advice}", done.stdout + done.stderr)
        done = self.run_job("--ssh-command", ssh, "--host", "127.0.0.2,127.0.0.3", "--nproc-per-node", 1, "true")
        self.assertNotIn("one machine", done.err)

    def test_plan_of_two_nodes(self):
        hosts = self.dir / "hosts"
        hosts.write_text("127.0.0.2 slots=2\n127.0.0.3 slots=3 gpus=0-2 env:SECRET=hidden\n")
        ssh = ["--hostfile", hosts, *self.ssh()]
        done = self.hosts(*ssh)
        self.assertEqual((done.returncode, without_waits(done.stderr)), (0, ""), done)
        head, first, second, blank, *rest = done.stdout.splitlines()
        self.assertRegex(head, "^node +host +ranks +workers +slots +CPUs +GPUs +address +interface +variables of its own$")
        self.assertRegex(first, r"^0 +127\.0\.0\.2 +0-1 +2 \(slots=2\) +2 +\d+ +\d+ ")
        self.assertRegex(second, r"^1 +127\.0\.0\.3 +2-4 +3 \(.*\) +3 +\d+ +\d+ .* CUDA_VISIBLE_DEVICES=0,1,2 SECRET$")
        self.assertEqual((blank, rest[0]), ("", "world size 5"))
        self.assertTrue(rest[1].startswith("MASTER_ADDR 127.0.0.1"), rest)
        self.assertNotIn("hidden", done.stdout)
        self.assertFalse((self.dir / "state").exists(), "ddplaunch hosts has no job and writes no files")

        done = self.hosts("--json", *ssh)
        plan = json.loads(done.stdout)
        self.assertEqual((plan["world_size"], plan["unused_hosts"]), (5, 0))
        self.assertEqual([(h["node_rank"], h["first_rank"], h["workers"]) for h in plan["hosts"]], [(0, 0, 2), (1, 2, 3)])
        self.assertIn("SECRET", plan["hosts"][1]["variables"])
        self.assertNotIn("hidden", done.stdout)

        # A job does what the plan says.
        done = self.run_job(*ssh, "--label", "", "sh", "-c", "echo $RANK $NODE_RANK $MASTER_ADDR")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()),
                         [f"{rank} {0 if rank < 2 else 1} {plan['network']['master_addr']}" for rank in range(5)])

    def test_unreachable_host(self):
        done = self.hosts("--host", "127.0.0.2,gone address=127.0.0.2 port=1", *self.ssh())
        self.assertEqual(done.returncode, 111, done)
        self.assertIn("error: gone: ", done.stdout)
        self.assertEqual(done.stderr.splitlines()[-1], "ddplaunch: exit 111: 1 host of 2 could not be checked: gone")

    def test_hosts_from_a_scheduler(self):
        self.env["SLURM_JOB_NODELIST"] = "127.0.0.[2-3]"
        self.env["SLURM_TASKS_PER_NODE"] = "2,1"
        done = self.run_job("--launcher", "ssh", "--hosts-from", "slurm", *self.ssh(), "--label", "",
                            "sh", "-c", "echo $RANK $NODE_RANK")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 0", "1 0", "2 1"])

    def test_hosts_from_standard_input(self):
        done = self.run_job("--hosts-from", "-", *self.ssh(), "--label", "", "sh", "-c",
                            "echo $RANK; cat", stdin="127.0.0.2 slots=1\n127.0.0.3 slots=2\n")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0", "1", "2"])

    def test_a_hostfile_from_standard_input_leaves_none_for_the_workers(self):
        done = self.run_job("--hostfile", "-", "--label", "", "sh", "-c", "echo $RANK; cat", stdin="localhost slots=2\n")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0", "1"])


if __name__ == "__main__":
    main()
