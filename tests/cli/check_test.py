#!/usr/bin/env python3
"""Tests ddplaunch check over SSH nodes with injected faults: what it finds and reports, and that no process is left."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, DDPLAUNCH, LaunchTest, Nodes, main, wait_until, without_waits

FAKE_NVML = BIN.parent / "fake_nvml"


class Check(LaunchTest):
    """The agents run under a name of this test, by which their leftovers are found."""

    @classmethod
    def setUpClass(cls):
        # A start-up file makes one node differ: 127.0.0.3 sets a limit if the test asks for it.
        cls.rc_dir = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-check-"))
        cls.addClassCleanup(shutil.rmtree, cls.rc_dir, ignore_errors=True)
        rc = cls.rc_dir / "rc"
        rc.write_text('case "$SSH_CONNECTION" in *" 127.0.0.3 "*) [ -f "%s/limit" ] && ulimit -S -n 60;; esac\n'
                      % cls.rc_dir)
        cls.nodes = Nodes.of_class(cls, 3, NODES_BASHRC=str(rc))

    def setUp(self):
        super().setUp()
        self.agent = self.dir / "ddplaunchd"
        shutil.copy(BIN / "ddplaunchd", self.agent)
        self.hosts = self.hostfile("".join(f"{host}\n" for host in self.nodes.hosts))

    def hostfile(self, text):
        path = self.dir / "hosts"
        path.write_text(text)
        return path

    def command_of(self, *args, verb="check", agent=None):
        return [DDPLAUNCH, verb, "--hostfile", self.hosts, "--ssh-config", self.nodes.ssh_config, "--agent",
                agent or self.agent, *map(str, args)]

    def check(self, *args, **options):
        done = subprocess.run(self.command_of(*args, **options), capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, env=self.env, cwd=self.dir, check=False)
        self.assert_no_agent()
        return done

    def check_json(self, *args, **options):
        done = self.check("--json", *args, **options)
        try:
            return done, json.loads(done.stdout)
        except ValueError:
            self.fail(f"no JSON: {done}")

    def assert_no_agent(self):
        def agents():
            found = []
            for entry in pathlib.Path("/proc").iterdir():
                try:
                    if entry.name.isdigit() and str(self.agent).encode() in (entry / "cmdline").read_bytes():
                        found.append(entry.name)
                except OSError:
                    pass
            return found
        self.assertTrue(wait_until(lambda: not agents()), "agents are left")

    def with_tool(self, name, text):
        """Makes a program for the nodes. Returns options with which they find it."""
        tools = self.dir / "tools"
        tools.mkdir()
        self.script(f"tools/{name}", text)
        return "--env", f"PATH={tools}:{os.environ['PATH']}"

    def errors(self, report):
        return [(f["item"], f["hosts"], f["text"]) for f in report["findings"] if f["level"] == "error"]

    def test_all_hosts_pass(self):
        done = self.check("sh")
        self.assertEqual(done.returncode, 0, done)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], "^host +answer +system +CPUs .*program +directory +address +port +clock +files ")
        for line, host in zip(lines[1:4], self.nodes.hosts):
            self.assertRegex(line, rf"^{host} +\d+\.\d\d s .* ok ")
        self.assertNotIn("error", done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        self.assertEqual(without_waits(done.stderr), "")
        self.assertFalse((self.dir / "state").exists(), "a check has no job and writes no files")

    def test_all_hosts_pass_as_json(self):
        done, report = self.check_json("sh")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(report["exit_code"], 0)
        self.assertEqual([host["host"] for host in report["hosts"]], self.nodes.hosts)
        for host in report["hosts"]:
            self.assertIsNone(host["error"])
            self.assertTrue(host["program"].endswith("/sh"))
            self.assertEqual(host["directory"], str(self.dir))
            self.assertTrue(host["reaches_node_0"])
            self.assertLess(abs(host["clock_ahead_seconds"]), 1)  # all nodes are one machine
            self.assertGreater(host["nofile"], 0)
            self.assertGreater(host["disks"][0]["size"], 0)
        self.assertIsNotNone(report["network"]["master_addr"])

    def test_directory_program_and_environment(self):
        self.hostfile("127.0.0.2\n127.0.0.3 chdir=/nonexistent\n127.0.0.4 chdir=/nonexistent\n")
        done, report = self.check_json("--env", "VIRTUAL_ENV=/no/venv")
        self.assertEqual(done.returncode, 115, done)
        self.assertEqual([(item, hosts) for item, hosts, _ in self.errors(report)],
                         [("directory", ["127.0.0.3", "127.0.0.4"]), ("environment", self.nodes.hosts)])
        self.assertIn("VIRTUAL_ENV names /no/venv, which does not exist", self.errors(report)[1][2])
        self.script("bad.sh", "#!/nosuch/interp\n")
        done = self.check("./bad.sh")
        self.assertIn("its first line names the interpreter /nosuch/interp, which does not exist", done.stdout)
        done = self.check("no-such-program")
        self.assertEqual(done.returncode, 115, done)
        self.assertIn("error: 127.0.0.[3-4]: the working directory /nonexistent: No such file or directory; create it "
                      "there, or name another with --chdir or chdir= in the hostfile\n", done.stdout)
        self.assertRegex(done.stdout, r"error: 127\.0\.0\.\[2-4\]: .*no-such-program.*\n")
        self.assertEqual(without_waits(done.stderr), "ddplaunch: exit 115: a job would fail, 2 errors found\n")

    def test_small_limit_on_one_host(self):
        limit = self.rc_dir / "limit"
        limit.touch()
        self.addCleanup(limit.unlink)
        done, report = self.check_json()
        self.assertEqual(done.returncode, 115, done)
        self.assertEqual(self.errors(report),
                         [("limits", ["127.0.0.3"], "a worker may have only 60 files open (ulimit -n), and needs about 70")])

    def test_unreachable_and_wrong_version(self):
        unusual = self.script("odd-agent", '#!/bin/sh\ncase "$SSH_CONNECTION" in *" 127.0.0.3 "*) echo "ddplaunchd-hello 1 0.0.0"; '
                          f'cat >/dev/null;; *) exec {self.agent} "$@";; esac\n')
        self.hostfile("127.0.0.2\n127.0.0.3\n127.0.0.4\ndead address=127.0.0.2 port=1\n")
        done, report = self.check_json("--start-timeout", "40s", agent=unusual)
        self.assertEqual(done.returncode, 114, done)  # the code of the first failed host
        found = {item: (hosts, text) for item, hosts, text in self.errors(report)}
        self.assertEqual(found["reach"][0], ["dead"])
        self.assertIn("Connection refused", found["reach"][1])
        self.assertEqual(found["agent"][0], ["127.0.0.3"])
        self.assertIn("0.0.0", found["agent"][1])
        # The others were checked nevertheless, including the connection between them.
        self.assertTrue(report["hosts"][2]["reaches_node_0"])
        self.assertEqual(done.stderr.splitlines()[-1],
                         "ddplaunch: exit 114: 2 hosts of 4 could not be checked: 127.0.0.3,dead")

    def test_an_agent_that_dies_is_reported_by_its_keeper(self):
        path = self.with_tool("nvidia-smi", "#!/bin/sh\nkill -KILL $PPID\nexec sleep 300\n")
        self.hostfile("127.0.0.2\n")
        done, report = self.check_json(*path)
        self.assertEqual(done.returncode, 113, done)
        self.assertRegex(report["hosts"][0]["error"]["text"], "^the agent was killed by SIGKILL; killed [01] leftover process")

    def test_interrupt_while_one_host_is_silent(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.hostfile(f"127.0.0.2\nslow address=127.0.0.1 port={silent.getsockname()[1]}\n")
            process = subprocess.Popen(["nohup", *self.command_of()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       stdin=subprocess.DEVNULL, env=self.env, cwd=self.dir)
            self.addCleanup(lambda: process.poll() is None and process.kill())
            silent.settimeout(60)
            connection, _ = silent.accept()  # the check is under way
            status = pathlib.Path("/proc", str(process.pid), "status").read_text()
            ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
            self.assertEqual((ignored >> signal.SIGHUP - 1 & 1, ignored >> signal.SIGINT - 1 & 1), (1, 0), "nohup keeps SIGHUP ignored")
            waiting = "waiting for 1 of 2 nodes: slow (SSH greeting)"
            line = process.stderr.readline()
            while line.startswith("ddplaunch: waiting for 2 of 2 nodes: "):  # 127.0.0.2 may need longer than 3 s
                line = process.stderr.readline()
            self.assertEqual(line, f"ddplaunch: {waiting}\n")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            connection.close()
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(err.splitlines()[-1], f"ddplaunch: exit 130: stopped by the user while {waiting}")
        self.assertRegex(out, r"(?m)^127\.0\.0\.2 +\d+\.\d\d s ")  # it was checked meanwhile
        self.assert_no_agent()

    def test_setup_runs_as_in_a_job(self):
        tools = self.dir / "tools"
        tools.mkdir()
        self.script("tools/tool-of-a-module", "#!/bin/sh\n")
        setup = f"case $SSH_CONNECTION in *' 127.0.0.3 '*) set -e; echo no module; (exit 4); esac; PATH={tools}:$PATH"
        done, report = self.check_json("--setup", setup, "tool-of-a-module")
        self.assertEqual(done.returncode, 115, done)
        self.assertEqual(self.errors(report), [("environment", ["127.0.0.3"], "--setup failed: its shell exited 4")])
        self.assertEqual(report["findings"][0]["advice"].splitlines()[-1], "  no module")
        self.assertEqual(without_waits(done.stderr), "ddplaunch: exit 115: a job would fail, 1 error found\n")
        self.assertEqual([host["program"] for host in report["hosts"]],
                         [f"{tools}/tool-of-a-module", None, f"{tools}/tool-of-a-module"])

    def test_a_problem_of_one_host_is_named_with_the_host(self):
        self.hostfile("127.0.0.2\n127.0.0.3 gpus=0,1\n127.0.0.4 env:PYTHONPATH=%s\n" % self.dir)
        (self.dir / "planted").mkdir()
        (self.dir / "planted" / "__init__.py").write_text("raise SystemExit('imported')\n")
        nowhere = self.dir / "empty"
        nowhere.mkdir()
        done, report = self.check_json("--chdir", nowhere, "--python", sys.executable, "-m", "planted.train")
        self.assertEqual(done.returncode, 115, done)
        expected = [("program", ["127.0.0.2", "127.0.0.3"], f"{sys.executable} finds no module planted")]
        self.assertEqual(self.errors(report)[:1], expected)
        if not any(host["gpu_count"] for host in report["hosts"]):
            self.assertIn(("warning", ["127.0.0.3"], "gpus= or --include names 2 GPUs, but it has none"),
                          [(f["level"], f["hosts"], f["text"]) for f in report["findings"]])

    def test_interrupt_ends_a_tool_that_hangs(self):
        path = self.with_tool("nvidia-smi", f"#!/bin/sh\ntrap '' TERM\necho $$ >> {self.dir}/up\nexec sleep 300\n")
        self.hostfile("127.0.0.2\n")
        process = subprocess.Popen(self.command_of(*path), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=self.env, cwd=self.dir)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        up = self.dir / "up"
        self.assertTrue(wait_until(lambda: up.exists() and up.read_text().endswith("\n")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assert_no_agent()
        self.assertTrue(wait_until(lambda: not pathlib.Path("/proc", up.read_text().strip()).exists()), "the tool is left")

    def test_a_result_that_cannot_be_written(self):
        for end, why in (("> /dev/full", "cannot write the result to standard output: No space left on device"),
                         (">&-", "cannot write the result: standard output is closed")):
            for program, code, last in (("sh", 116, f"exit 116: {why}"),
                                        ("no-such-program", 115, f"{why}\nddplaunch: exit 115: a job would fail, 1 error found")):
                done = subprocess.run(["sh", "-c", f'"$0" check {program} {end}', DDPLAUNCH], stderr=subprocess.PIPE, text=True,
                                      timeout=60, stdin=subprocess.DEVNULL, env=self.env, cwd=self.dir, check=False)
                self.assertEqual((done.returncode, done.stderr), (code, f"ddplaunch: {last}\n"))

    def test_gpus_by_nvml(self):
        if not (FAKE_NVML / "libnvidia-ml.so.1").exists():
            self.skipTest("no fake library")
        nvml = self.dir / "ddplaunch-nvml"  # beside the agent
        shutil.copy(BIN / "ddplaunch-nvml", nvml)
        library = f"env:LD_LIBRARY_PATH={FAKE_NVML}"
        self.hostfile(f"127.0.0.2 {library}\n127.0.0.3 {library} env:FAKE_NVML_PID={os.getpid()}\n"
                      f"127.0.0.4 {library} env:FAKE_NVML_DRIVER=535.1\n")
        done, report = self.check_json()
        self.assertEqual(done.returncode, 0, done)
        gpu = report["hosts"][0]["gpus"][0]
        self.assertEqual((gpu["name"], gpu["memory"], gpu["processes"]), ("FakeGPU 80GB", 80 << 30, 0))
        self.assertEqual(report["hosts"][0]["versions"]["CUDA"], "12.4")
        warnings = {f["item"]: f for f in report["findings"] if f["item"] in ("gpu_memory", "versions")}
        self.assertEqual(warnings["gpu_memory"]["hosts"], ["127.0.0.3"])
        self.assertIn(f"GPU 1 is in use by python3 {os.getpid()} (", warnings["gpu_memory"]["text"])
        self.assertEqual((warnings["versions"]["hosts"], warnings["versions"]["text"]),
                         (["127.0.0.4"], "driver 535.1, but 550.54.15 on 127.0.0.[2-3]"))
        done, report = self.check_json("--env", "FAKE_NVML_ERROR=18")
        self.assertIn("the NVIDIA driver says: Driver/library version mismatch", str(report["findings"]))

    def test_gpus_by_nvidia_smi(self):
        _, report = self.check_json(*self.with_tool("nvidia-smi", '#!/bin/sh\ncase "$1" in --query-gpu*) echo "0, GPU-a, Old GPU, 1000, 900, 470.1";; '
                                                                  '*) echo "GPU-a, 1, 50";; esac\n'))
        host = report["hosts"][0]
        self.assertEqual((host["gpus"][0]["name"], host["gpus"][0]["processes"], host["versions"]["driver"]), ("Old GPU", 1, "470.1"))

    def test_port_in_use(self):
        with socket.create_server(("", 0)) as taken:
            done, report = self.check_json("--master-port", taken.getsockname()[1])
        self.assertEqual(done.returncode, 115, done)
        self.assertEqual(self.errors(report)[0][:2], ("port", ["127.0.0.2"]))

    def test_this_machine(self):
        done = subprocess.run([DDPLAUNCH, "check", "--json", "sh"], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env=self.env, cwd=self.dir, check=False)
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual([h["host"] for h in json.loads(done.stdout)["hosts"]], ["localhost"])

    def test_time_outs_are_listed_and_compared(self):
        self.env["SLURM_JOB_ID"] = "7"
        done = self.check("--launcher", "ssh", "--master-timeout", "30s", "--env", "NCCL_IB_TIMEOUT=18", "sh")
        self.assertEqual(done.returncode, 0, done)
        table = done.stdout.partition("time-outs:\n")[2].partition("\n\n")[0].splitlines()
        self.assertRegex(table[0], "^after +program +limit +effect$")
        self.assertRegex(table[1], "^7.5 s +NCCL +NCCL_IB_TIMEOUT × NCCL_IB_RETRY_CNT +an InfiniBand transfer without an answer fails$")
        self.assertRegex(table[-1], "^never +ddplaunch +--hang-timeout ")
        self.assertTrue(any(line.startswith("30 s ") and " KillWait " in line for line in table), table)
        self.assertIn("warning: nodes stop their workers after 30 s without the master (--master-timeout), so an outage shorter than "
                      "--node-timeout (15 s) may end the job; omit --master-timeout, or give at least 35 s\n", done.stdout)
        _, report = self.check_json("--launcher", "ssh", "--env", "NCCL_IB_TIMEOUT=18", "sh")
        self.assertEqual([f["text"][:30] for f in report["findings"] if f["item"] == "timeouts"], ["an InfiniBand transfer fails a"])
        self.assertEqual((report["timeouts"][0]["program"], report["timeouts"][0]["seconds"]), ("NCCL", 7.516))

    SHORT = ("train", "health", "300ms", "--memory", "8", "--threads", "1")

    def give_trainer(self):
        """Copies train to the agent's directory, and writes a hostfile of two nodes."""
        shutil.copy(BIN / "train", self.dir / "train")
        self.hostfile("127.0.0.2\n127.0.0.3\n")

    def test_deep_names_the_host_whose_device_is_faulty(self):
        self.give_trainer()
        done, report = self.check_json("--deep", *self.SHORT)
        self.assertEqual((done.returncode, self.errors(report)), (0, []), done)
        self.assertEqual(report["tested"], ["train health: CPU only, TCP"])
        for fault, words in (("memory", r"rank 1, CPU: 1 wrong word in 8 MiB of memory, .*"),
                             ("gemm", r"rank 1, CPU: \d+ equal matrix products: 1 wrong, 1 different from the first"),
                             ("sum", r"rank 1, CPU: 1 wrong element in the sum over all ranks")):
            done, report = self.check_json("--deep", *self.SHORT, "--inject-fault", f"1:{fault}")
            self.assertEqual((done.returncode, report["exit_code"]), (115, 115), done)
            [(item, hosts, text)] = self.errors(report)
            self.assertEqual((item, hosts), ("health", ["127.0.0.3"]))
            self.assertRegex(text, f"^{words}$")
        self.assertIn("ddplaunch: train health runs on 2 hosts\n", done.stderr)
        self.assertEqual(done.stderr.splitlines()[-1], "ddplaunch: exit 115: a job would fail, 1 error found")

    def test_a_gpu_that_is_promised_and_cannot_be_used_fails_the_deep_check(self):
        """A slot with a GPU, on a host without one: a test on the CPU would say nothing about the GPU."""
        self.give_trainer()
        self.hostfile("127.0.0.2 gpus=63\n127.0.0.3 gpus=63\n")
        for test, name, item in (("--deep", "train health", "health"), ("--collectives", "train bench", "collectives")):
            done, report = self.check_json(test)
            self.assertEqual(done.returncode, 115, done)
            [(found, _, text)] = self.errors(report)
            self.assertEqual((found, report["tested"]), (item, []))
            self.assertRegex(text, rf"^{name} gave no result .* rank 0 on \S+: .*, and rank 0 on \S+ sees 1 GPU; give each rank a GPU that works, or use "
                                   "the CPUs with --device cpu$")

    def test_deep_is_skipped_where_a_job_would_fail_anyway(self):
        done, report = self.check_json("--deep", "no-such-program")
        self.assertEqual(done.returncode, 115, done)
        self.assertEqual([item for item, _, _ in self.errors(report)], ["program"])
        self.assertIn("skipped --deep and --collectives: a job would fail on these hosts\n", done.stderr)

    def test_a_test_that_does_not_run_is_reported(self):
        self.give_trainer()
        done, report = self.check_json("--deep", "train", "health", "1s", "--no-such-option")
        self.assertEqual(done.returncode, 115, done)
        [(item, hosts, text)] = self.errors(report)
        self.assertEqual((item, hosts), ("health", []))
        self.assertRegex(text, r"^train health gave no result and ended with exit code \d+: ddplaunch: exit 2: rank [01] on \S+ exited 2; "
                         "train health: unknown option --no-such-option; ")

    def test_collectives(self):
        self.give_trainer()
        done = self.check("--collectives", "--min-busbw", "1e-6")
        self.assertEqual(done.returncode, 0, done)
        self.assertRegex(done.stdout, r"(?m)^ +65536 .*\n(.*\n)* +16777216 ", "the figures are shown when all is well")
        self.assertEqual(done.stdout.splitlines()[-1], "tested: train bench: CPU only, TCP")
        done, report = self.check_json("--collectives", "--min-busbw", "1e6")
        self.assertEqual(done.returncode, 115, done)
        [(item, _, text)] = self.errors(report)
        self.assertEqual(item, "collectives")
        self.assertRegex(text, r"^bus bandwidth \S+ GB/s at 16777216 bytes is under --min-busbw 1e\+06$")


if __name__ == "__main__":
    main()
