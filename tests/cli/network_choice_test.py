#!/usr/bin/env python3
"""Tests which network a job chooses. The machines are network namespaces on two LANs, with different interface names on each.
All have a docker-like bridge with the same address, and some routes are closed. Needs root and ip(8). The control link is not
under test: a stand-in for ssh enters the namespace, so that nodes stay reachable while a LAN is cut."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, LaunchTest, main, wait_until

# Names of the interfaces on the two LANs, by machine. Kernels and distributions use many naming schemes.
NAMES = {"n0": ("eth0", "ib0"), "n1": ("enp5s0f0", "ib1"), "n2": ("bond0.10", "mlx0")}
LANS = ("10.77.0.{}/24", "10.78.0.{}/24")
SHOW = "echo $RANK $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "needs root and ip(8)")
class Machines(LaunchTest):
    """The namespaces. The master runs in n0, which is node 0 under the name localhost."""

    lans = LANS
    nodes = ("n1", "n2")

    def setUp(self):
        super().setUp()
        self.ns = {name: f"ddp{name}{os.getpid()}" for name in ("sw", "n0", *self.nodes)}
        try:
            for name in self.ns.values():
                ip("netns", "add", name)
                self.addCleanup(ip, "netns", "del", name)
                ip("-n", name, "link", "set", "lo", "up")
            for lan in range(len(self.lans)):
                ip("-n", self.ns["sw"], "link", "add", f"lan{lan}", "type", "bridge")
                ip("-n", self.ns["sw"], "link", "set", f"lan{lan}", "up")
        except subprocess.CalledProcessError as error:
            raise unittest.SkipTest(f"no network of namespaces can be made here: {error.stderr.decode().strip()}")
        for last, name in enumerate(("n0", *self.nodes), 1):
            for lan, address in enumerate(self.lans):
                self.join(name, NAMES[name][lan], f"lan{lan}", address.format(last))
            self.docker_bridge(name)
        self.assertTrue(wait_until(lambda: all(map(self.has_carrier, ("n0", *self.nodes)))))
        self.ssh = self.script("ssh", "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\n" + "".join(
            f'[ "$1" = {name} ] && exec ip netns exec {self.ns[name]} sh -c "$2"\n' for name in self.nodes) + "exit 255\n")

    def join(self, name, interface, lan, address):
        ip("-n", self.ns["sw"], "link", "add", f"{name}-{lan}", "type", "veth", "peer", "name", interface, "netns",
           self.ns[name])
        ip("-n", self.ns["sw"], "link", "set", f"{name}-{lan}", "master", lan, "up")
        ip("-n", self.ns[name], "addr", "add", address, "dev", interface, *(["nodad"] if ":" in address else []))
        ip("-n", self.ns[name], "link", "set", interface, "up")

    def docker_bridge(self, name):
        """Makes a bridge as docker does on every host, under compose's name, with a container so that the bridge is up."""
        ip("-n", self.ns[name], "link", "add", "corp0", "type", "veth", "peer", "name", "veth1a2b")
        ip("-n", self.ns[name], "addr", "add", "172.18.0.1/16", "dev", "corp0")
        for device in ("corp0", "veth1a2b"):
            ip("-n", self.ns[name], "link", "set", device, "up")

    def has_carrier(self, name):
        shown = subprocess.run(["ip", "-n", self.ns[name], "link", "show"], check=True, capture_output=True, text=True).stdout
        return all(re.search(rf"{re.escape(interface)}[@:].*LOWER_UP.*state UP", shown)
                   for interface in NAMES[name][:len(self.lans)])

    def cut(self, name, lan):
        """Cuts the path from `name` to n0 on that LAN without an error: its frames go to a machine that does not exist."""
        ip("-n", self.ns[name], "neigh", "replace", self.lans[lan].format(1).split("/")[0], "lladdr", "02:00:00:00:00:99",
           "dev", NAMES[name][lan], "nud", "permanent")

    def reject(self, name, lan):
        """Cuts the same path with an immediate error."""
        ip("-n", self.ns[name], "route", "add", "unreachable", self.lans[lan].format(1).split("/")[0])

    def command(self, *args):
        return ["ip", "netns", "exec", self.ns["n0"], *super().command(
            "--host", "localhost:1," + ",".join(f"{name}:1" for name in self.nodes), "--ssh-command", self.ssh,
            "--label", "", *args)]

    def shown(self, *args):
        """Returns the output of the ranks, which show their environment, and the messages to the user."""
        done = self.run_job(*args, "sh", "-c", SHOW)
        self.assert_code(done, 0)
        return sorted(done.out.splitlines()), done.err


class TwoLans(Machines):
    def test_names_of_interfaces_differ(self):
        ranks, words = self.shown()
        self.assertEqual(ranks, ["0 10.77.0.1 eth0 =eth0", "1 10.77.0.1 enp5s0f0 =enp5s0f0", "2 10.77.0.1 bond0.10 =bond0.10"])
        self.assertIn("ddplaunch: network 10.77.0.0/24: MASTER_ADDR=10.77.0.1 (bond0.10 on n2; enp5s0f0 on n1; eth0 on "
                      "localhost)\n", words)

    def test_a_closed_network_is_skipped(self):
        self.cut("n2", 0)
        ranks, words = self.shown("--verbose")
        self.assertEqual(ranks, ["0 10.78.0.1 ib0 =ib0", "1 10.78.0.1 ib1 =ib1", "2 10.78.0.1 mlx0 =mlx0"])
        self.assertIn("ddplaunch: n2 cannot reach localhost at 10.77.0.1 (10.77.0.0/24); trying the next address\n", words)
        self.assertIn("network: 10.77.0.0/24, shared by all 3 nodes", words)
        self.assertRegex(words, r"n2 cannot reach localhost at every address: 10\.77\.0\.1:\d+: no answer\n")

    def test_a_closed_network_is_skipped_with_the_store_of_rank_0(self):
        self.reject("n2", 0)
        done = self.run_job("--store", "worker", "train", "--device", "cpu", "--data", "synthetic", "--limit", 300, "--batch-size", 50)
        self.assert_code(done, 0)
        self.assertIn("MASTER_ADDR=10.78.0.1", done.err)
        self.assertIn("weights equal on 3 ranks", done.out)

    def test_the_nodes_that_cannot_reach_node_0_are_named(self):
        for lan in (0, 1):
            self.cut("n2", lan)
        done = self.run_job("true")
        self.assert_code(done, 111)
        self.assertRegex(done.err, r"n2: it cannot reach the store on localhost \(10\.77\.0\.1:\d+: no answer; "
                         r"10\.78\.0\.1:\d+: no answer\); open port \d+ between")
        self.assertNotIn("n1:", done.err)

    def test_network_option_with_an_interface_that_nodes_lack(self):
        done = self.run_job("--network", "ib0", "true")
        self.assert_code(done, 2)
        self.assertIn("ddplaunch: the addresses of the nodes:\n    localhost: eth0 10.77.0.1/24, ", done.err)
        self.assertTrue(done.err.endswith("\nddplaunch: exit 2: --network ib0: no interface has that name on n1, n2\n"), done.err)
        self.assertIn("\n    n1: enp5s0f0 10.77.0.2/24, ib1 10.78.0.2/24, corp0 172.18.0.1/16\n", done.err)

    def test_ports_of_a_range(self):
        done = self.run_job("--port-range", "20100-20103", "sh", "-c", "echo $MASTER_PORT")
        self.assert_code(done, 0)
        ports = set(done.out.split())
        self.assertEqual(len(ports), 1)
        self.assertIn(int(ports.pop()), range(20100, 20104))

    def test_a_closed_address_does_not_exclude_its_interface(self):
        ip("-n", self.ns["n0"], "addr", "add", "10.77.0.100/24", "dev", "eth0")
        self.reject("n1", 0)
        ranks, words = self.shown("--network", "10.77.0.0/24")
        self.assertEqual(ranks[1], "1 10.77.0.100 enp5s0f0 =enp5s0f0")
        self.assertIn("n1 cannot reach localhost at 10.77.0.1 ", words)


class Ipv6Only(Machines):
    lans = ("fd00:77::{}/64",)
    nodes = ("n1",)

    def test_ipv6_alone(self):
        done = self.run_job("sh", "-c", SHOW + " $NCCL_SOCKET_FAMILY")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 fd00:77::1 eth0 =eth0 AF_INET6",
                                                         "1 fd00:77::1 enp5s0f0 =enp5s0f0 AF_INET6"])
        done = self.run_job("train", "--device", "cpu", "--data", "synthetic", "--limit", 200, "--batch-size", 50)
        self.assert_code(done, 0)
        self.assertIn("weights equal on 2 ranks", done.out)


class OneMachine(Machines):
    lans = LANS[:1]
    nodes = ()

    def command(self, *args):
        return ["ip", "netns", "exec", self.ns["n0"], *LaunchTest.command(self, "--label", "", *args)]

    def test_the_store_listens_on_the_chosen_network(self):
        connect = ("import os, socket; e = os.environ; socket.create_connection((e['MASTER_ADDR'], int(e['MASTER_PORT'])), 10); "
                   "print(e['RANK'], e['MASTER_ADDR'], e['GLOO_SOCKET_IFNAME'])")
        for network, hosts in (("eth0", ("--launcher", "local")), ("10.77.0.0/24", ("--host", "127.0.0.1"))):
            done = self.run_job("--network", network, *hosts, "--nproc-per-node", 2, "python3", "-c", connect)
            self.assert_code(done, 0)
            self.assertEqual(set(line[2:] for line in done.out.splitlines()), {"10.77.0.1 eth0"})
            self.assertIn(f"ddplaunch: network {network}: MASTER_ADDR=10.77.0.1 (eth0", done.err)


class Routed(Machines):
    """Every machine is on a separate network with a router between, as pods and clouds that assign a /32 are."""

    lans = ()
    nodes = ("n1",)

    def setUp(self):
        super().setUp()
        for i, name in enumerate(("n0", "n1")):
            lan = f"lan{i}"
            ip("-n", self.ns["sw"], "link", "add", lan, "type", "bridge")
            ip("-n", self.ns["sw"], "addr", "add", f"10.244.{i}.1/24", "dev", lan)
            ip("-n", self.ns["sw"], "link", "set", lan, "up")
            self.join(name, NAMES[name][0], lan, f"10.244.{i}.7/24")
            ip("-n", self.ns[name], "link", "del", "corp0")
            ip("-n", self.ns[name], "route", "add", "default", "via", f"10.244.{i}.1")
        subprocess.run(["ip", "netns", "exec", self.ns["sw"], "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True)

    def test_interfaces_are_those_that_the_probes_used(self):
        ranks, words = self.shown()
        self.assertEqual(ranks, ["0 10.244.0.7 eth0 =eth0", "1 10.244.0.7 enp5s0f0 =enp5s0f0"])
        self.assertIn("ddplaunch: MASTER_ADDR=10.244.0.7 (enp5s0f0 on n1; eth0 on localhost)\n", words)


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "needs root and ip(8)")
class Loopback(LaunchTest):
    """A machine whose loopback lacks something: `check` and each way to start a job say so in one line, and at once."""

    def assert_refused(self, setup, text):
        per_node = ("--insecure", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1")
        for words, code, where in ((("check",), 115, "localhost"), ((), 116, "localhost"), (per_node, 116, "this machine")):
            command = [DDPLAUNCH, *words, *([] if words == ("check",) else ["--quiet", "true"])]
            done = subprocess.run(["unshare", "-n", "sh", "-c", setup + 'exec "$@"', "sh", *command], env=self.env, cwd=self.dir,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertIn(text.format(where), (done.stdout + done.stderr).splitlines()[-2 if code == 115 else -1])
            self.assertNotIn("free port", done.stdout + done.stderr)

    def test_lo_is_down(self):
        self.assert_refused("", "lo is down on {}; ip link set lo up")
        self.assert_refused("ip link set lo up; ip link set lo down; ", "lo is down on {}; ip link set lo up")

    def test_lo_has_no_ipv4(self):
        self.assert_refused("ip link set lo up; ip addr del 127.0.0.1/8 dev lo; ",
                            "lo has no address 127.0.0.1 on {}; ip addr add 127.0.0.1/8 dev lo")


if __name__ == "__main__":
    main()
