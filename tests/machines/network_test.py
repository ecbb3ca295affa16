#!/usr/bin/env python3
"""Tests a job over the network between the master's machine, which is also a node, and another one: the address at which the ranks
meet, and the effect of a cut link. network_choice_test.py has more networks, outages_test.py and partition_test.py more cuts."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import live_processes_with, wait_until
from tests.support.machines import MachinesTest, main_side_by_side


class TwoMachines(MachinesTest):
    """10.76.0.0/24 joins the machines, and each has a docker0 with the same address."""

    count = 1

    def setUp(self):
        super().setUp()
        for name in ("n0", "n1"):
            self.machines.ip(name, "link add docker0 type veth peer name vethc0", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up",
                             "link set vethc0 up")
        # The kernel reports a new carrier up to a second late. A node in use has had its carrier for long.
        self.assertTrue(wait_until(lambda: all(self.docker_is_up(name) for name in ("n0", "n1"))))

    def docker_is_up(self, name):
        return self.machines[name].path("/sys/class/net/docker0/operstate").read_text() == "up\n"

    def hosts(self):
        return f"localhost:1,{self.machines.address('n1')}:1"

    def test_ranks_meet_on_the_shared_network(self):
        done = self.run_job("sh", "-c", "echo $RANK $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 10.76.0.100 eth0 =eth0", "1 10.76.0.100 eth0 =eth0"])

    def test_dropped_packets_lose_the_node_and_end_both_sides(self):
        process = self.start("--node-timeout", "2s", "--master-timeout", "2s", "--stop-grace", "1s", "sh", "-c",
                             'trap "" TERM; echo up; while :; do sleep 0.1; done')
        self.assertEqual([process.stdout.readline(), process.stdout.readline()], ["up\n", "up\n"])
        cut = time.monotonic()
        self.machines.cut_unnoticed("n1")
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 113, err)
        # Silence is checked once a second. Then the workers of the near side have their grace.
        self.assertLess(time.monotonic() - cut, 30)
        self.assertRegex(err.splitlines()[-1], r"^ddplaunch: exit 113: node 10\.76\.0\.1: no heartbeat for [4-9](\.\d)? s "
                         r"\(--node-timeout\)$")
        self.assertRegex(err, r"\n  root cause: node 10\.76\.0\.1: no heartbeat for [4-9](\.\d)? s \(--node-timeout\); the machine, its "
                         r"network, or the agent hangs\n")
        # The far side detects the loss itself, while the link is still cut.
        mark = f"DDPLAUNCH_JOB_ID={self.job}\0"
        self.assertTrue(wait_until(lambda: not live_processes_with(mark)), live_processes_with(mark))
        self.assertLess(time.monotonic() - cut, 40)



if __name__ == "__main__":
    main_side_by_side(3)
