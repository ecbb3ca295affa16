#!/usr/bin/env python3
"""Tests jobs through daemons, and their failures: several listeners on 127.0.0.x emulate nodes."""

import contextlib
import hashlib
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, LaunchTest, main, wait_until
from tests.support.ports import free_port

DDPLAUNCHD = str(BIN / "ddplaunchd")


def processes():
    """Returns {pid: (parent, state, name, command line)} of all processes."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        found[int(entry.name)] = (int(rest.split()[1]), rest.split()[0], name, line)
    return found


class Daemon:
    """One `ddplaunchd --listen` on a separate address. Nobody else takes its port when it has ended."""

    def __init__(self, test, address, port=None, program=DDPLAUNCHD, token=None, env=None):
        self.log_path = test.dir / f"daemon-{len(test.daemons)}.log"
        test.daemons.append(self)
        options = ["--token-file", token or test.token] if token != "" else []
        self.address, self.port = address, port or free_port()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([program, "--listen", f"{address}:{self.port}", *map(str, options)], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env=env or test.env, start_new_session=True)
        test.addCleanup(self.end)
        if not wait_until(lambda: "listening at" in self.log() or self.process.poll() is not None):
            raise RuntimeError("the daemon does not say that it listens")

    def log(self):
        return self.log_path.read_text()

    def host(self, slots=1):
        return f"{self.address} port={self.port} slots={slots}"

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


class DaemonTest(LaunchTest):
    def setUp(self):
        super().setUp()
        self.daemons = []
        self.env["XDG_CONFIG_HOME"] = str(self.dir / "config")
        self.token = self.new_token("token")
        self.addCleanup(self.end_sessions)

    def new_token(self, name):
        path = self.dir / name
        subprocess.run([DDPLAUNCHD, "--new-token", path], check=True, stdout=subprocess.DEVNULL, env=self.env)
        return path

    def sessions(self):
        """Returns the session processes of this test's daemons, whose command lines contain the token file's path."""
        return [pid for pid, (_, state, name, line) in processes().items()
                if name == "ddp-session" and state != "Z" and str(self.dir) in line]

    def end_sessions(self):
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def below(self, pid):
        table, found, more = processes(), [], {pid}
        while more:
            more = {child for child, row in table.items() if row[0] in more}
            found += more
        return {child: table[child] for child in found}

    def find(self, name, below):
        """Returns the only process of that name below the session `below`."""
        return next(pid for pid, row in self.below(below).items() if row[2] == name)

    def nodes(self, count=2, slots=1, **options):
        daemons = [Daemon(self, f"127.0.0.{2 + i}", **options) for i in range(count)]
        hosts = self.dir / "hosts"
        hosts.write_text("".join(daemon.host(slots) + "\n" for daemon in daemons))
        self.daemon = ["--launcher", "daemon", "--hostfile", hosts, "--token-file", self.token]
        return daemons

    def finish(self, process, timeout=60, began=None):
        outcome = super().finish(process, timeout, began)
        self.assertTrue(wait_until(lambda: not self.sessions()), "a session is left")
        return outcome

    def started(self, *args):
        """Starts a job, and waits until its ranks run. They sleep until they are stopped."""
        job = self.start(*self.daemon, "--label", "", "sh", "-c", "echo began; exec sleep 100", *args)
        for _ in range(2):
            self.assertEqual(job.stdout.readline(), "began\n")
        return job


class Jobs(DaemonTest):
    def test_ranks_output_and_exit_code(self):
        daemons = self.nodes(2, slots=2)
        said = self.dir / "said"
        said.mkdir()
        done = self.run_job(*self.daemon, "sh", "-c", f'echo out $RANK $NODE_RANK $WORLD_SIZE; echo err $RANK >&2; touch {said}/$RANK; '
                            f'until [ $(ls {said} | wc -l) = 4 ]; do sleep 0.05; done; test $RANK != 3 || exit 9')
        self.assert_code(done, 9)
        self.assertEqual(sorted(done.out.splitlines()),
                         [f"[127.0.0.{2 + r // 2}:{r}] out {r} {r // 2} 4" for r in range(4)])
        self.assertEqual(sorted(line for line in done.err.splitlines() if line.startswith("[")),
                         [f"[127.0.0.{2 + r // 2}:{r}] err {r}" for r in range(4)])
        for daemon in daemons:
            self.assertRegex(daemon.log(), rf"job {self.job} of 127\.0\.0\.1: process \d+ serves it as node {daemon.address}")
            self.assertIn(f"job {self.job} of 127.0.0.1: the agent ended with status 0", daemon.log())

    def test_standard_input_goes_to_rank_0(self):
        self.nodes(2)
        text = "".join(f"line {i}\n" for i in range(20_000))
        done = self.run_job(*self.daemon, "--label", "", "--stdin", "0", "sh", "-c", "sort -k2n", stdin=text)
        self.assert_code(done, 0)
        self.assertEqual(done.out, text)

    def test_20_MB_arrive_completely(self):
        self.nodes(2)
        code = "import os,sys\nfor i in range(100_000): sys.stdout.write(f\"{os.environ['RANK']} {i:090d}\\n\")"
        with open(self.dir / "shown", "wb") as shown:
            job = subprocess.Popen(self.command(*self.daemon, "--label", "", "--quiet", sys.executable, "-c", code), cwd=self.dir,
                                   stdin=subprocess.DEVNULL, stdout=shown, env=self.env)
            self.assertEqual(job.wait(120), 0)
        for rank in range(2):
            expected = hashlib.sha256("".join(f"{rank} {i:090d}\n" for i in range(100_000)).encode()).hexdigest()
            kept = (self.job_dir / f"attempt_0/rank_{rank:05d}.stdout").read_bytes()
            self.assertEqual(hashlib.sha256(kept).hexdigest(), expected)
        self.assertEqual((self.dir / "shown").stat().st_size, 2 * 100_000 * 93)

    def test_two_jobs_at_once(self):
        self.nodes(2)
        meet = f"touch {self.dir}/$MINE; until test -e {self.dir}/$OTHER; do sleep 0.05; done; echo $MINE"
        first = self.start(*self.daemon, "--label", "", "--env", "MINE=a", "--env", "OTHER=b", "sh", "-c", meet)
        second = self.start(*self.daemon, "--job-id", f"{self.job}-b", "--label", "", "--env", "MINE=b", "--env", "OTHER=a", "sh", "-c", meet)
        outs = [job.communicate(timeout=60)[0] for job in (first, second)]
        self.assertEqual([first.returncode, second.returncode], [0, 0])
        self.assertEqual(outs, ["a\na\n", "b\nb\n"])

    def test_variables_of_systemd_stay_with_the_service(self):
        env = dict(self.env, NOTIFY_SOCKET="/x", JOURNAL_STREAM="8:1", INVOCATION_ID="i", DDPLAUNCH_TOKEN=self.token.read_text().strip(),
                   OF_THE_NODE="yes")
        daemon = self.nodes(1, token="", env=env)[0]
        self.assertIn("with the token of DDPLAUNCH_TOKEN (check ", daemon.log())
        environ = pathlib.Path(f"/proc/{daemon.process.pid}/environ").read_bytes()
        self.assertNotIn(self.token.read_bytes().strip(), environ)
        self.env["DDPLAUNCH_TOKEN"] = self.token.read_text().strip()
        done = self.run_job(*self.daemon[:-2], "--label", "", "env")
        self.assert_code(done, 0)
        seen = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
        self.assertEqual({"NOTIFY_SOCKET", "JOURNAL_STREAM", "INVOCATION_ID", "DDPLAUNCH_TOKEN"} & set(seen), set())
        self.assertEqual(seen["OF_THE_NODE"], "yes")

    def test_check_and_plan(self):
        self.nodes(2)
        plan = subprocess.run(self.command(*self.daemon, "--dry-run", "true"), capture_output=True, text=True, env=self.env, cwd=self.dir)
        self.assertIn("through the daemons there", plan.stdout)
        done = subprocess.run([BIN / "ddplaunch", "hosts", *map(str, self.daemon)], capture_output=True, text=True, env=self.env, cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("127.0.0.3", done.stdout)


class Refusals(DaemonTest):
    def test_another_token(self):
        daemon = self.nodes(1)[0]
        other = self.new_token("other")
        done = self.run_job(*self.daemon, "--token-file", other, "true")
        self.assert_code(done, 111)
        self.assertIn(f"127.0.0.2: the token differs: 127.0.0.2:{daemon.port} has another token than this node, which uses the "
                      f"token file {other} (check ", done.err)
        self.assertIn(f"its token differs from ours (the token file {self.token}, check ", daemon.log())
        self.assertNotIn("serves it", daemon.log())

    def test_the_listening_program_does_nothing_else(self):
        for words in ([], ["--help"], ["--version"], ["--fits", "1", "2"]):
            done = subprocess.run([BIN / "ddplaunch-listen", *words], capture_output=True, text=True, timeout=20)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertTrue(done.stderr.startswith("ddplaunchd: "), done.stderr)
        self.assertEqual(done.stderr, "ddplaunchd: ddplaunch-listen serves only --listen and --new-token; run ddplaunchd\n")

    def test_help_that_cannot_be_written(self):
        for option in ("--help", "-V"):
            with open("/dev/full", "w") as full:
                done = subprocess.run([DDPLAUNCHD, option], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
            self.assertEqual((done.returncode, done.stderr),
                             (110, "ddplaunchd: cannot write the result to standard output: No space left on device\n"))

    def test_a_link_that_ends_after_the_proof_of_the_token_is_retried(self):
        daemon = self.nodes(1)[0]

        def pump(source, sink):
            """Copies bytes until either end is closed or cut."""
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        def carry(front):
            """Cuts the first link after the master's second flight, which proves its token, as a listener that ends does."""
            with front.accept()[0] as master, socket.create_connection((daemon.address, daemon.port)) as node:
                node.sendall(master.recv(65536))
                while master not in (ready := select.select([node, master], [], [])[0]):
                    master.sendall(ready[0].recv(65536))
            with front.accept()[0] as master, socket.create_connection((daemon.address, daemon.port)) as node:
                up = threading.Thread(target=pump, args=(master, node))
                up.start()
                pump(node, master)
                up.join()

        with socket.create_server(("127.0.0.2", 0)) as front:
            front.settimeout(60)
            carrier = threading.Thread(target=carry, args=(front,), daemon=True)
            carrier.start()
            done = self.run_job("--launcher", "daemon", "--host", "127.0.0.2", "--daemon-port", front.getsockname()[1],
                                "--token-file", self.token, "--label", "", "echo", "here")
            carrier.join(60)
        self.assert_code(done, 0)
        self.assertEqual(done.out, "here\n")

    def test_tokens_that_are_refused(self):
        """Both by the daemon and by a job."""
        self.nodes(1)
        public, none = self.new_token("public"), self.dir / "none"
        public.chmod(0o644)
        for options, why in (([], f"there is no token: {self.dir}/config/ddplaunch/token does not exist. \"ddplaunchd --new-token\" writes one"),
                             (["--token-file", public], f"the token file {public} may be read by everybody (mode 0644)"),
                             (["--token-file", none], f"the token file {none}: No such file or directory")):
            with self.subTest(why):
                done = self.run_job(*self.daemon[:-2], *options, "true")
                listener = subprocess.run([DDPLAUNCHD, "--listen", "127.0.0.2:0", *map(str, options)], capture_output=True, text=True, env=self.env)
                for program, code, err in (("ddplaunch", done.code, done.err), ("ddplaunchd", listener.returncode, listener.stderr)):
                    self.assertEqual(code, 2, program)
                    self.assertIn(why, err)

    def test_the_default_token_file(self):
        made = subprocess.run([DDPLAUNCHD, "--new-token"], check=True, capture_output=True, text=True, env=self.env).stdout.strip()
        self.assertEqual(made, f"{self.dir}/config/ddplaunch/token")
        self.assertEqual(os.stat(made).st_mode & 0o7777, 0o600)
        again = subprocess.run([DDPLAUNCHD, "--new-token"], capture_output=True, text=True, env=self.env)
        self.assertEqual(again.returncode, 2)
        self.assertIn("exists already and was not changed; remove it first if no node uses its token", again.stderr)
        self.nodes(1, token="")
        self.assert_code(self.run_job(*self.daemon[:-2], "true"), 0)

    def test_an_unauthenticated_peer_is_refused_and_logged(self):
        daemon = self.nodes(1)[0]
        with socket.create_connection((daemon.address, daemon.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(stranger.recv(100), b"")
        self.assertTrue(wait_until(lambda: "sent HTTP to" in daemon.log()), daemon.log())
        self.assert_code(self.run_job(*self.daemon, "true"), 0)

    def test_no_daemon_listens(self):
        daemon = self.nodes(1)[0]
        daemon.end()
        done = self.run_job(*self.daemon, "true")
        self.assert_code(done, 111)
        self.assertLess(done.seconds, 15)
        self.assertIn(f"127.0.0.2: connection refused on port {daemon.port}; check that ddplaunchd --listen runs there: systemctl "
                      f"--user start ddplaunchd (docs/users/daemon.md)", done.err)

    def test_another_program_listens(self):
        with socket.create_server(("127.0.0.2", 0)) as other:
            pid = os.fork()
            if pid == 0:
                peer = other.accept()[0]
                peer.sendall(b"220 mail ready\r\n")
                peer.recv(1)
                os._exit(0)
            done = self.run_job("--launcher", "daemon", "--host", f"127.0.0.2 port={other.getsockname()[1]}", "--token-file", self.token,
                                "true")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.assert_code(done, 114)
        self.assertIn("is not ddplaunchd --listen. Check the port: port= in the hostfile, or --daemon-port (it sent \"220 mail ready\")",
                      done.err)

    def test_a_silent_peer_is_waited_for_until_the_start_limit(self):
        with socket.create_server(("127.0.0.2", 0)) as silent:
            port = silent.getsockname()[1]
            done = self.run_job("--launcher", "daemon", "--host", "127.0.0.2", "--daemon-port", port, "--token-file", self.token,
                                "--start-timeout", "2s", "true")
            self.assert_code(done, 112)
            self.assertLess(done.seconds, 25)
            self.assertIn(f"127.0.0.2:{port} accepted the connection but did not answer in time", done.err)
            silent.accept()[0].close()
            # A signal ends the job at once.
            job = self.start("--launcher", "daemon", "--host", "127.0.0.2", "--daemon-port", port, "--token-file", self.token, "true")
            connection = silent.accept()[0]
            connection.recv(1)
            job.send_signal(signal.SIGTERM)
            done = self.finish(job)
            connection.close()
            self.assert_code(done, 143)
            self.assertLess(done.seconds, 25)

    def test_an_agent_of_another_version(self):
        place = self.dir / "bin"
        place.mkdir()
        shutil.copy(BIN / "ddplaunch-listen", place)
        other = self.script("bin/ddplaunchd", "#!/bin/sh\necho ddplaunchd-hello 1 0.0.1\ncat >/dev/null\n")
        self.nodes(1, program=place / "ddplaunch-listen")
        done = self.run_job(*self.daemon, "true")
        self.assert_code(done, 114)
        self.assertIn("0.0.1", done.err)
        other.unlink()
        done = self.run_job(*self.daemon, "true")
        self.assert_code(done, 114)
        self.assertIn(f"127.0.0.2: the daemon could not start an agent there: ddplaunchd: cannot execute '{place}/ddplaunchd'",
                      done.err)

    def test_the_port_is_in_use(self):
        daemon = self.nodes(1)[0]
        second = subprocess.run([DDPLAUNCHD, "--listen", f"127.0.0.2:{daemon.port}", "--token-file", self.token], capture_output=True,
                                text=True, env=self.env)
        self.assertEqual(second.returncode, 110)
        self.assertIn(f"ddplaunchd: 127.0.0.2:{daemon.port} is in use, perhaps by another ddplaunchd --listen", second.stderr)

    def test_the_program_that_listens_is_missing(self):
        place = self.dir / "bin"
        place.mkdir()
        shutil.copy(DDPLAUNCHD, place)
        done = subprocess.run([place / "ddplaunchd", "--listen"], capture_output=True, text=True, env=self.env)
        self.assertEqual(done.returncode, 110)
        self.assertIn(f"cannot execute {place}/ddplaunch-listen: No such file or directory; --listen and --new-token need this "
                      "program", done.stderr)


class Ends(DaemonTest):
    def test_jobs_outlive_the_daemon(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                daemons = self.nodes(2)
                job = self.start(*self.daemon, "--label", "", "sh", "-c",
                                 f"echo began; until test -e {self.dir}/go$0; do sleep 0.05; done; echo done", int(number))
                for _ in range(2):
                    self.assertEqual(job.stdout.readline(), "began\n")
                codes = [daemon.end(number) for daemon in daemons]
                self.assertEqual(codes, [0, 0] if number == signal.SIGTERM else [-9, -9])
                if number == signal.SIGTERM:
                    self.assertIn("SIGTERM: shutting down; 1 job keeps running", daemons[0].log())
                # The daemons take the same ports at once, as after a restart.
                again = [Daemon(self, daemon.address, daemon.port) for daemon in daemons]
                other = subprocess.run(self.command(*self.daemon, "--job-id", f"{self.job}-b", "--job-dir", self.dir / f"b{int(number)}", "true"),
                                       capture_output=True, text=True, env=self.env, cwd=self.dir)
                self.assertEqual(other.returncode, 0, other.stderr)
                (self.dir / f"go{int(number)}").touch()
                done = self.finish(job)
                self.assert_code(done, 0)
                self.assertEqual(done.out, "done\ndone\n")
                for daemon in again:
                    daemon.end()

    def test_a_restarted_daemon_is_waited_for(self):
        daemon = self.nodes(1)[0]
        daemon.end()
        job = self.start(*self.daemon, "--label", "", "echo", "here")
        Daemon(self, daemon.address, daemon.port)
        done = self.finish(job)
        self.assert_code(done, 0)
        self.assertEqual(done.out, "here\n")

    def test_killed_agent(self):
        self.nodes(2)
        job = self.started()
        agent = self.find("ddplaunchd", self.sessions()[0])
        os.kill(agent, signal.SIGKILL)
        done = self.finish(job)
        self.assert_code(done, 113)
        self.assertIn("ddplaunchd keeper: ", done.err)

    def test_killed_session(self):
        self.nodes(2)
        job = self.started()
        os.kill(self.sessions()[0], signal.SIGKILL)
        done = self.finish(job)
        self.assert_code(done, 113)
        self.assertIn("check whether the daemon's session for this job was killed", done.err)

    def test_a_killed_session_is_replaced_by_another(self):
        self.nodes(2)
        job = self.start(*self.daemon, "--nnodes", "2", "--max-restarts", "3", "--label", "", "--node-timeout", "5s", "--master-timeout", "5s",
                         "sh", "-c", f"echo began $WORLD_SIZE; until test -e {self.dir}/go; do sleep 0.05; done")
        for _ in range(2):
            self.assertEqual(job.stdout.readline(), "began 2\n")
        os.kill(self.sessions()[0], signal.SIGKILL)
        for _ in range(2):
            self.assertEqual(job.stdout.readline(), "began 2\n")
        (self.dir / "go").touch()
        done = self.finish(job)
        self.assert_code(done, 0)

    def test_killed_master(self):
        daemons = self.nodes(2)
        job = self.started()
        for pid in self.below(self.sessions()[0]):  # on one node a scheduler has suspended the job
            os.kill(pid, signal.SIGSTOP)
        job.kill()
        job.communicate()
        self.assertTrue(wait_until(lambda: not self.sessions()))
        self.assert_nothing_left()
        self.assertIn("the link to the master is lost; the agent stops the job's workers on this node", daemons[0].log())

    def test_interrupt(self):
        self.nodes(2)
        job = self.start(*self.daemon, "--label", "", "sh", "-c", "trap 'echo ended; exit 0' INT TERM; echo began; while :; do sleep 0.1; done")
        for _ in range(2):
            self.assertEqual(job.stdout.readline(), "began\n")
        job.send_signal(signal.SIGINT)
        done = self.finish(job)
        self.assert_code(done, 130)
        self.assertEqual(done.out, "ended\n" * 2)

    def test_sessions_leave_no_zombie(self):
        daemon = self.nodes(1)[0]
        self.assert_code(self.run_job(*self.daemon, "true"), 0)
        self.assertTrue(wait_until(lambda: not self.below(daemon.process.pid)))


if __name__ == "__main__":
    main()
