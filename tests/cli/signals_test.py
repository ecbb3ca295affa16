#!/usr/bin/env python3
"""Tests the effect of the user's signals and the terminal on a job: Ctrl-C, Ctrl-Z, hang-up, nohup, &, SIGUSR1/2; local and
over SSH.

The shell is a real bash with job control on a pseudo-terminal."""

import contextlib
import json
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import SAME_REQUEST, LaunchTest, Nodes, is_running, live_processes_with, main, sender, wait_until


class Terminal:
    """A bash script on a separate terminal, with job control."""

    def __init__(self, test, script):
        self.shown = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(test.dir)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-c", "set -m\n" + script], test.env)
        self.ended = False
        test.addCleanup(self.end)

    def end(self):
        self.hang_up()
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def hang_up(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def read(self, seconds):
        """Reads what arrives within `seconds`, so that the program is never blocked for long."""
        if select.select([self.fd], [], [], seconds)[0]:
            with contextlib.suppress(OSError):  # EIO: no process has the terminal open
                self.shown += os.read(self.fd, 65536)

    def wait_for(self, condition, seconds=20.0):
        """Reads until `condition()` holds."""
        end = time.monotonic() + seconds
        while not (value := condition()) and time.monotonic() < end:
            self.read(0.02)
        return value

    def type(self, text):
        os.write(self.fd, text.encode())

    def text(self):
        return self.shown.decode(errors="replace")

    def wait_for_end(self, seconds=30.0):
        def over():
            pid, _ = os.waitpid(self.pid, os.WNOHANG)
            return pid != 0
        self.ended = bool(self.wait_for(over, seconds))
        before = -1
        while before != len(self.shown):  # what it wrote last
            before = len(self.shown)
            self.read(0.1)
        return self.ended


class Signals(LaunchTest):
    def cluster(self, count):
        nodes = Nodes(self, count)
        self.nodes = nodes
        return ["--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--nproc-per-node", 1]

    def up(self, count):
        """Returns whether all workers run: worker scripts touch up.RANK."""
        return all((self.dir / f"up.{rank}").exists() for rank in range(count))

    # ---- requests to stop

    def start_up(self, text, *args, ranks=2):
        """Starts workers that run the shell text, and waits until all run."""
        for path in [*self.dir.glob("up.*"), *self.dir.glob("saved.*")]:
            path.unlink()
        process = self.start(*args, self.script("worker.sh", "#!/bin/sh\n" + text))
        self.assertTrue(wait_until(lambda: self.up(ranks)))
        return process

    WAITS = "touch up.$RANK\nwhile :; do sleep 0.05; done\n"

    def start_saving(self, name, *args):
        # Worker scripts save for a moment when they are stopped. A signal must not kill the process that started them in its
        # group.
        return self.start_up(f'trap "sleep 0.3; touch saved.$RANK; exit 0" {name}\n' + self.WAITS, *args)

    def check_polite(self, number, code, why, *args):
        process = self.start_saving(number.name[3:], *args)
        process.send_signal(number)
        done = self.finish(process, timeout=60)
        self.assert_code(done, code)
        self.assertEqual(done.err.splitlines()[-1], f"ddplaunch: exit {code}: {why} from {sender()}")
        self.assertTrue(all((self.dir / f"saved.{rank}").exists() for rank in range(2)))

    def test_hangup_is_a_graceful_stop(self):
        self.check_polite(signal.SIGHUP, 129, "stopped by SIGHUP (sent when a terminal closes)", "--nproc-per-node", 2)

    def test_first_interrupt_is_a_graceful_stop_over_ssh(self):
        self.check_polite(signal.SIGINT, 130, "stopped by SIGINT", *self.cluster(2))

    def test_the_report_and_the_journal_say_who_stopped_the_job(self):
        self.check_polite(signal.SIGTERM, 143, "stopped by SIGTERM", "--nproc-per-node", 2)
        report = json.loads((self.job_dir / "report.json").read_text())
        self.assertEqual((report["stop_signal"], report["stopped_by"], report["why"]), ("SIGTERM", sender(), f"stopped by SIGTERM from {sender()}"))
        events = [json.loads(line) for line in (self.job_dir / "events.jsonl").read_text().splitlines()]
        self.assertEqual([event["reason"] for event in events if event["event"] == "signal"], [sender()])
        self.assertEqual(events[-1]["reason"], report["why"])

    def test_the_journal_has_the_sender_of_a_signal_that_is_passed_on(self):
        process = self.start("--nproc-per-node", 1, "sh", "-c", "trap 'exit 0' USR2; echo up; while :; do sleep 0.05; done")
        self.assertTrue(process.stdout.readline())
        process.send_signal(signal.SIGUSR2)
        self.assert_code(self.finish(process), 0)
        events = [json.loads(line) for line in (self.job_dir / "events.jsonl").read_text().splitlines()]
        self.assertEqual([(event["signal"], event["reason"]) for event in events if event["event"] == "signal"], [("SIGUSR2", sender())])

    def test_sigterm_of_a_schedulers_daemon_is_probably_the_schedulers(self):
        daemon = self.script("slurmstepd", "#!/bin/sh\nkill -TERM $1\nread line\n")
        for variables, words in (({"PBS_JOBID": "12.host"}, "PBS job 12.host"),
                                 ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1"}, "Slurm job 7, whose time limit is over"),
                                 ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "99999999999"}, "Slurm job 7")):
            with self.subTest(variables=variables):
                process = self.start("--launcher", "local", "--nproc-per-node", 1, "sh", "-c", "echo up; exec sleep 1000", env={**self.env, **variables})
                self.assertTrue(process.stdout.readline())
                with subprocess.Popen([daemon, str(process.pid)], stdin=subprocess.PIPE) as stopper:
                    done = self.finish(process)
                    by = sender().replace(sender().split()[0], "slurmstepd").replace(f"pid {os.getpid()} ", f"pid {stopper.pid} ")
                    stopper.stdin.close()
                self.assertEqual(done.err.splitlines()[-1], f"ddplaunch: exit 143: stopped by SIGTERM from {by}, probably the scheduler, {words}")
        process = self.start("--launcher", "local", "--nproc-per-node", 1, "sh", "-c", "echo up; exec sleep 1000", env={**self.env, "SLURM_JOB_ID": "7"})
        self.assertTrue(process.stdout.readline())
        process.send_signal(signal.SIGTERM)  # as `timeout` or a user in the job
        self.assertEqual(self.finish(process).err.splitlines()[-1], f"ddplaunch: exit 143: stopped by SIGTERM from {sender()}")

    def test_ctrl_c_is_a_keyboard_interrupt_in_python(self):
        script = self.script("train.py", """import atexit, os, time
rank = os.environ["RANK"]
atexit.register(lambda: open(f"atexit.{rank}", "w"))
try:
    open(f"up.{rank}", "w")
    time.sleep(60)
except KeyboardInterrupt:
    open(f"saved.{rank}", "w")
finally:
    open(f"finally.{rank}", "w")
""")
        process = self.start("--chdir", self.dir, "--python", sys.executable, *self.cluster(2), script)
        self.assertTrue(wait_until(lambda: self.up(2)))
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process, timeout=15), 130)
        for name in ("saved", "finally", "atexit"):
            self.assertTrue(all((self.dir / f"{name}.{rank}").exists() for rank in range(2)), name)

    def test_terminate_follows_an_interrupt_that_is_ignored(self):
        # The grace period has five parts. SIGTERM comes after four, SIGKILL after all.
        deaf = 'trap "" INT HUP\ntrap "echo terminated; exit 0" TERM\n' + self.WAITS
        numbers = (signal.SIGINT, signal.SIGHUP)
        jobs = [self.start_up(deaf, "--job-id", f"{self.job}-{number.name}", "--nproc-per-node", 2, "--stop-grace", "10s") for number in numbers]
        began = time.monotonic()
        for job, number in zip(jobs, numbers):
            job.send_signal(number)
        for job, number in zip(jobs, numbers):
            done = self.finish(job, timeout=60, began=began)
            self.assert_code(done, 128 + number)
            self.assertEqual(done.out.count("terminated"), 2, done)
            self.assertGreaterEqual(done.seconds, 8)

    def test_signals_that_come_together_are_one_request(self):
        # systemd sends SIGTERM and SIGHUP; a runner passes on a Ctrl-C that the whole group got.
        for numbers, where in (((signal.SIGTERM, signal.SIGHUP), ["--nproc-per-node", 2]), ((signal.SIGINT, signal.SIGINT), self.cluster(2))):
            with self.subTest(numbers):
                process = self.start_saving(" ".join({number.name[3:] for number in numbers}), *where)
                for number in numbers:
                    process.send_signal(number)
                done = self.finish(process, timeout=60)
                self.assertIn(done.code, [128 + number for number in numbers])  # the kernel may deliver them in another order
                self.assertNotIn("cut short", done.err)
                self.assertTrue(all((self.dir / f"saved.{rank}").exists() for rank in range(2)), done)

    DEAF = 'trap "" TERM INT\n' + WAITS

    def test_the_last_line_names_who_cut_the_grace_period_short(self):
        for then, by in ((signal.SIGTERM, "a second SIGTERM"), (signal.SIGINT, "SIGINT")):
            with self.subTest(by):
                process = self.start_up(self.DEAF, "--nproc-per-node", 2)
                process.send_signal(signal.SIGTERM)
                journal = self.job_dir / "events.jsonl"
                self.assertTrue(wait_until(lambda journal=journal: journal.exists() and '"event":"signal"' in journal.read_text()))
                time.sleep(SAME_REQUEST)
                process.send_signal(then)
                done = self.finish(process, timeout=15)
                self.assert_code(done, 128 + signal.SIGTERM)
                self.assertRegex(done.err.splitlines()[-1], rf"; the grace period was cut short by {by} after \d\.\d s from {re.escape(sender())}$")

    def test_stop_signals_of_the_leader_alone(self):
        # A data loader lives on while its rank saves; SIGKILL takes it.
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start_up('trap "sleep 0.3; [ -e stopped.$RANK ] || touch saved.$RANK; exit 0" TERM INT\n'
                                    'sh -c \'trap "touch stopped.$RANK" TERM INT; touch up.$RANK; while :; do sleep 0.05; done\' &\n'
                                    'while :; do sleep 0.05; done\n', "--nproc-per-node", 2, "--stop-signal-to", "leader")
            process.send_signal(number)
            self.assert_code(self.finish(process, timeout=15), 128 + number)
            self.assertTrue(all((self.dir / f"saved.{rank}").exists() for rank in range(2)))

    def test_second_interrupt_kills_at_once_over_ssh(self):
        process = self.start_up(self.DEAF, *self.cluster(2))
        process.send_signal(signal.SIGINT)
        while "again: now" not in process.stderr.readline():
            pass
        time.sleep(SAME_REQUEST)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        done = self.finish(process, timeout=60)
        self.assert_code(done, 130)
        self.assertLess(time.monotonic() - began, 20)  # less than the grace of 25 s

    # ---- the user's own signals

    def test_usr2_reaches_the_leader_only_over_ssh(self):
        # The worker's child is in its process group, as a data loader is. Output of a worker shows that its agent can signal it.
        script = self.script("group.sh", '#!/bin/sh\ntrap "touch leader.$RANK; sleep 0.3; exit 0" USR2\n'
                             'sh -c \'trap "touch child.$RANK" USR2; touch up.$RANK; while :; do sleep 0.05; done\' &\n'
                             'until [ -e up.$RANK ]; do sleep 0.05; done\necho up\nwhile :; do sleep 0.05; done\n')
        process = self.start(*self.cluster(2), script)
        for _ in range(2):
            self.assertTrue(process.stdout.readline().endswith("up\n"))
        process.send_signal(signal.SIGUSR2)
        done = self.finish(process, timeout=60)
        self.assert_code(done, 0)
        made = sorted(path.name for path in self.dir.iterdir() if path.name.startswith(("leader.", "child.")))
        self.assertEqual(made, ["leader.0", "leader.1"])

    # ---- on a terminal

    def on_terminal(self, script, *args):
        """Runs the shell text `script`, in which $RUN is ddplaunch with `args`."""
        if not shutil.which("bash"):
            self.skipTest("needs bash")
        self.job_dir = self.dir / "job"
        return Terminal(self, "RUN=(" + shlex.join(self.command(*args)) + ")\n" + script)

    def said(self, name):
        """Returns the content of the script's file when it is complete."""
        path = self.dir / name
        return path.read_text() if path.exists() and path.read_text().endswith("\n") else None

    WORKER = ('#!/bin/sh\ntrap "echo >> interrupted.$RANK; sleep 0.2; exit 0" INT\ntrap "echo >> hung_up.$RANK; sleep 0.2; exit 0" HUP\n'
              'trap "echo >> terminated.$RANK; exit 0" TERM\ntouch up.$RANK\nwhile :; do sleep 0.05; done\n')

    def check_ctrl_c(self, *args):
        worker = self.script("worker.sh", self.WORKER)
        terminal = self.on_terminal('"${RUN[@]}"; echo $? > code', *args, worker)
        self.assertTrue(terminal.wait_for(lambda: self.up(2)), terminal.text())
        terminal.type("\x03")  # the kernel sends SIGINT to the whole foreground group
        self.assertTrue(terminal.wait_for(lambda: self.said("code")), terminal.text())
        self.assertEqual(self.said("code"), "130\n", terminal.text())
        made = sorted(path.name for path in self.dir.iterdir() if path.name.startswith(("interr", "term", "hung")))
        self.assertEqual(made, ["interrupted.0", "interrupted.1"])
        self.assertEqual([(self.dir / name).read_text() for name in made], ["\n", "\n"])  # not also by the terminal
        self.assert_nothing_left()

    def test_ctrl_c_reaches_ddplaunch_alone(self):
        self.check_ctrl_c("--nproc-per-node", 2)

    def test_ctrl_c_spares_the_ssh_programs(self):
        self.cluster(2)
        self.check_ctrl_c("--hostfile", self.nodes.hostfile, "--ssh-command", f"ssh -F {self.nodes.ssh_config}",
                          "--nproc-per-node", 1)

    def test_closed_terminal_stops_the_job(self):
        worker = self.script("worker.sh", self.WORKER)
        terminal = self.on_terminal('"${RUN[@]}"; echo $? > code', *self.cluster(2), worker)
        self.assertTrue(terminal.wait_for(lambda: self.up(2)), terminal.text())
        terminal.hang_up()
        self.assertTrue(wait_until(lambda: all((self.dir / f"hung_up.{rank}").exists() for rank in range(2))))
        self.assertEqual(list(self.dir.glob("terminated.*")), [])
        self.assertTrue(wait_until(lambda: not live_processes_with(f"DDPLAUNCH_JOB_ID={self.job}\0")))

    def check_background(self, *args):
        # A background job may not read its terminal, so SIGTTIN would stop it.
        terminal = self.on_terminal('"${RUN[@]}" &\nwait $!; echo $? > code', *args, "sh", "-c",
                                    "touch up.$RANK; sleep 0.5; echo worked")
        self.assertTrue(terminal.wait_for(lambda: self.said("code")), terminal.text())
        self.assertEqual(self.said("code"), "0\n", terminal.text())
        self.assertTrue(terminal.wait_for(lambda: "worked" in terminal.text()), terminal.text())
        self.assert_nothing_left()

    def test_background_job_is_not_stopped_by_its_terminal(self):
        self.check_background("--nproc-per-node", 2)

    def test_background_job_that_wants_stdin_is_not_stopped_by_its_terminal(self):
        self.check_background("--nproc-per-node", 2, "--stdin", "0")

    def test_script_background_job_keeps_interrupts_ignored(self):
        # A shell without job control starts "&" jobs with SIGINT ignored, since Ctrl-C is meant for others.
        process = self.start("sh", "-c", "touch up.$RANK; sleep 1",
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        self.assertTrue(wait_until(lambda: self.up(1)))
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process, timeout=20), 0)

    def test_nohup_job_survives_its_terminal(self):
        terminal = self.on_terminal('nohup "${RUN[@]}" > out 2>&1 < /dev/null & echo $! > pid; wait $!', *self.cluster(2),
                                    "sh", "-c", "touch up.$RANK; while ! [ -e go ]; do sleep 0.05; done; touch done.$RANK")
        self.assertTrue(terminal.wait_for(lambda: self.up(2)), terminal.text())
        terminal.hang_up()
        (self.dir / "go").touch()
        self.assertTrue(wait_until(lambda: all((self.dir / f"done.{rank}").exists() for rank in range(2))),
                        (self.dir / "out").read_text())
        # Without the shell the job still ends by itself.
        pid = int((self.dir / "pid").read_text())
        self.assertTrue(wait_until(lambda: not is_running(pid)))
        self.assertNotIn("exit", (self.dir / "out").read_text())
        self.assert_nothing_left()

    def test_ctrl_z_and_fg_over_ssh(self):
        # The stop lasts longer than the agents tolerate a silent master, and than sshd tolerates a silent client.
        script = self.script("worker.sh", '#!/bin/sh\ntouch up.$RANK\nwhile ! [ -e go ]; do sleep 0.05; done\n'
                             'echo went on; touch went_on.$RANK\nwhile ! [ -e finish ]; do sleep 0.05; done\necho bye $RANK\n')
        cluster = self.cluster(2)
        with open(self.nodes.dir / "sshd_config", "a") as config:
            config.write("ClientAliveInterval 2\nClientAliveCountMax 2\n")
        self.nodes.restart_sshd()
        terminal = self.on_terminal('"${RUN[@]}"; echo $? > stopped\nwhile ! [ -e fg ]; do sleep 0.05; done\n'
                                    'fg; echo $? > code', "--master-timeout", "4s", "--node-timeout", "4s", "--max-restarts", 1,
                                    *cluster, script)
        self.assertTrue(terminal.wait_for(lambda: self.up(2)), terminal.text())
        terminal.type("\x1a")
        self.assertTrue(terminal.wait_for(lambda: self.said("stopped")), terminal.text())
        self.assertEqual(self.said("stopped"), f"{128 + signal.SIGSTOP}\n", terminal.text())
        self.assertIn(f"ddplaunch: job {self.job}: 2 nodes × 1 worker, files in ", terminal.text())
        suspended = "ddplaunch: suspended; the job goes on without this terminal (`fg` to resume)"
        self.assertTrue(terminal.wait_for(lambda: suspended in terminal.text()), terminal.text())
        end = time.monotonic() + 9  # more than both timeouts and a heartbeat
        terminal.wait_for(lambda: time.monotonic() > end, 15)
        (self.dir / "go").touch()  # the workers still run
        self.assertTrue(terminal.wait_for(lambda: all((self.dir / f"went_on.{rank}").exists() for rank in range(2))))
        terminal.read(0.5)
        self.assertNotIn("went on", terminal.text())
        (self.dir / "fg").touch()
        self.assertTrue(terminal.wait_for(lambda: terminal.text().count("went on") == 2), terminal.text())
        (self.dir / "finish").touch()
        self.assertTrue(terminal.wait_for(lambda: self.said("code")), terminal.text())
        self.assertEqual(self.said("code"), "0\n", terminal.text())
        terminal.wait_for_end()
        for rank in range(2):
            self.assertIn(f"bye {rank}", terminal.text())
        self.assertNotIn("restart 1", terminal.text())
        self.assert_nothing_left()

    @staticmethod
    def tree(root):
        """Returns the descendants of a process, except those of sshd, which no scheduler would stop."""
        children = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                pid, _, rest = path.read_text().partition(" (")
                name, _, rest = rest.rpartition(") ")
                children.setdefault(int(rest.split()[1]), []).append((int(pid), name))
        found, todo = [], [root]
        for pid in todo:
            for child, name in children.get(pid, []):
                todo.append(child)
                if not name.startswith("sshd"):
                    found.append(child)
        return found

    def test_a_scheduler_suspends_and_resumes_the_job(self):
        # For longer than every lease, as `scontrol suspend` does it: SIGSTOP to all processes, in any order.
        script = self.script("worker.sh", '#!/bin/sh\ntouch $1.$RANK\nwhile ! [ -e go ]; do sleep 0.05; done\necho bye $RANK\n')
        times = ("--master-timeout", "4s", "--node-timeout", "4s", "--stop-grace", "500ms")
        # A parent stays in state D until its child of vfork(2) executes a program.
        vfork = self.script("vfork.py", '''#!/usr/bin/env python3
import ctypes, os, platform, sys, time
open(f"{sys.argv[1]}.{os.environ['RANK']}", "w").close()
CLONE_VFORK, SIGCHLD = 0x4000, 17
if ctypes.CDLL(None).syscall({"x86_64": 56, "aarch64": 220}[platform.machine()], CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0:
    while not os.path.exists("go"):
        time.sleep(0.05)
    os._exit(0)
print("bye", os.environ["RANK"])
''')
        nodes = Nodes(self, 2)
        jobs = [self.start(*times, "--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, script, "ssh"),
                self.start(*times, "--job-id", self.job + "-b", "-n", "2", "--max-restarts", "1", script, "local"),
                self.start(*times, "--job-id", self.job + "-c", "-n", "2", script, "plain"),
                self.start(*times, "--job-id", self.job + "-d", "-n", "2", "--max-restarts", "1", vfork, "vfork")]
        self.assertTrue(wait_until(lambda: all((self.dir / f"{name}.{rank}").exists() for rank in (0, 1)
                                               for name in ("ssh", "local", "plain", "vfork")), 20))
        sshd = int((nodes.dir / "sshd.pid").read_text())
        stopped = [pid for job in jobs for pid in [job.pid, *self.tree(job.pid)]] + self.tree(sshd)
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):  # a `sleep` has ended
                os.kill(pid, signal.SIGSTOP)
        time.sleep(7)
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(5)  # more than a lease: nothing waits to end the workers
        (self.dir / "go").touch()
        for job in jobs:
            done = self.finish(job)
            self.assert_code(done, 0)
            self.assertNotIn("restart 1", done.err)
            self.assertEqual(len(re.findall("bye [01]$", done.out, re.M)), 2)

    def test_a_signal_that_the_job_control_parent_passes_on_keeps_its_sender(self):
        worker = self.script("worker.sh", self.WORKER)
        terminal = self.on_terminal('set -m\n"${RUN[@]}" &\necho $! > pid\nwait', "--nproc-per-node", 1, worker)
        self.assertTrue(terminal.wait_for(lambda: self.up(1) and self.said("pid")), terminal.text())
        os.kill(int(self.said("pid")), signal.SIGTERM)
        self.assertTrue(terminal.wait_for(lambda: f"exit 143: stopped by SIGTERM from {sender()}" in terminal.text()), terminal.text())

    def test_ctrl_z_without_a_parent_shell_is_ignored(self):
        # The job leads its session, as in `ssh -t HOST ddplaunch` and in a container.
        worker = self.script("worker.sh", '#!/bin/sh\ntouch up.$RANK\nwhile ! [ -e go ]; do sleep 0.05; done\necho bye $RANK\n')
        terminal = self.on_terminal('exec "${RUN[@]}"', "--nproc-per-node", 1, worker)
        self.assertTrue(terminal.wait_for(lambda: self.up(1)), terminal.text())
        terminal.type("\x1a")
        self.assertTrue(terminal.wait_for(lambda: "Ctrl-Z is ignored: no shell here" in terminal.text()), terminal.text())
        (self.dir / "go").touch()
        self.assertTrue(terminal.wait_for_end(), terminal.text())
        self.assertIn("bye 0", terminal.text())

    def test_process_1_of_a_container_ends_at_a_signal_before_the_job_begins(self):
        box = ["unshare", "-rpf", "--kill-child"]
        if subprocess.run([*box, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("a PID namespace of our own is not allowed here")
        os.mkfifo(self.dir / "hosts")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            job = subprocess.Popen([*box, *self.command("--hostfile", self.dir / "hosts", "true")], env=self.env, cwd=self.dir)
            with open(self.dir / "hosts", "w", encoding="ascii"):  # opens when the launcher reads the list, and it waits there
                os.kill(self.tree(job.pid)[0], number)
                self.assertEqual(job.wait(60), 128 + number)

    # ---- stderr is a pipe whose reader has ended

    LAST_WORDS = "ddplaunch: exit 130: stopped by Ctrl-C (SIGINT)"

    def with_tee(self, end, *args, text=None):
        """Starts a job in a pipe to tee, with the shell text `end` behind it. Returns its terminal when the worker runs."""
        worker = self.script("worker.sh", text or self.WORKER)
        terminal = self.on_terminal('trap : INT\n{ echo $BASHPID > pid; exec "${RUN[@]}"; } 2>&1 | tee log' + end,
                                    *args, "--nproc-per-node", 1, worker)
        self.assertTrue(terminal.wait_for(lambda: self.up(1)), terminal.text())
        return terminal

    def ended(self):
        return not is_running(int(self.said("pid")))

    def test_after_ctrl_c_ended_tee_the_last_words_are_on_the_terminal(self):
        terminal = self.with_tee("")
        terminal.type("\x03")
        self.assertTrue(terminal.wait_for(lambda: self.LAST_WORDS in terminal.text()), terminal.text())
        self.assertRegex(terminal.text(), rf"files in {self.job_dir}\r\n{re.escape(self.LAST_WORDS)}\r\n")
        self.assertNotIn("exit 130", (self.dir / "log").read_text())  # tee has not written them
        self.assertTrue(terminal.wait_for(self.ended))
        self.assertTrue((self.job_dir / "ddplaunch.log").read_text().endswith(self.LAST_WORDS + "\n"))
        self.assert_nothing_left()

    def test_after_ctrl_c_ended_tee_the_stop_is_announced_on_the_terminal(self):
        terminal = self.with_tee("", "--stop-grace", "60s", text="#!/bin/sh\n" + self.DEAF)
        terminal.type("\x03")
        announced = "ddplaunch: stopping the workers; SIGKILL in 60 s (Ctrl-C again: now)"
        self.assertTrue(terminal.wait_for(lambda: announced in terminal.text()), terminal.text())
        time.sleep(SAME_REQUEST)
        terminal.type("\x03")
        self.assertTrue(terminal.wait_for(lambda: self.LAST_WORDS in terminal.text()), terminal.text())
        self.assertTrue(terminal.wait_for(self.ended))
        self.assertEqual(terminal.text().count(self.LAST_WORDS), 1, terminal.text())
        self.assert_nothing_left()

    def test_a_running_tee_gets_the_last_words(self):
        terminal = self.with_tee("", "--quiet")
        words = f"ddplaunch: exit 130: stopped by SIGINT from {sender()}"
        os.kill(int(self.said("pid")), signal.SIGINT)
        self.assertTrue(terminal.wait_for(lambda: self.ended() and words in (self.dir / "log").read_text()), terminal.text())
        terminal.wait_for_end()
        self.assertEqual(terminal.text().count(words), 1, terminal.text())

    def test_a_background_job_without_reader_writes_nothing_on_the_terminal(self):
        terminal = self.with_tee(' & echo $! > tee\nwhile ! [ -e done ]; do sleep 0.05; done; echo over')
        self.assertTrue(terminal.wait_for(lambda: self.said("tee")))
        os.kill(int(self.said("tee")), signal.SIGKILL)
        os.kill(int(self.said("pid")), signal.SIGINT)
        self.assertTrue(terminal.wait_for(self.ended), terminal.text())
        (self.dir / "done").touch()
        self.assertTrue(terminal.wait_for(lambda: "over" in terminal.text()))
        self.assertNotIn("exit 130", terminal.text())
        self.assertIn(f"ddplaunch: exit 130: stopped by SIGINT from {sender()}", (self.job_dir / "ddplaunch.log").read_text())

    def test_ctrl_c_after_ctrl_z_stops_the_job(self):
        worker = self.script("worker.sh", self.WORKER)
        terminal = self.on_terminal('"${RUN[@]}"\ntouch stopped\nwhile ! [ -e fg ]; do sleep 0.05; done\n'
                                    'fg; echo $? > code', *self.cluster(2), worker)
        self.assertTrue(terminal.wait_for(lambda: self.up(2)), terminal.text())
        group = os.tcgetpgrp(terminal.fd)
        terminal.type("\x1a")
        self.assertTrue(terminal.wait_for(lambda: (self.dir / "stopped").exists()), terminal.text())
        (self.dir / "fg").touch()
        # Until the job has the terminal again, the typed character would go to the shell.
        self.assertTrue(terminal.wait_for(lambda: os.tcgetpgrp(terminal.fd) == group), terminal.text())
        terminal.type("\x03")
        self.assertTrue(terminal.wait_for(lambda: self.said("code")), terminal.text())
        self.assertEqual(self.said("code"), "130\n", terminal.text())
        self.assert_nothing_left()


if __name__ == "__main__":
    main()
