#!/usr/bin/env python3
"""What a user gets for wrong input: one clear error with the exact text, the documented exit code, nothing started."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, LaunchTest, Nodes, main


class WrongOptions(LaunchTest):
    """Found before anything is started."""

    def assert_refused(self, done, *texts, code=2):
        self.assert_code(done, code)
        self.assertEqual(done.out, "")
        for text in texts:
            self.assertIn(text, done.err)
        self.assertFalse(self.job_dir.exists(), "a job directory was made")

    def hosts(self, text):
        (self.dir / "hosts").write_text(text)
        return "--hostfile", "hosts"

    def test_no_hostfile(self):
        self.assert_refused(self.run_job("--hostfile", "nowhere", "true"), "ddplaunch: ", "nowhere", "No such file")

    def test_empty_hostfile(self):
        self.assert_refused(self.run_job(*self.hosts("# nothing\n\n"), "true"), "hosts", "no host")

    def test_bad_slots(self):
        self.assert_refused(self.run_job(*self.hosts("a slots=2\nb slots=4x\n"), "true"), "hosts:2:9: ", "4x")

    def test_duplicate_host(self):
        self.assert_refused(self.run_job(*self.hosts("a slots=2\nb\na slots=1\n"), "true"), "hosts:3:1: ", "line 1")

    def test_unknown_key(self):
        self.assert_refused(self.run_job(*self.hosts("a slot=2\n"), "true"), "hosts:1:3: ", "slot", "slots")

    def test_all_mistakes_at_once(self):
        done = self.run_job(*self.hosts("a slots=0\nb slots=4x\nc what=1\n"), "true")
        self.assert_refused(done, "hosts:1:", "hosts:2:", "hosts:3:")

    def test_more_processes_than_slots(self):
        done = self.run_job(*self.hosts("a slots=2\nb slots=8\n"), "--nproc-per-node", 4, "true")
        self.assert_refused(done, "a", "2", "4", "--oversubscribe")

    def test_typo_in_an_option(self):
        self.assert_refused(self.run_job("--nproc-per-nod", 4, "true"), "--nproc-per-nod", "did you mean --nproc-per-node?")
        self.assert_refused(self.run_job("--host-file", "x", "true"), "--host-file", "did you mean --hostfile?")

    def test_no_worker(self):
        self.assert_refused(self.run_job("--nproc-per-node", 4), "ddplaunch: ")


class WrongCluster(LaunchTest):
    """Found while the nodes are reached; no worker runs anywhere."""

    def assert_refused(self, done, code, *texts):
        self.assert_code(done, code)
        for text in texts:
            self.assertIn(text, done.err)
        self.assertNotIn("started-anyway", done.out)
        self.assertLess(done.seconds, 20)

    def launch_on(self, nodes, hosts, *options, program=("echo", "started-anyway")):
        (self.dir / "hosts").write_text(hosts)
        return self.run_job("--hostfile", "hosts", "--ssh-config", nodes.ssh_config, *options, *program)

    def test_unknown_host(self):
        nodes = Nodes(self, 1)
        done = self.launch_on(nodes, "127.0.0.2\nno-such-host.invalid\n")
        self.assert_refused(done, 111, "no-such-host.invalid")
        self.assertEqual(done.err.splitlines()[-1], "ddplaunch: exit 111: node no-such-host.invalid: cannot resolve "
                         "no-such-host.invalid: Name or service not known; check the name, or give address= in the hostfile")

    def test_refused_connection(self):
        nodes = Nodes(self, 1)
        with socket.socket() as taken:
            taken.bind(("127.0.0.9", 0))  # bound, not listening: connections to it are refused
            done = self.launch_on(nodes, f"127.0.0.2\n127.0.0.9 port={taken.getsockname()[1]}\n")
        self.assert_refused(done, 111, "127.0.0.9", "Connection refused")

    def test_two_broken_hosts_are_both_named(self):
        nodes = Nodes(self, 1)
        done = self.launch_on(nodes, "127.0.0.2\nno-such-host-a.invalid\nno-such-host-b.invalid\n")
        self.assert_refused(done, 111, "no-such-host-a.invalid", "no-such-host-b.invalid")

    def test_wrong_key(self):
        nodes = Nodes(self, 2)
        other = self.dir / "other_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
        config = nodes.ssh_config.read_text()
        nodes.ssh_config.write_text(f"Match host 127.0.0.3\n  IdentityFile {other}\n  IdentitiesOnly yes\n"
                                    f"Match host 127.0.0.2\n" + re.sub("(?m)^Host .*\n", "", config) +
                                    "Host *\n" + re.sub("(?m)^(Host|  IdentityFile) .*\n", "", config))
        done = self.launch_on(nodes, "127.0.0.2\n127.0.0.3\n")
        self.assert_refused(done, 111, "127.0.0.3", "other_key")

    def test_unknown_host_key(self):
        nodes = Nodes(self, 2)
        lines = nodes.known_hosts.read_text().splitlines()
        nodes.known_hosts.write_text("".join(line + "\n" for line in lines if "127.0.0.3" not in line))
        done = self.launch_on(nodes, "127.0.0.2\n127.0.0.3\n")
        self.assert_refused(done, 111, "127.0.0.3", "host key", "known_hosts")

    def test_changed_host_key(self):
        nodes = Nodes(self, 2)
        other = self.dir / "other_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
        key = (self.dir / "other_key.pub").read_text().split()[:2]
        text = nodes.known_hosts.read_text()
        nodes.known_hosts.write_text(re.sub(r"^(\[127\.0\.0\.3\]:\d+) .*$", r"\1 " + " ".join(key), text, flags=re.M))
        self.assert_refused(self.launch_on(nodes, "127.0.0.2\n127.0.0.3\n"), 111, "127.0.0.3", "THE HOST KEY HAS CHANGED", "ssh-keygen -R")

    def test_missing_program_on_one_node(self):
        nodes = Nodes(self, 2)
        program = self.script("only-here.sh", "#!/bin/sh\necho started-anyway\n")
        other = self.dir / "empty"
        other.mkdir()
        done = self.launch_on(nodes, f"127.0.0.2\n127.0.0.3 chdir={other}\n", program=("./only-here.sh",))
        self.assert_refused(done, 127, "127.0.0.3", "only-here.sh")

    def test_missing_directory_on_one_node(self):
        nodes = Nodes(self, 2)
        done = self.launch_on(nodes, "127.0.0.2\n127.0.0.3 chdir=/no/such/dir\n")
        self.assert_refused(done, 115, "127.0.0.3: the working directory /no/such/dir: No such file or directory; create "
                            "it there, or name another with --chdir or chdir= in the hostfile")

    def test_missing_agent(self):
        nodes = Nodes(self, 1)
        done = self.launch_on(nodes, "127.0.0.2\n", "--agent", "/no/such/ddplaunchd")
        self.assert_refused(done, 114, "127.0.0.2", "/no/such/ddplaunchd", "--agent")

    def test_agent_of_another_version(self):
        nodes = Nodes(self, 1)
        fake = self.script("old-agent", "#!/bin/sh\necho ddplaunchd-hello 1 0.0.1\nsleep 10\n")
        done = self.launch_on(nodes, "127.0.0.2\n", "--agent", fake)
        version = subprocess.run([BIN / "ddplaunchd", "--version"], capture_output=True, text=True).stdout.split()[1]
        self.assert_refused(done, 114, "127.0.0.2", "0.0.1", version)

    def test_garbage_instead_of_the_agent(self):
        nodes = Nodes(self, 1)
        fake = self.script("garbage", "#!/bin/sh\necho this is not an agent\necho nor this >&2\n")
        self.assert_refused(self.launch_on(nodes, "127.0.0.2\n", "--agent", fake), 114, "127.0.0.2", "this is not an agent",
                            "nor this")

    def test_endless_garbage(self):
        nodes = Nodes(self, 1)
        fake = self.script("endless", "#!/bin/sh\nexec yes\n")
        self.assert_refused(self.launch_on(nodes, "127.0.0.2\n", "--agent", fake), 114, "127.0.0.2")

    def test_agent_that_says_nothing(self):
        nodes = Nodes(self, 1)
        fake = self.script("silent", "#!/bin/sh\nsleep 60\n")
        done = self.launch_on(nodes, "127.0.0.2\n", "--agent", fake, "--start-timeout", "2s")
        self.assert_refused(done, 112, "127.0.0.2")


if __name__ == "__main__":
    main()
