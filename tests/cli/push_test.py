#!/usr/bin/env python3
"""Tests the copy of ddplaunchd to nodes without it: the directory, the account, and the message after a failure.

The master runs in a mount namespace. Its programs lie at a path that does not exist on the nodes, which share one sshd."""

import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launch import BIN, LaunchTest, Nodes, main, wait_until  # noqa: E402

UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


def can_unshare():
    done = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return done.returncode == 0


def build_id(path):
    text = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
    return text.partition("Build ID: ")[2].split()[0]


def sum_of(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


@unittest.skipUnless(can_unshare(), "mounting in a namespace of our own is not allowed here")
class Push(LaunchTest):
    def setUp(self):
        super().setUp()
        self.kit = self.dir / "kit"  # the master sees this directory as `here`
        (self.kit / "bin").mkdir(parents=True)
        for name in ("ddplaunch", "ddplaunchd"):
            try:
                (self.kit / "bin" / name).hardlink_to(BIN / name)
            except OSError:  # on another file system
                shutil.copy2(BIN / name, self.kit / "bin" / name)
        self.here = self.dir / "here"  # empty on the nodes
        self.here.mkdir()
        self.key = build_id(BIN / "ddplaunchd")

    def nodes(self, count=2, bashrc="", within=()):
        """Starts nodes whose home is `self.home` and whose logins run ~/.bashrc."""
        path = self.script("bashrc", bashrc)
        nodes = Nodes(self, count, within=within, NODES_BASHRC=str(path))
        self.home = nodes.dir / "home"
        self.bashrc = self.home / ".bashrc"
        self.cache = self.home / ".cache/ddplaunch"
        return nodes

    def agent(self, key=None):
        return self.cache / f"agent-{key or self.key}" / "ddplaunchd"

    def command(self, *args):
        binds = 'mount --bind "$0" "$1" && shift && exec "$@"'
        ours = super().command(*args)[1:]
        return [*UNSHARE, "sh", "-c", binds, str(self.kit), str(self.here), str(self.here / "bin/ddplaunch"), *ours]

    def on(self, nodes, *args, **popen):
        return self.run_job("--ssh-config", nodes.ssh_config, "--hostfile", nodes.hostfile, "--nproc-per-node", "1",
                            "--label", "none", "--chdir", "/", *args, **popen)

    def pushes(self, outcome):
        return outcome.err.count(": copied ddplaunchd, ")

    def age(self, path, seconds):
        now = path.stat().st_mtime
        os.utime(path, (now - seconds, now - seconds))

    def tools(self, *without, **instead):
        """Returns a PATH of the script's tools, without sha256sum. `instead` has scripts that replace tools."""
        tools = self.dir / "tools"
        tools.mkdir(exist_ok=True)
        for name in ("sh", "head", "wc", "mkdir", "ls", "id", "uname", "chmod", "ln", "mv", "rm", "rmdir", "cp", "find", "cat"):
            if name in instead:
                self.script(f"tools/{name}", instead[name])
            elif name not in without:
                (tools / name).symlink_to(shutil.which(name))
        return tools

    def assert_refused(self, outcome, code, text):
        self.assert_code(outcome, code)
        self.assertIn(text, outcome.err)


class Delivery(Push):
    def test_the_agent_is_copied_once_and_then_cached(self):
        nodes = self.nodes(4)
        outcome = self.on(nodes, "-v", "sh", "-c", "readlink /proc/$PPID/exe")
        self.assert_code(outcome, 0)
        self.assertEqual(set(outcome.out.split()), {str(self.agent())}, repr(outcome))
        # The nodes share a home and started at the same time: at least one received a copy, and all use the same file.
        self.assertGreaterEqual(self.pushes(outcome), 1)
        self.assertEqual(sum_of(self.agent()), sum_of(BIN / "ddplaunchd"))
        for path in (self.cache, self.agent().parent, self.agent()):
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o700, path)
        self.assertEqual([p.name for p in self.agent().parent.iterdir()], ["ddplaunchd"])
        inode = self.agent().stat().st_ino
        again = self.on(nodes, "-v", "true")
        self.assert_code(again, 0)
        self.assertEqual(self.pushes(again), 0, repr(again))
        self.assertEqual(self.agent().stat().st_ino, inode)

    def test_an_installed_agent_of_this_build_is_used(self):
        nodes = self.nodes(1)
        shutil.copytree(self.kit, self.here, dirs_exist_ok=True)
        outcome = self.on(nodes, "-v", "sh", "-c", "readlink /proc/$PPID/exe")
        self.assertEqual(outcome.out.strip(), str(self.here / "bin/ddplaunchd"), repr(outcome))
        self.assertFalse(self.cache.exists())

    def test_an_installed_agent_of_another_build_is_not_used(self):
        nodes = self.nodes(1)
        (self.here / "bin").mkdir()
        old = self.here / "bin/ddplaunchd"
        for code in (1, 2, 3):
            old.write_text(f"#!/bin/sh\nexit {code}\n")
            old.chmod(0o755)
            outcome = self.on(nodes, "-v", "sh", "-c", "readlink /proc/$PPID/exe")
            self.assertEqual(outcome.out.strip(), str(self.agent()), repr(outcome))

    def test_through_the_ssh_program(self):
        nodes = self.nodes(2)
        outcome = self.on(nodes, "-v", "--ssh-command", "ssh", "sh", "-c", "readlink /proc/$PPID/exe")
        self.assert_code(outcome, 0)
        self.assertEqual(set(outcome.out.split()), {str(self.agent())}, repr(outcome))
        self.assertGreaterEqual(self.pushes(outcome), 1)

    def test_every_login_shell(self):
        shells = [name for name in ("bash", "dash", "csh", "tcsh", "fish", "zsh", "ksh", "mksh") if shutil.which(name)]
        nodes = self.nodes(1)
        for name in shells:
            with self.subTest(name):
                shutil.rmtree(self.cache, ignore_errors=True)
                self.bashrc.write_text('[ -n "$AGAIN" ] || AGAIN=1 exec ' + shutil.which(name) +
                                       ' -c "$BASH_EXECUTION_STRING"\n')
                outcome = self.on(nodes, "-v", "true")
                self.assert_code(outcome, 0)
                self.assertEqual(self.pushes(outcome), 1, repr(outcome))

    def test_a_busybox_node(self):
        """The node has neither bash nor coreutils; PATH has only busybox."""
        if not shutil.which("busybox"):
            self.skipTest("no busybox here")
        nodes = self.nodes(1)
        tools = self.dir / "tools"
        tools.mkdir()
        subprocess.run(["busybox", "--install", "-s", tools], check=True)
        self.bashrc.write_text(f"export PATH={tools}\n")
        outcome = self.on(nodes, "-v", "--env", f"PATH={os.environ['PATH']}", "true")
        self.assert_code(outcome, 0)
        self.assertEqual(self.pushes(outcome), 1, repr(outcome))

    def test_without_sha256sum_the_agent_checks_itself(self):
        nodes = self.nodes(1)
        self.bashrc.write_text(f"export PATH={self.tools()}\n")
        outcome = self.on(nodes, "-v", "--env", f"PATH={os.environ['PATH']}", "true")
        self.assert_code(outcome, 0)
        self.assertEqual(self.pushes(outcome), 1, repr(outcome))

    def test_unused_agents_are_removed_from_the_cache(self):
        nodes = self.nodes(1)
        for number in range(6):
            old = self.cache / f"agent-{number}"
            old.mkdir(parents=True)
            (old / "ddplaunchd").touch()
            age = 60 if number < 4 else 1
            self.age(old, age * 86400 + number)
        self.cache.chmod(0o700)
        self.assert_code(self.on(nodes, "true"), 0)
        left = {p.name for p in self.cache.iterdir()}
        self.assertEqual(left, {"agent-4", "agent-5", f"agent-{self.key}"})

    def test_wrong_files_in_the_cache_are_replaced(self):
        """Another file has the agent's name; or an agent matches but fails before its hello line."""
        nodes = self.nodes(1)
        self.assert_code(self.on(nodes, "true"), 0)
        broken = f"#!/bin/sh\ncase $1 in --fits) echo {self.key};; *) echo it broke >&2; exit 9;; esac\n"
        for impostor in (pathlib.Path("/bin/true").read_bytes(), b"", b"#!/bin/sh\nexit 0\n", broken.encode()):
            self.agent().unlink()  # the previous file may still be in use
            self.agent().write_bytes(impostor)
            self.agent().chmod(0o755)
            outcome = self.on(nodes, "-v", "sh", "-c", "readlink /proc/$PPID/exe")
            self.assert_code(outcome, 0)
            self.assertEqual(outcome.out.strip(), str(self.agent()))
            self.assertEqual(self.pushes(outcome), 1, repr(outcome))
            self.assertEqual(sum_of(self.agent()), sum_of(BIN / "ddplaunchd"))
            self.assertEqual([p.name for p in self.agent().parent.iterdir()], ["ddplaunchd"])

    def test_a_push_that_is_cut_off_leaves_nothing(self):
        """The master is killed before the file is complete."""
        nodes = self.nodes(1)
        pause = f"#!/bin/sh\n[ $2 -lt 1000000 ] || [ $# -gt 2 ] || {{ /usr/bin/head -c 1000; : >{self.dir}/half; " \
                'exec cat >/dev/null; }\nexec /usr/bin/head "$@"\n'
        self.bashrc.write_text(f"export PATH={self.tools(head=pause)}:/usr/bin\n")
        process = self.start("--ssh-config", nodes.ssh_config, "--hostfile", nodes.hostfile, "--nproc-per-node", "1",
                             "--chdir", "/", "true")
        self.assertTrue(wait_until((self.dir / "half").exists))
        process.kill()
        process.communicate()
        self.assertTrue(wait_until(lambda: not any(files for _, _, files in os.walk(self.cache))))

    def test_files_of_a_killed_push_are_removed_by_the_next(self):
        nodes = self.nodes(1)
        left = self.cache / "agent-0"
        left.mkdir(parents=True)
        self.cache.chmod(0o700)
        for name, hours in ((".push-a-1-ddplaunchd", 25), (".push-b-2-ddplaunchd", 23), ("ddplaunchd", 90)):
            (left / name).touch()
            self.age(left / name, hours * 3600)
        self.assert_code(self.on(nodes, "true"), 0)
        self.assertEqual({p.name for p in left.iterdir()}, {".push-b-2-ddplaunchd", "ddplaunchd"})

    def test_train_is_copied_with_the_agent(self):
        shutil.copy2(BIN / "train", self.kit / "bin/train")
        nodes = self.nodes(2)
        outcome = self.on(nodes, "-v", "train", "--version")
        self.assert_code(outcome, 0)
        self.assertEqual(outcome.out.count("train "), 2, repr(outcome))
        self.assertGreaterEqual(self.pushes(outcome), 1)
        both = self.agent(self.key + "." + build_id(BIN / "train")).parent
        self.assertEqual({p.name for p in both.iterdir()}, {"ddplaunchd", "train"})
        again = self.on(nodes, "-v", "train", "--version")
        self.assert_code(again, 0)
        self.assertEqual(self.pushes(again), 0, repr(again))


class Refusals(Push):
    """Messages for a copy that is impossible."""

    def test_no_push(self):
        nodes = self.nodes(1)
        outcome = self.on(nodes, "--no-push", "true")
        self.assert_refused(outcome, 114, f"node 127.0.0.2: no ddplaunchd at {self.here}/bin/ddplaunchd; install the same "
                            "version there or name it with --agent PATH")
        self.assertFalse(self.cache.exists())

    def test_agent_named_by_hand(self):
        nodes = self.nodes(1)
        outcome = self.on(nodes, "--agent", "/no/such/ddplaunchd", "true")
        self.assert_refused(outcome, 114, "node 127.0.0.2: no ddplaunchd at /no/such/ddplaunchd; install the same version "
                            "there or name it with --agent PATH")
        self.assertFalse(self.cache.exists())
        self.assert_code(self.on(nodes, "--agent", BIN / "ddplaunchd", "true"), 0)
        self.assertFalse(self.cache.exists())
        advice = "; install the same version there or name it with --agent PATH"
        for path, why in (("/etc/passwd", "/etc/passwd may not be executed there"),
                          ("/etc", "/etc is a directory, not the program ddplaunchd")):
            self.assert_refused(self.on(nodes, "--agent", path, "true"), 114, f"node 127.0.0.2: {why}{advice}")
        foreign = self.dir / "foreign"  # a program of another kind of machine
        foreign.write_bytes(b"\x7fELF" + bytes(60))
        foreign.chmod(0o755)
        outcome = self.on(nodes, "--agent", foreign, "true")
        self.assert_refused(outcome, 114, f"node 127.0.0.2: {foreign} ")
        for path, why in (("/etc/passwd", "/etc/passwd is not an executable file (chmod +x?)"), ("/etc", "/etc is a directory")):
            local = self.run_job("--agent", path, "true")
            self.assert_refused(local, 114, f"cannot execute '{path}': {why}; name the program ddplaunchd with --agent PATH")

    def test_a_machine_of_another_kind(self):
        nodes = self.nodes(1)
        self.bashrc.write_text(f"export PATH={self.tools(uname='#!/bin/sh' + chr(10) + 'echo riscv64')}\n")
        outcome = self.on(nodes, "true")
        self.assert_refused(outcome, 114, "node 127.0.0.2: it has no ddplaunchd of this build, and there is none here for a "
                                          "machine of type riscv64; install the same version there or name it with --agent PATH")

    def test_bytes_that_are_changed_in_transit(self):
        nodes = self.nodes(1)
        head = "#!/bin/sh\n[ $2 -lt 100000 ] && exec /usr/bin/head \"$@\"\n[ $# -gt 2 ] && exec /usr/bin/head \"$@\"\n" \
               "/usr/bin/head \"$@\" | tr x y\n"
        self.bashrc.write_text(f"export PATH={self.tools(head=head)}:/usr/bin\n")
        outcome = self.on(nodes, "true")
        self.assert_refused(outcome, 114, "node 127.0.0.2: ddplaunchd is not installed there, and copying it failed: ddplaunchd "
                            "arrived damaged; does a terminal stand on the way (docker exec -t)?; install the same version "
                            "there or name it with --agent PATH")
        self.assertEqual([p.name for p in self.cache.rglob("*") if p.is_file()], [])


NO_TMP = "export TMPDIR=/proc/none\n"


@unittest.skipUnless(os.geteuid() == 0, "mounts under an sshd need root")
class CacheDirectories(Push):
    """Nodes with their own /var/tmp and /dev/shm. `mounts` is executed before the sshd starts."""

    def sealed(self, mounts="", home=None, count=1):
        mounts = "mount -t tmpfs -o size=64m none /var/tmp && mount -t tmpfs -o size=64m none /dev/shm && " + mounts
        nodes = self.nodes(count, within=["unshare", "-m", "sh", "-c", mounts + 'exec "$@"', "-"])
        self.bashrc.write_text(NO_TMP + (f"export XDG_CACHE_HOME={home}\n" if home else ""))
        return nodes

    def lands(self, nodes, where, said):
        """Runs twice: the second run finds the agent in `where`, without a message."""
        outcome = self.on(nodes, "-v", "sh", "-c", "readlink /proc/$PPID/exe")
        self.assertEqual(outcome.out.strip(), f"{where}/agent-{self.key}/ddplaunchd", repr(outcome))
        self.assertIn(f"ddplaunch: 127.0.0.2: ddplaunchd is kept in {where}; not in {said}\n", outcome.err)
        self.assertEqual(self.pushes(outcome), 1)
        self.assertEqual([path for path in self.dir.glob("*/ddplaunch/*") if "here" not in path.parts and path.name != "jobs"], [])
        again = self.on(nodes, "-v", "sh", "-c", "readlink /proc/$PPID/exe")
        self.assertEqual(again.out.strip(), f"{where}/agent-{self.key}/ddplaunchd", repr(again))
        self.assertNotIn("ddplaunchd is kept", again.err)
        self.assertEqual(self.pushes(again), 0)

    def test_home_mounted_noexec(self):
        spare = self.dir / "spare"
        spare.mkdir()
        nodes = self.sealed(f"mount -t tmpfs -o noexec none {spare} && ", spare)
        self.bashrc.write_text(self.bashrc.read_text() + f"export HOME={spare}\n")
        self.lands(nodes, "/var/tmp/ddplaunch-0", f"{spare}/ddplaunch: programs cannot be run there (mounted noexec?); "
                   f"{spare}/.cache/ddplaunch: programs cannot be run there (mounted noexec?)")
        self.assertEqual(self.on(nodes, "ls", "-A", spare, f"{spare}/.cache").out, f"{spare}:\n.cache\n\n{spare}/.cache:\n")

    def test_home_full_or_read_only(self):
        full, locked = self.dir / "full", self.dir / "locked"
        full.mkdir(), locked.mkdir()
        nodes = self.sealed(f"mount -t tmpfs -o size=1m none {full} && mount -t tmpfs -o ro none {locked} && ", full)
        self.bashrc.write_text(self.bashrc.read_text() + f"export HOME={locked}\n")
        self.lands(nodes, "/var/tmp/ddplaunch-0", f"{full}/ddplaunch: No space left on device; "
                   f"{locked}/.cache/ddplaunch: Read-only file system")

    def test_two_nodes_with_one_reason_get_one_line(self):
        locked = self.dir / "locked"
        locked.mkdir()
        outcome = self.on(self.sealed(f"mount -t tmpfs -o ro none {locked} && ", locked, count=2), "true")
        self.assert_code(outcome, 0)
        self.assertEqual(outcome.err.count("ddplaunchd is kept in "), 1, outcome.err)

    def test_a_world_writable_cache_directory(self):
        spare = self.dir / "spare"
        (spare / "ddplaunch").mkdir(parents=True)
        (spare / "ddplaunch").chmod(0o777)
        open_to = "mkdir -m 777 /var/tmp/ddplaunch-0 && "
        nodes = self.sealed(open_to, spare)
        self.bashrc.write_text(self.bashrc.read_text() + "unset HOME\n")
        why = "it is there, but no directory that only this account may write to"
        self.lands(nodes, "/dev/shm/ddplaunch-0", f"{spare}/ddplaunch: {why}; /var/tmp/ddplaunch-0: {why}; "
                   "/proc/none/ddplaunch-0: No such file or directory")

    def test_a_directory_in_place_of_the_agent(self):
        nodes = self.sealed()
        self.agent().mkdir(parents=True)
        self.cache.chmod(0o700)
        outcome = self.on(nodes, "sh", "-c", "readlink /proc/$PPID/exe")
        self.assertEqual(outcome.out.strip(), f"/var/tmp/ddplaunch-0/agent-{self.key}/ddplaunchd", repr(outcome))
        self.assertIn(f"ddplaunchd is kept in /var/tmp/ddplaunch-0; not in {self.cache}: agent-{self.key}/ddplaunchd is a "
                      "directory\n", outcome.err)

    def check_installed_agent(self, cache_is_ours):
        """An agent that belongs to another user must never be run."""
        spare = self.dir / "spare"
        fake = spare / "ddplaunch" / f"agent-{self.key}" / "ddplaunchd"
        fake.parent.mkdir(parents=True)
        fake.write_text(f"#!/bin/sh\ntouch {self.dir}/was-run\n")
        for path in (fake, fake.parent, fake.parent.parent):
            path.chmod(0o755)
            os.chown(path, 65534, 65534)
        if cache_is_ours:
            os.chown(spare / "ddplaunch", 0, 0)
            (spare / "ddplaunch").chmod(0o777)
        nodes = self.sealed("", spare)
        outcome = self.on(nodes, "true")
        self.assert_code(outcome, 0)
        self.assertFalse((self.dir / "was-run").exists())
        self.assertTrue(self.agent().exists())

    def test_a_cache_directory_of_another_user_is_refused(self):
        self.check_installed_agent(cache_is_ours=False)

    def test_an_agent_in_a_world_writable_directory_is_refused(self):
        self.check_installed_agent(cache_is_ours=True)

    def test_no_usable_directory_at_all(self):
        nodes = self.sealed("mount -o remount,ro /var/tmp && mount -o remount,ro /dev/shm && ")
        self.bashrc.write_text(NO_TMP + "export HOME=/proc/none XDG_CACHE_HOME=\n")
        outcome = self.on(nodes, "true")
        none, locked = "No such file or directory", "Read-only file system"
        self.assert_refused(outcome, 114, "node 127.0.0.2: ddplaunchd is not installed there, and copying it failed: no place to put "
                            f"it: /proc/none/.cache/ddplaunch: {none}; /var/tmp/ddplaunch-0: {locked}; "
                            f"/proc/none/ddplaunch-0: {none}; /dev/shm/ddplaunch-0: {locked}; install the same version "
                            "there or name it with --agent PATH")

    def test_the_agent_of_another_kind_of_machine(self):
        """The program for that machine lies in libexec; this machine cannot run it."""
        other = bytearray((BIN / "ddplaunchd").read_bytes())
        self.assertEqual(other[18], 62)  # e_machine: x86-64 …
        other[18] = 183  # … and then AArch64
        (self.kit / "libexec/ddplaunch").mkdir(parents=True)
        path = self.kit / "libexec/ddplaunch/ddplaunchd-aarch64"
        path.write_bytes(other)
        nodes = self.sealed()
        self.bashrc.write_text(f"export PATH={self.tools(uname='#!/bin/sh' + chr(10) + 'echo aarch64')}\n" + NO_TMP)
        outcome = self.on(nodes, "true")
        self.assert_refused(outcome, 114, "node 127.0.0.2: ddplaunchd is not installed there, and copying it failed: no place to put "
                            f"it: {self.cache}: programs cannot be run there (mounted noexec?); /var/tmp/ddplaunch-0: ")
        self.assertFalse(self.cache.exists(), "an empty directory is left")


if __name__ == "__main__":
    main()
