#!/usr/bin/env python3
"""Tests every login method that one machine can offer, each with a real sshd (and a dropbear), through libssh and through the
OpenSSH program. Also tests the message for a login that needs an answer from the user, which no job can ask for. ssh_transport_test.cc
has unknown, changed and revoked host keys through libssh, and known_hosts_test.cc hashed ones."""

import getpass
import os
import pathlib
import pwd
import re
import shutil
import socket
import subprocess
import sys
import threading
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, LaunchTest, Nodes, main, wait_until
from tests.support.ports import free_port

USER = getpass.getuser()
ASKS_NOTHING = ('; ddplaunch never prompts; run "{} true" in a terminal to see whether ssh asks for a passphrase (then run ssh-add '
                "first), a password, or a host key; its last lines:")


class Server:
    """An additional server on 127.0.0.2 … with a separate port, in the directory of `nodes`. It ends with the test."""

    def __init__(self, test, nodes, name, command, port):
        self.port = port
        self.log = nodes.dir / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)
        test.addCleanup(self.end)
        if not wait_until(lambda: self.process.poll() is not None or self.listens()):
            raise RuntimeError(f"{name} does not listen")
        if self.process.poll() is not None:
            raise RuntimeError(f"{name}: {self.log.read_text()}")

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.2", self.port)) == 0

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()


def sshd(test, nodes, name, *settings, env=None):
    """Starts an sshd with these lines before the nodes' own configuration: the first value of an option counts."""
    port = free_port()
    rest = re.sub(r"(?m)^(Port|PidFile|ListenAddress) .*\n", "", (nodes.dir / "sshd_config").read_text())
    config = nodes.dir / f"{name}.sshd_config"
    lines = [f"Port {port}", "ListenAddress 127.0.0.2", "ListenAddress 127.0.0.3", "PidFile none", *settings]
    if any(line.startswith("HostKey ") for line in settings):
        rest = re.sub(r"(?m)^HostKey .*\n", "", rest)
    config.write_text("\n".join(lines) + "\n" + rest)
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    return Server(test, nodes, name, [program, "-D", "-e", "-f", str(config)], port)


def keygen(path, kind, passphrase="", bits=None):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", path, "-C", "test"]
                   + (["-b", str(bits)] if bits else []), check=True)
    return path


def fingerprint(path):
    return subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True).stdout.split()[1]


def public(path):
    return " ".join(pathlib.Path(f"{path}.pub").read_text().split()[:2])


def add_user(test, name, home):
    """Adds an account to this machine until the end of the test. Another process may hold the lock of /etc/passwd."""
    if not shutil.which("useradd"):
        test.skipTest("no useradd here")

    def done(*command):
        end = subprocess.run(command, capture_output=True, text=True)
        locked = end.returncode != 0 and "lock" in end.stderr
        return None if locked else end

    made = wait_until(lambda: done("useradd", "-M", "-d", home, "-s", "/bin/sh", "-p", "*", name))
    test.assertTrue(made, "/etc/passwd stays locked")
    test.addCleanup(wait_until, lambda: done("userdel", name), 30)
    test.assertEqual(pwd.getpwnam(name).pw_dir, str(home))


class AuthTest(LaunchTest):
    NODES = 4

    @classmethod
    def setUpClass(cls):
        cls.nodes = Nodes.of_class(cls, cls.NODES)

    def setUp(self):
        super().setUp()
        for name in ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "KRB5CCNAME"):
            self.env.pop(name, None)

    def config(self, *first, without=(), name="config"):
        """Returns the nodes' ssh_config with these lines in front, whose values take precedence. It has no `without` options."""
        rest = self.nodes.ssh_config.read_text()
        for option in without:
            rest = re.sub(rf"(?m)^ *{option} .*\n", "", rest)
        path = self.dir / name
        path.write_text("\n".join(first) + "\n" + rest)
        return path

    def hostfile(self, *lines):
        path = self.dir / "hosts"
        path.write_text("\n".join(lines) + "\n")
        return path

    def launch(self, config, *hosts, program=False, options=(), worker=("sh", "-c", "echo in")):
        """Runs a job with one rank on each host, through libssh or through the OpenSSH program."""
        way = ("--ssh-command", f"ssh -F {config}") if program else ("--ssh-config", config)
        return self.run_job("--hostfile", self.hostfile(*hosts), *way, "--nproc-per-node", 1, "--label", "", *options, *worker)

    def assert_in(self, done, hosts=1):
        self.assert_code(done, 0)
        self.assertEqual(done.out, "in\n" * hosts, repr(done))

    def notices(self, done):
        return [line for line in done.err.splitlines() if "connecting through the program" in line]

    def assert_native(self, done, hosts=1):
        self.assert_in(done, hosts)
        self.assertEqual(self.notices(done), [])

    def assert_folded(self, done, host, why, hosts=1):
        """Checks that the job ran through the program, and that one notice says so. `host` is a pattern of the host that it
        names."""
        self.assert_in(done, hosts)
        notices = self.notices(done)
        self.assertEqual(len(notices), 1, repr(done))
        self.assertRegex(notices[0], rf"^ddplaunch: {host}: connecting through the program ssh, because of {re.escape(why)} "
                                     rf"\(reported once; other hosts may have the same reason\)$")

    def assert_reported(self, done, text, code=111):
        """Checks the exact text of the error: its first line ends stderr. If it has more lines, all of it is the root cause."""
        self.assert_code(done, code)
        self.assertEqual(done.out, "")
        first = text.partition("; its last lines:\n")[0]
        self.assertEqual(done.err.splitlines()[-1], f"ddplaunch: exit {code}: node {first}")
        self.assertEqual(re.findall("  root cause: (?:.*\n)+?(?=  job )", done.err),
                         ["  root cause: node " + text.replace("\n", "\n    ") + "\n"] if "\n" in text else [])

    def assert_quoted(self, done, text, *meanings, code=111):
        """Checks an error that quotes another program. `text` is exact and ends with "its last lines:". The quoted words differ
        between versions: each regular expression in `meanings` matches one of the lines."""
        self.assert_code(done, code)
        self.assertEqual(done.out, "")
        self.assertEqual(done.err.splitlines()[-1], f"ddplaunch: exit {code}: node {text.removesuffix('; its last lines:')}")
        causes = re.findall("  root cause: (?:.*\n)+?(?=  job )", done.err)
        self.assertEqual(len(causes), 1, done.err)
        first, *quoted = causes[0].splitlines()
        self.assertEqual(first, f"  root cause: node {text}")
        for line in quoted:
            self.assertRegex(line, "^      [^ ]")
        for meaning in meanings:
            self.assertTrue(any(re.search(meaning, line) for line in quoted), (meaning, quoted))

    def authorize(self, line):
        path = self.nodes.dir / "authorized_keys"
        before = path.read_text()
        path.write_text(before + line + "\n")
        self.addCleanup(path.write_text, before)

    def agent(self, *keys):
        """Starts an ssh-agent with these keys, and returns its socket."""
        path = self.dir / "agent"
        process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        self.assertTrue(wait_until(lambda: self.answers(path)))
        for key in keys:
            self.add_to_agent(path, key)
        return path

    @staticmethod
    def answers(path):
        """Returns whether a connection is possible, which becomes true later than the file appears."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(path)) == 0

    def add_to_agent(self, agent, key, passphrase=""):
        askpass = self.script("askpass", f"#!/bin/sh\necho '{passphrase}'\n")
        subprocess.run(["ssh-add", "-q", key], check=True, stdin=subprocess.DEVNULL,
                       env=dict(self.env, SSH_AUTH_SOCK=str(agent), SSH_ASKPASS=str(askpass), SSH_ASKPASS_REQUIRE="force"))

    def certify(self, ca, key, *options):
        subprocess.run(["ssh-keygen", "-q", "-s", ca, "-I", "tester", "-n", USER, *options, f"{key}.pub"], check=True)
        return f"{key}-cert.pub"

    def program_failed(self, config, host="127.0.0.2", advice=""):
        return f"{host}: ssh failed (exit status 255){advice}" + ASKS_NOTHING.format(f"ssh -F {config} {host}")


class Keys(AuthTest):
    def test_each_type_of_key(self):
        kinds = [("rsa", 2048), ("ecdsa", 256), ("ecdsa", 521), ("ed25519", None)]
        keys = [keygen(self.dir / f"{kind}{bits or ''}", kind, bits=bits) for kind, bits in kinds]
        self.authorize("\n".join(public(key) for key in keys))
        config = self.config(without=["IdentityFile"])
        hosts = [f"127.0.0.{2 + i} identity={key}" for i, key in enumerate(keys)]
        log = (self.nodes.dir / "sshd.log").read_text()
        self.assert_native(self.launch(config, *hosts), 4)
        said = (self.nodes.dir / "sshd.log").read_text()[len(log):]
        for key in keys:
            self.assertEqual(len(re.findall(rf"Accepted publickey .* {re.escape(fingerprint(key))}\n", said)), 1, key)

    def test_a_public_key_selects_a_key_of_the_ssh_agent(self):
        other, key = keygen(self.dir / "other", "ed25519"), keygen(self.dir / "chosen", "ed25519")
        self.authorize(public(key))
        self.env["SSH_AUTH_SOCK"] = str(self.agent(other, key))
        key.unlink()
        why = "IdentitiesOnly with a key that only the ssh-agent can use"
        for named in (f"{key}.pub", key):  # ssh takes the second name for the first
            config = self.config(f"IdentityFile {named}", without=["IdentityFile"])
            self.assert_folded(self.launch(config, "127.0.0.2", "127.0.0.3"), r"127\.0\.0\.[23]", why, 2)

    def test_encrypted_key(self):
        key = keygen(self.dir / "locked", "ed25519", "a secret")
        self.authorize(public(key))
        config = self.config(f"IdentityFile {key}", without=["IdentityFile", "IdentitiesOnly"])
        refused = (f"127.0.0.2: login as {USER} refused by 127.0.0.2:{self.nodes.port}; ")
        accepts = "the server accepts publickey; unlock the key before the start: "
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"{refused}there was no key to try; not usable: {key} (is encrypted); {accepts}"
                         f'eval "$(ssh-agent)" && ssh-add {key}')
        denied = rf"{USER}@127\.0\.0\.2.*denied.*publickey"
        self.assert_quoted(self.launch(config, "127.0.0.2", program=True), self.program_failed(config), denied)

        agent = self.agent()
        self.env["SSH_AUTH_SOCK"] = str(agent)
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"{refused}tried the keys of the ssh-agent; not usable: {key} (is encrypted); {accepts}ssh-add {key}; "
                         "or put the public key into ~/.ssh/authorized_keys there, or name another key with identity= in the "
                         "hostfile")
        self.add_to_agent(agent, key, "a secret")
        self.assert_native(self.launch(config, "127.0.0.2"))
        self.assert_in(self.launch(config, "127.0.0.2", program=True))

    def test_no_askpass_program_is_started(self):
        """A working askpass program is not started, neither for the host nor for a jump host."""
        key = keygen(self.dir / "locked", "ed25519", "a secret")
        self.authorize(public(key))
        self.env.update(DISPLAY=":1", SSH_ASKPASS_REQUIRE="force",
                        SSH_ASKPASS=str(self.script("askpass", f"#!/bin/sh\ntouch {self.dir}/asked\necho 'a secret'\n")))
        config = self.config("Host inner", "  HostName 127.0.0.2", "  ProxyJump 127.0.0.3", "Host *", f"IdentityFile {key}",
                             without=["IdentityFile", "BatchMode"])
        done = self.launch(config, "127.0.0.2", "inner")
        self.assert_code(done, 111)
        self.assert_code(self.launch(config, "127.0.0.2", "inner", program=True), 111)
        self.assertFalse((self.dir / "asked").exists())

    def test_keys_that_ssh_refuses_are_not_used(self):
        """The key is reported once, and another key is used. The certificate is a pipe without a writer."""
        good, shared = self.nodes.dir / "id", keygen(self.dir / "shared", "ed25519")
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        os.mkfifo(f"{shared}-cert.pub")
        shared.chmod(0o644)
        config = self.config(f"IdentityFile {shared}", f"IdentityFile {pipe}", f"IdentityFile {good}", without=["IdentityFile"])
        done = self.launch(config, f"127.0.0.2 identity={self.dir}/nope", "127.0.0.3", worker=("sh", "-c", "echo in"))
        self.assert_native(done, 2)
        self.assertEqual(len(re.findall(rf"(?m)^ddplaunch: 127\.0\.0\.[23]: the key {shared} is not used, since others may read or "
                                        rf"write it \(mode 0644\), as in ssh; fix it with chmod 600 {shared}$", done.err)), 1, done.err)
        self.assertIn(f"ddplaunch: 127.0.0.2: the key {self.dir}/nope does not exist; other keys are tried\n", done.err)
        alone = self.config(f"IdentityFile {shared}", f"IdentityFile {pipe}", without=["IdentityFile"], name="alone")
        self.assert_reported(self.launch(alone, "127.0.0.2"),
                         f"127.0.0.2: login as {USER} refused by 127.0.0.2:{self.nodes.port}; there was no key to try; not usable: "
                         f"{shared} (is open to others, so ssh does not use it either), {pipe} (is not a regular file); the server "
                         f"accepts publickey; make the key private: chmod 600 {shared}")

        unread = self.config(f"UserKnownHostsFile {pipe}", name="unread")
        self.assert_reported(self.launch(unread, "127.0.0.2", options=("--accept-new-host-keys",)),
                         f"127.0.0.2: cannot save the new host key in {pipe}: it is not a regular file")

    def test_a_missing_ssh_agent(self):
        key = keygen(self.dir / "lone", "ed25519")
        for path, why in ((self.dir / "no-agent", "No such file or directory"), (self.dir / "dead-agent", "Connection refused")):
            if path.name == "dead-agent":
                with socket.socket(socket.AF_UNIX) as dead:
                    dead.bind(str(path))
            self.env["SSH_AUTH_SOCK"] = str(path)
            config = self.config(f"IdentityFile {key}", without=["IdentityFile", "IdentitiesOnly"])
            self.assert_reported(self.launch(config, "127.0.0.2"),
                             f"127.0.0.2: login as {USER} refused by 127.0.0.2:{self.nodes.port}; tried {key}; the ssh-agent at "
                             f"{path} (SSH_AUTH_SOCK, IdentityAgent) cannot be used: {why}; the server accepts publickey; put the "
                             "public key into ~/.ssh/authorized_keys there, or name another key with identity= in the hostfile")

    def test_no_key_at_all(self):
        config = self.config(f"IdentityFile {self.dir}/nothing", without=["IdentityFile"])
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"127.0.0.2: login as {USER} refused by 127.0.0.2:{self.nodes.port}; there was no key to try; not "
                         f"usable: {self.dir}/nothing (does not exist); the server "
                         "accepts publickey; make a key with ssh-keygen and put it there with ssh-copy-id, or name one with "
                         "identity= in the hostfile")

    def test_more_keys_than_the_server_accepts(self):
        keys = [keygen(self.dir / f"k{i}", "ed25519") for i in range(7)]
        in_files = self.config(*[f"IdentityFile {key}" for key in keys], without=["IdentityFile"], name="files")
        agent = self.agent(*keys)
        in_agent = self.config(f"IdentityAgent {agent}", without=["IdentityFile", "IdentitiesOnly"], name="agent_config")
        for config in (in_files, in_agent):
            with self.subTest(config=config.name):
                done = self.launch(config, "127.0.0.2")
                self.assert_code(done, 111)
                self.assertRegex(done.err.splitlines()[-1],
                                 rf"^ddplaunch: exit 111: node 127\.0\.0\.2: the login at 127\.0\.0\.2:{self.nodes.port} was "
                                 r"interrupted: .*; servers accept only a few wrong keys \(MaxAuthTries\): name the right key with "
                                 r"identity= in the hostfile, or with IdentityFile and IdentitiesOnly in the SSH configuration$")
                self.assertLess(done.seconds, 30)

    def test_user_certificate(self):
        ca, key = keygen(self.dir / "ca", "ed25519"), keygen(self.dir / "member", "ecdsa")
        self.authorize("cert-authority " + public(ca))
        certificate = pathlib.Path(self.certify(ca, key))
        elsewhere = certificate.rename(self.dir / "elsewhere.pub")
        named = self.config(f"IdentityFile {key}", f"CertificateFile {elsewhere}", without=["IdentityFile"])
        self.assert_native(self.launch(named, "127.0.0.2"))

        # The key is in the agent, the certificate in a file: only the program can combine them.
        self.env["SSH_AUTH_SOCK"] = str(self.agent(key))
        key.unlink()
        apart = self.config(f"CertificateFile {elsewhere}", without=["IdentityFile", "IdentitiesOnly"])
        self.assert_folded(self.launch(apart, "127.0.0.2"), "127.0.0.2",
                           f"the certificate {elsewhere} whose key is in the ssh-agent")

    def test_expired_certificate(self):
        ca, key = keygen(self.dir / "ca", "ed25519"), keygen(self.dir / "member", "ed25519")
        self.authorize("cert-authority " + public(ca))
        certificate = self.certify(ca, key, "-V", "20200101:20200102")
        config = self.config(f"IdentityFile {key}", without=["IdentityFile"])
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"127.0.0.2: login as {USER} refused by 127.0.0.2:{self.nodes.port}; tried {certificate}, {key}; the "
                         "server accepts publickey; put the public key into ~/.ssh/authorized_keys there, or name another key "
                         "with identity= in the hostfile")

    def test_password_only(self):
        server = sshd(self, self.nodes, "password", "PasswordAuthentication yes", "KbdInteractiveAuthentication yes",
                      "PubkeyAuthentication no")
        config = self.config(f"Port {server.port}", "StrictHostKeyChecking accept-new",
                             f"UserKnownHostsFile {self.dir}/known_hosts")
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"127.0.0.2: login as {USER} refused by 127.0.0.2:{server.port}; tried {self.nodes.dir}/id; the server "
                         "accepts password, keyboard-interactive; ddplaunch never prompts: allow keys there "
                         f'(PubkeyAuthentication), or log in with "ssh -F {config} 127.0.0.2" as a shared connection '
                         "(ControlMaster, ControlPath, ControlPersist in the SSH configuration) and start with --ssh-command ssh")
        self.assert_quoted(self.launch(config, "127.0.0.2", program=True), self.program_failed(config),
                           rf"{USER}@127\.0\.0\.2.*denied.*password,keyboard-interactive")

    def test_second_factor(self):
        second = keygen(self.dir / "second", "rsa", bits=2048)
        self.authorize(public(second))
        known = f"UserKnownHostsFile {self.dir}/known_hosts"
        two_keys = sshd(self, self.nodes, "two", "AuthenticationMethods publickey,publickey")
        config = self.config(f"Port {two_keys.port}", "StrictHostKeyChecking accept-new", known,
                             f"IdentityFile {self.nodes.dir}/id", f"IdentityFile {second}", without=["IdentityFile"])
        self.assert_native(self.launch(config, "127.0.0.2"))
        password = sshd(self, self.nodes, "factor", "AuthenticationMethods publickey,password", "PasswordAuthentication yes")
        config = self.config(f"Port {password.port}", "StrictHostKeyChecking accept-new", known)
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"127.0.0.2: 127.0.0.2:{password.port} requires a second factor after the key, and ddplaunch never "
                         "prompts; set ControlMaster auto, ControlPath and ControlPersist in the SSH configuration, and log in "
                         f'with "ssh -F {config} 127.0.0.2" before the start')
        config = self.config(f"Port {password.port}", "StrictHostKeyChecking accept-new", known,
                             f"ControlPath {self.dir}/none", "ControlMaster auto", "ControlPersist 60")
        done = self.launch(config, "127.0.0.2")
        self.assert_quoted(done, self.program_failed(config), rf"{USER}@127\.0\.0\.2.*denied.*\(password\)")
        self.assertEqual(self.notices(done), [
            "ddplaunch: 127.0.0.2: connecting through the program ssh, because of a second factor, which a shared connection "
            "(ControlPath) may already have (reported once; other hosts may have the same reason)"])

    def test_a_shared_connection_is_used_and_none_is_created(self):
        control = self.dir / "shared"
        config = self.config(f"ControlPath {control}", "ControlMaster auto", "ControlPersist 60")
        self.assert_in(self.launch(config, "127.0.0.2", program=True))
        self.assertFalse(control.exists())
        master = subprocess.Popen(["ssh", "-F", config, "-N", "-M", "-o", "ControlPersist=no", "127.0.0.2"],
                                  stdin=subprocess.DEVNULL)
        self.addCleanup(master.wait)
        self.addCleanup(master.terminate)
        self.assertTrue(wait_until(control.exists))
        # No key of this configuration permits a login.
        locked_out = self.config(f"ControlPath {control}", f"IdentityFile {self.dir}/nothing", without=["IdentityFile"])
        self.assert_in(self.launch(locked_out, "127.0.0.2", program=True))


class HostKeys(AuthTest):
    NODES = 3

    def known(self, text):
        (self.dir / "known_hosts").write_text(text)
        return self.config(f"UserKnownHostsFile {self.dir}/known_hosts")

    def entry(self, host="127.0.0.2"):
        return f"[{host}]:{self.nodes.port}"

    def key(self):
        return public(self.nodes.dir / "host_key")

    def test_accept_new_after_a_line_without_a_newline(self):
        config = self.known(f"[127.0.0.9]:1 {self.key()}")
        self.assert_native(self.launch(config, "127.0.0.2", options=("--accept-new-host-keys",)), 1)
        self.assertEqual((self.dir / "known_hosts").read_text(),
                         f"[127.0.0.9]:1 {self.key()}\n{self.entry()} {self.key()}\n")

    def test_the_ssh_program_refuses_unknown_and_changed_keys(self):
        """--accept-new-host-keys accepts no changed one, neither of the host, nor of a jump host, nor of a host behind one."""
        other = public(keygen(self.dir / "other", "ed25519"))
        known = {host: f"{self.entry(host)} {self.key()}\n" for host in ("127.0.0.2", "127.0.0.3")}
        changed = {host: f"{self.entry(host)} {other}\n" for host in known}
        accept, unknown, differs = ("--accept-new-host-keys",), "No ED25519 host key is known for ", "REMOTE HOST IDENTIFICATION HAS CHANGED"
        for text, host, options, said in (
                ("", "127.0.0.2", (), unknown), (changed["127.0.0.2"], "127.0.0.2", (), differs), (changed["127.0.0.2"], "127.0.0.2", accept, differs),
                (changed["127.0.0.3"] + known["127.0.0.2"], "127.0.0.2 jump=127.0.0.3", accept, differs),
                (changed["127.0.0.3"] + known["127.0.0.2"], "far", accept, differs),  # its jump host is in the SSH configuration
                (changed["127.0.0.2"] + known["127.0.0.3"], "far", accept, differs)):
            with self.subTest(text=text, host=host, options=options):
                (self.dir / "known_hosts").write_text(text)
                config = self.config("Host far", "  HostName 127.0.0.2", "  ProxyJump 127.0.0.3", "Host *",
                                     f"  UserKnownHostsFile {self.dir}/known_hosts")
                done = self.launch(config, host, program=True, options=options)
                self.assert_code(done, 111)
                self.assertEqual(done.out, "")
                self.assertIn(said, done.err)
                self.assertEqual((self.dir / "known_hosts").read_text(), text)

    def test_a_directory_as_known_hosts_file(self):
        config = self.config(f"UserKnownHostsFile {self.dir}")
        done = self.launch(config, "127.0.0.2")
        self.assert_code(done, 111)
        self.assertIn("127.0.0.2: unknown host key of ", done.err)

    def test_key_of_another_kind(self):
        other = public(keygen(self.dir / "other", "ecdsa"))
        config = self.known(f"{self.entry()} {other}\n")
        shown = fingerprint(self.nodes.dir / "host_key")
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"127.0.0.2: the host key of 127.0.0.2:{self.nodes.port} (ssh-ed25519 {shown}) has another type than the "
                         f"ecdsa-sha2-nistp256 key known from {self.dir}/known_hosts:1; if the host was reinstalled: "
                         f"ssh-keygen -R '{self.entry()}' -f {self.dir}/known_hosts, then accept the new key")

    def test_host_certificate(self):
        ca, key = keygen(self.dir / "ca", "ed25519"), keygen(self.dir / "host", "ed25519")
        subprocess.run(["ssh-keygen", "-q", "-s", ca, "-I", "host", "-h", "-n", "127.0.0.2", f"{key}.pub"], check=True)
        server = sshd(self, self.nodes, "certified", f"HostKey {key}", f"HostCertificate {key}-cert.pub")
        known = self.dir / "known_hosts"
        known.write_text(f"@cert-authority [127.0.0.2]:{server.port} {public(ca)}\n")
        config = self.config(f"UserKnownHostsFile {known}", f"Port {server.port}")
        self.assert_folded(self.launch(config, "127.0.0.2"), "127.0.0.2", "@cert-authority or @revoked lines in known_hosts")
        # The same authority does not certify another name.
        known.write_text(f"@cert-authority [127.0.0.9]:{server.port} {public(ca)}\n")
        done = self.launch(config, "127.0.0.2")
        self.assert_code(done, 111)
        self.assertIn(f"unknown host key of 127.0.0.2:{server.port}", done.err.splitlines()[-1])

    def test_alias_and_several_files(self):
        (self.dir / "first").write_text(f"cluster {self.key()}\n")
        (self.dir / "second").write_text(f"{self.entry('127.0.0.4')} {self.key()}\n")
        config = self.config("Host 127.0.0.2 127.0.0.3", "  HostKeyAlias cluster", "Host *",
                             f"  UserKnownHostsFile {self.dir}/none {self.dir}/first {self.dir}/second")
        self.assert_native(self.launch(config, "127.0.0.2", "127.0.0.3", "127.0.0.4"), 3)


class Routes(AuthTest):
    """Tests jump hosts, proxies, and settings of the configuration file for one host."""

    def test_one_jump_host_and_two(self):
        second = sshd(self, self.nodes, "second")
        known = f"[127.0.0.2]:{second.port} {public(self.nodes.dir / 'host_key')}\n" + self.nodes.known_hosts.read_text()
        (self.dir / "known_hosts").write_text(known)
        config = self.config("Host far", f"  HostName 127.0.0.4", "  ProxyJump 127.0.0.3", "Host farther",
                             "  HostName 127.0.0.5", f"  ProxyJump 127.0.0.3,{USER}@127.0.0.2:{second.port}", "Host *",
                             f"  UserKnownHostsFile {self.dir}/known_hosts")
        done = self.launch(config, "far", "farther", "127.0.0.2", worker=("sh", "-c", "echo in"))
        self.assert_folded(done, "far(ther)?", "ProxyJump in the SSH configuration", 3)
        self.assertEqual(len(re.findall(r"Accepted publickey", second.log.read_text())), 1)
        hosts = ("127.0.0.4 jump=127.0.0.3", f"127.0.0.5 jump=127.0.0.3,{USER}@127.0.0.2:{second.port}", "127.0.0.2")
        before = len(re.findall(r"Accepted publickey", second.log.read_text()))
        done = self.launch(config, *hosts, worker=("sh", "-c", "echo in"))
        self.assert_folded(done, "127.0.0.[45]", "jump= of the host", 3)
        self.assertEqual(len(re.findall(r"Accepted publickey", second.log.read_text())), before + 1)

    def test_new_keys_of_jump_hosts_are_accepted(self):
        second = sshd(self, self.nodes, "newly")
        known = self.dir / "known_hosts"
        config = self.config("Host farther", "  HostName 127.0.0.4", f"  ProxyJump 127.0.0.3,{USER}@127.0.0.2:{second.port}",
                             "Host *", f"  UserKnownHostsFile {known}")
        refused = self.launch(config, "farther")
        self.assert_code(refused, 111)
        self.assertIn("No ED25519 host key is known for", refused.err)
        for _ in range(2):
            self.assert_in(self.launch(config, "farther", options=("--accept-new-host-keys",)))
            self.assertEqual([line.split()[0] for line in known.read_text().splitlines()],
                             [f"[127.0.0.3]:{self.nodes.port}", f"[127.0.0.2]:{second.port}",
                              f"[127.0.0.4]:{self.nodes.port}"])

    def test_a_jump_host_that_refuses_the_login(self):
        stranger = keygen(self.dir / "stranger", "ed25519")
        config = self.config("Host far", "  HostName 127.0.0.4", "  ProxyJump guard", "Host guard", "  HostName 127.0.0.3",
                             f"  IdentityFile {stranger}", "Host far", f"  IdentityFile {self.nodes.dir}/id",
                             without=["IdentityFile", "LogLevel"])
        done = self.launch(config, "far")
        self.assert_quoted(done, self.program_failed(config, "far"), rf"{USER}@127\.0\.0\.3.*denied.*publickey",
                           "(?i)connection (to .*)?closed")

    def test_match_include_and_ports(self):
        second = sshd(self, self.nodes, "ports")
        rest = self.nodes.ssh_config.read_text()
        (self.dir / "known_hosts").write_text(
            f"[127.0.0.2]:{second.port},[127.0.0.3]:{second.port} {public(self.nodes.dir / 'host_key')}\n"
            + self.nodes.known_hosts.read_text())
        (self.dir / "part").write_text(f"Match host 127.0.0.2\n  Port {second.port}\n")
        config = self.dir / "config"
        config.write_text(f"UserKnownHostsFile {self.dir}/known_hosts\n"
                          f'Match originalhost named exec "test %n = named"\n  HostName 127.0.0.3\n  Port {second.port}\n'
                          f"Host *\nInclude {self.dir}/part\nHost *\n" + rest)
        hosts = ("127.0.0.2", "named", f"127.0.0.4 port={self.nodes.port}", f"127.0.0.5 address=127.0.0.2 port={second.port}")
        for program in (False, True):
            with self.subTest(program=program):
                self.assert_native(self.launch(config, *hosts, program=program), 4)
        self.assertEqual(len(re.findall(r"Accepted publickey", second.log.read_text())), 6)

    def test_identities_only_excludes_the_ssh_agent(self):
        key = keygen(self.dir / "inside", "ed25519")
        self.authorize(public(key))
        self.env["SSH_AUTH_SOCK"] = str(self.agent(key))
        wrong = keygen(self.dir / "wrong", "ed25519")
        config = self.config(f"IdentityFile {wrong}", without=["IdentityFile"])
        self.assert_reported(self.launch(config, "127.0.0.2"),
                         f"127.0.0.2: login as {USER} refused by 127.0.0.2:{self.nodes.port}; tried {wrong}; the server accepts "
                         "publickey; put the public key into ~/.ssh/authorized_keys there, or name another key with identity= "
                         "in the hostfile")
        freely = self.config(f"IdentityFile {wrong}", without=["IdentityFile", "IdentitiesOnly"])
        self.assert_native(self.launch(freely, "127.0.0.2"))

    def test_connect_timeout(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.9", 0))
            silent.listen(8)
            port = silent.getsockname()[1]
            config = self.config("ConnectTimeout 3")
            done = self.launch(config, f"127.0.0.9 port={port}")
            self.assert_reported(done, f"127.0.0.9: 127.0.0.9:{port} accepted the connection, but no SSH server answered within the 3 s "
                             "of ConnectTimeout; check the port, and whether sshd there hangs")

    def test_other_users(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make another user")
        name = f"ddptest{os.getpid() % 100000}"
        home = self.dir / "home"
        self.dir.chmod(0o755)
        add_user(self, name, home)
        home.mkdir()
        shutil.chown(home, name)
        agent = self.dir / "bin" / "ddplaunchd"  # other users may not be able to read the build directory
        agent.parent.mkdir()
        shutil.copy(BIN / "ddplaunchd", agent)
        keys = self.dir / "authorized_keys"
        keys.write_text(public(self.nodes.dir / "id") + "\n")
        server = sshd(self, self.nodes, "users", f"AuthorizedKeysFile {keys}")
        known = f"UserKnownHostsFile {self.dir}/known_hosts"
        config = self.config(f"Port {server.port}", "StrictHostKeyChecking accept-new", known, "Host 127.0.0.3",
                             f"  User {name}", "Host *")
        who = ("sh", "-c", "id -un")
        options = ("--agent", agent)
        for program in (False, True):
            for other in ("127.0.0.3", f"{name}@127.0.0.3", f"127.0.0.3 user={name}"):
                with self.subTest(program=program, other=other):
                    done = self.launch(config, "127.0.0.2", other, program=program, options=options, worker=who)
                    self.assert_code(done, 0)
                    self.assertEqual(sorted(done.out.split()), sorted([USER, name]))
        # A process that hangs before the hello line ends with the start. sshd forwards signals for its users, but not for
        # root.
        begun = self.dir / "begun"
        begun.touch()
        begun.chmod(0o666)
        self.dir.chmod(0o755)
        stuck = f"127.0.0.3 user={name} wrapper=\"sh -c 'echo yes >> {begun}; sleep 987; sleep 986' -\""
        for limit in ("3s", "15s"):  # a busy machine may need more time until the wrapper runs
            done = self.launch(config, stuck, options=("--start-timeout", limit))
            self.assert_code(done, 112)
            if begun.read_text():
                break
        self.assertTrue(begun.read_text())
        uid = pwd.getpwnam(name).pw_uid
        self.assertTrue(wait_until(lambda: not self.alive(uid)), self.alive(uid))

    def alive(self, uid):
        """Returns the processes of that account except sshd's own, which end with the connection."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                state, command = (entry / "status").read_text(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"\nUid:\t{uid}\t" in state and "\nState:\tZ" not in state and not command.startswith(b"sshd"):
                found.append(command)
        return found


class Servers(AuthTest):
    """Tests servers that are newer, older or otherwise different from what libssh and OpenSSH expect."""

    NODES = 2

    def own(self, server, *lines):
        """Returns a configuration for the server in which ssh prints its complete error messages."""
        return self.config(f"Port {server.port}", "StrictHostKeyChecking accept-new",
                           f"UserKnownHostsFile {self.dir}/known_hosts", *lines, without=["LogLevel"])

    def test_post_quantum_only(self):
        offered = subprocess.run(["ssh", "-Q", "kex"], capture_output=True, text=True).stdout.split()
        hybrid = [kex for kex in offered if "sntrup" in kex or "mlkem" in kex]
        if not hybrid:
            self.skipTest("this OpenSSH has no post-quantum key exchange")
        server = sshd(self, self.nodes, "quantum", "KexAlgorithms " + ",".join(hybrid))
        config = self.own(server)
        done = self.launch(config, "127.0.0.2", "127.0.0.3")
        self.assert_in(done, 2)
        for notice in self.notices(done):  # a newer libssh knows one of them and needs no program
            self.assertRegex(notice, r"^ddplaunch: 127\.0\.0\.[23]: connecting through the program ssh, because of a key exchange "
                                     r"that libssh does not support \(.*\) \(reported once; other hosts may have the same reason\)$")
        self.assertLessEqual(len(self.notices(done)), 1, done.err)
        self.assert_in(self.launch(config, "127.0.0.2", program=True))

    def test_rsa_with_sha1_only(self):
        key = keygen(self.dir / "old_host", "rsa", bits=2048)
        server = sshd(self, self.nodes, "old", f"HostKey {key}", "HostKeyAlgorithms ssh-rsa",
                      "KexAlgorithms diffie-hellman-group14-sha1", "Ciphers aes128-ctr", "MACs hmac-sha1")
        config = self.own(server)
        advice = ("; the server supports none of the KexAlgorithms allowed here, but diffie-hellman-group14-sha1; allow one that "
                  '"ssh -Q KexAlgorithms" lists for this host in the SSH configuration (KexAlgorithms '
                  "+diffie-hellman-group14-sha1), or update its SSH server")
        done = self.launch(config, "127.0.0.2")
        self.assert_code(done, 111)
        self.assertEqual(done.err.splitlines()[-1], "ddplaunch: exit 111: node "
                         + self.program_failed(config, advice=advice).removesuffix("; its last lines:"))
        self.assertRegex(done.err, rf"\n      .*127\.0\.0\.2 port {server.port}.*no matching key exchange method.*: "
                         "diffie-hellman-group14-sha1")
        allowed = self.own(server, "HostKeyAlgorithms +ssh-rsa", "KexAlgorithms +diffie-hellman-group14-sha1")
        self.assert_native(self.launch(allowed, "127.0.0.2"))

    def test_an_ssh_1_server_and_another_program(self):
        """Tests a server of SSH version 1, and another program, which never ends its first line."""
        port = "check the port (port= in the hostfile, Port in the SSH configuration)"
        for greeting, reported in ((b"SSH-1.5-Old_1.2\n", "only supports SSH version 1 (SSH-1.5-Old_1.2), which current clients "
                                                          "refuse; update its SSH server"),
                               (b"x" * 100000, f"is not an SSH server: it sent no SSH greeting; {port}")):
            with socket.socket() as server:
                server.bind(("127.0.0.2", 0))
                server.listen(16)
                served = []

                def serve(words=greeting, taken=served, listener=server):
                    while True:
                        try:
                            taken.append(listener.accept()[0])
                            taken[-1].sendall(words)
                        except OSError:
                            if listener.fileno() < 0:
                                return

                thread = threading.Thread(target=serve, daemon=True)
                thread.start()
                number = server.getsockname()[1]
                done = self.launch(self.config(f"Port {number}"), "127.0.0.2")
                self.assert_reported(done, f"127.0.0.2: 127.0.0.2:{number} {reported}")
                self.assertEqual(len(served), 1)  # such a server is not tried again
                server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in served:
                one.close()

    def test_rsa_user_key_signed_with_sha1(self):
        key = keygen(self.dir / "old_user", "rsa", bits=2048)
        self.authorize(public(key))
        server = sshd(self, self.nodes, "olduser", "PubkeyAcceptedAlgorithms ssh-rsa")
        config = self.config(f"Port {server.port}", "StrictHostKeyChecking accept-new",
                             f"UserKnownHostsFile {self.dir}/known_hosts", f"IdentityFile {key}",
                             "PubkeyAcceptedAlgorithms ssh-rsa", without=["IdentityFile"])
        self.assert_native(self.launch(config, "127.0.0.2"))

    def kerberos(self):
        """Makes a realm with a ticket for this user. Returns the environment that finds it."""
        path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        missing = [p for p in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist") if not shutil.which(p, path=path)]
        if missing:
            self.skipTest(f"no {missing[0]} here (apt-get install krb5-kdc krb5-admin-server krb5-user)")
        port = free_port()
        (self.dir / "krb5.conf").write_text(
            "[libdefaults]\n default_realm = TEST.INVALID\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n"
            f" default_keytab_name = FILE:{self.dir}/keytab\n"
            f"[realms]\n TEST.INVALID = {{\n  kdc = 127.0.0.2:{port}\n }}\n")
        (self.dir / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.2:{port}\n kdc_tcp_listen = 127.0.0.2:{port}\n"
            f"[realms]\n TEST.INVALID = {{\n  database_name = {self.dir}/principal\n  key_stash_file = {self.dir}/stash\n"
            f"  acl_file = {self.dir}/acl\n }}\n")
        env = dict(PATH=path, KRB5_CONFIG=f"{self.dir}/krb5.conf", KRB5_KDC_PROFILE=f"{self.dir}/kdc.conf",
                   KRB5CCNAME=f"FILE:{self.dir}/tickets")

        def run(*command):
            subprocess.run(command, check=True, capture_output=True, env=dict(os.environ, **env))

        run("kdb5_util", "create", "-s", "-P", "master", "-r", "TEST.INVALID")
        for query in (f"addprinc -randkey {USER}", "addprinc -randkey host/127.0.0.2",
                      f"ktadd -k {self.dir}/keytab host/127.0.0.2", f"ktadd -k {self.dir}/user {USER}"):
            run("kadmin.local", "-q", query)
        with unittest.mock.patch.dict(os.environ, env):
            Server(self, self.nodes, "kdc", [shutil.which("krb5kdc", path=path), "-n"], port)
        run("kinit", "-k", "-t", f"{self.dir}/user", USER)
        return env

    def test_kerberos(self):
        env = self.kerberos()
        with unittest.mock.patch.dict(os.environ, env):
            server = sshd(self, self.nodes, "kerberos", "GSSAPIAuthentication yes", "GSSAPIStrictAcceptorCheck no")
        config = self.config(f"Port {server.port}", "StrictHostKeyChecking accept-new",
                             f"UserKnownHostsFile {self.dir}/known_hosts", "GSSAPIAuthentication yes",
                             f"IdentityFile {self.dir}/nothing", without=["IdentityFile"])
        self.env.update(KRB5_CONFIG=env["KRB5_CONFIG"])
        refused = self.launch(config, "127.0.0.2")
        self.assert_code(refused, 111)
        self.assertEqual(self.notices(refused), [])
        self.assertRegex(refused.err.splitlines()[-1], r"; make a key with ssh-keygen and put it there with ssh-copy-id, or name "
                         r"one with identity= in the hostfile, or get a Kerberos ticket with kinit$")
        self.env.update(env)
        self.assert_folded(self.launch(config, "127.0.0.2"), "127.0.0.2", "GSSAPIAuthentication with a Kerberos ticket")
        self.assert_in(self.launch(config, "127.0.0.2", program=True))
        self.assertIn("Accepted gssapi-with-mic", server.log.read_text())

    def test_dropbear(self):
        dropbear = shutil.which("dropbear") or "/usr/sbin/dropbear"
        if not os.path.exists(dropbear) or not shutil.which("dropbearkey"):
            self.skipTest("no dropbear here (apt-get install dropbear-bin)")
        if os.geteuid() != 0:
            self.skipTest("dropbear reads the authorized_keys of the home directory; only root can make a home for it")
        host = {}
        for kind in ("ed25519", "ecdsa", "rsa"):
            host[kind] = self.dir / f"dropbear_{kind}"
            subprocess.run(["dropbearkey", "-t", kind, "-f", host[kind]], check=True, capture_output=True)
        # The server takes keys only from the home directory of an account.
        name = f"ddpbear{os.getpid() % 100000}"
        home = self.dir / "home"
        (home / ".ssh").mkdir(parents=True)
        self.dir.chmod(0o755)
        add_user(self, name, home)
        keys = [keygen(self.dir / kind, kind) for kind in ("rsa", "ecdsa", "ed25519")]
        (home / ".ssh/authorized_keys").write_text("".join(public(key) + "\n" for key in keys))
        for path in (home, home / ".ssh", home / ".ssh/authorized_keys"):
            shutil.chown(path, name)
            path.chmod(0o700)
        agent = self.dir / "bin" / "ddplaunchd"
        agent.parent.mkdir()
        shutil.copy(BIN / "ddplaunchd", agent)
        for kind in host:
            with self.subTest(host_key=kind):
                port = free_port()
                places = [word for last in (2, 3, 4) for word in ("-p", f"127.0.0.{last}:{port}")]
                Server(self, self.nodes, f"dropbear_{kind}",
                       [dropbear, "-F", "-E", "-s", "-r", str(host[kind]), *places, "-P", str(self.dir / "dropbear.pid")], port)
                config = self.config(f"Port {port}", "StrictHostKeyChecking accept-new",
                                     f"UserKnownHostsFile {self.dir}/known_{kind}", without=["User"])
                hosts = [f"{name}@127.0.0.{2 + i} identity={key}" for i, key in enumerate(keys)]
                self.assert_native(self.launch(config, *hosts, options=("--agent", agent)), 3)



if __name__ == "__main__":
    main()
