#!/usr/bin/env python3
"""Tests the environment as data: the bytes that reach workers of other machines, where none may be visible, and --setup."""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, LaunchTest, Nodes, main, wait_until

PYTHON = "/usr/bin/python3" if pathlib.Path("/usr/bin/python3").exists() else sys.executable
# The output is compared as bytes: names, values and arguments are hexadecimal.
SHOW = """
import os, sys
for name in sys.argv[1].split(","):
    value = os.environb.get(name.encode())
    print(os.environ["RANK"], name, "unset" if value is None else value.hex() if len(value) < 2000 else
          f"{len(value)} bytes, {set(value)}")
print(os.environ["RANK"], "arguments", *[os.fsencode(word).hex() or "-" for word in sys.argv[2:]])
"""
BOTH_TRANSPORTS = ([], ["--ssh-command", "ssh"])
UNUSUAL = {
    "ODD_NEWLINES": b"a\nb\r\n\n", "ODD_QUOTES": b"'\"`$(touch /tmp/never)\\ ; & | > < * ? ~ ! # %n %h {a,b}",
    "ODD_UTF8": "gr\u00fc\u00df \U0001f40b \u202e".encode(), "ODD_BYTES": bytes(range(1, 256)), "ODD_EMPTY": b"",
    "ODD_BLANKS": b"  \t lead and trail \t ", "ODD_EQUALS": b"=a=b=", "ODD_LONG": b"x" * 100_000, "ODD_DASH": b"--env",
    "ODD_CUT": b"\xe2\x82", "lower_case": b"1", "_ODD": b"1", "%ODD%": b"name that no shell knows", "ODD.DOTS": b"\xff'",
}


class SshEnvTest(LaunchTest):
    def setUp(self):
        super().setUp()
        self.env.pop("DS_ENV_FILE", None)

    def cluster(self, own=False, **settings):
        """Two nodes with the settings. Without any, all tests of the class share them, unless the test changes its `own`."""
        nodes = Nodes(self, 2, **settings) if own or settings else Nodes.of_class(type(self), 2)
        self.ssh = ["--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--nproc-per-node", 1, "--label", ""]
        return nodes


class EnvironmentAsData(SshEnvTest):
    def test_values_and_arguments_of_any_bytes(self):
        self.cluster()
        script = self.script("show.py", SHOW)
        environment = {os.fsencode(k): os.fsencode(v) for k, v in self.env.items()}
        environment.update({k.encode(): v for k, v in UNUSUAL.items()})
        arguments = [v for k, v in UNUSUAL.items() if k != "ODD_LONG"] + [b"-x", b"--", b"--hostfile", b"\xff\xfe"]
        expected = [f"{name} {value.hex() if len(value) < 2000 else f'{len(value)} bytes, {set(value)}'}"
                    for name, value in UNUSUAL.items()]
        expected.append("arguments " + " ".join(word.hex() or "-" for word in arguments))
        for transport, setup in zip(BOTH_TRANSPORTS, ([], ["--setup", "SET_UP=1"])):  # a set-up command adds a shell
            done = self.run_job(*self.ssh, *transport, *setup, "--python", PYTHON, script, ",".join(UNUSUAL),
                                *map(os.fsdecode, arguments), env=environment)
            self.assert_code(done, 0)
            for rank in (0, 1):
                mine = [line.split(" ", 1)[1].rstrip() for line in done.out.splitlines() if line.startswith(f"{rank} ")]
                self.assertEqual(mine, [line.rstrip() for line in expected], f"rank {rank}, {setup}")

    def test_variables_that_exec_cannot_pass_are_an_error(self):
        self.cluster()
        # The variable is larger than Linux passes in one string. It comes from a file, since no shell could pass it on.
        vars_file = self.dir / "vars"
        vars_file.write_text("HUGE=" + "y" * 131_072 + "\n")
        done = self.run_job(*self.ssh, "--env-file", vars_file, "true")
        self.assertEqual(done.code, 2, done)
        self.assertIn("environment variable HUGE has 131077 bytes; Linux passes at most 131071 per variable; remove or shorten it", done.err)
        self.assertNotIn("yyyy", done.err)
        # 20 variables of 110 KB are too large in total for the nodes, whose stack limit says how much they pass.
        vars_file.write_text("".join(f"PART{i:02}={'z' * 110_000}\n" for i in range(20)))
        done = self.run_job(*self.ssh, "--env-file", vars_file, "true")
        self.assertEqual(done.code, 115, done)
        self.assertRegex(done.err, r"nodes? 127\.0\.0\.(?:\[2-3\]|[23]): arguments and environment have \d+ bytes together, at most 2097152 can be "
                                   r"passed; largest variables: PART\d\d \(110000 bytes\)")

    def test_no_value_is_on_a_command_line_or_in_a_file(self):
        nodes = self.cluster(NODES_BASHRC=os.devnull)
        temp = self.dir / "temp"
        temp.mkdir()
        marker = "m4rk3r" + os.urandom(8).hex()
        for name, value in [("API_KEY", marker), ("AWS_SECRET", f"'{marker}'\n")]:
            self.env[name] = value
        secrets = self.dir / "secrets"
        secrets.write_text(f"FROM_FILE={marker}\n")
        hosts = self.dir / "hosts"
        hosts.write_text("".join(f"{host} slots=1 env:TMPDIR={temp}\n" for host in nodes.hosts))
        shutil.copy(hosts, self.dir / "hosts.used")
        setups = ([], ["--setup", f"export IN_SETUP={marker[::-1]}; echo set up"])
        for transport, setup in itertools.product(BOTH_TRANSPORTS, setups):
            process = self.start("--hostfile", hosts, "--ssh-config", nodes.ssh_config, "--label", "", "--verbose",
                                 "--report", self.dir / "report.json", *transport, *setup, "--env-file", secrets,
                                 "--env", "API_KEY", "sh", "-c", 'test -n "$API_KEY" && echo "up"; exec sleep 60')
            ups = [process.stdout.readline(), process.stdout.readline()]
            self.assertEqual(ups, ["up\n"] * 2)
            lines = {path.parent.name: line for path, line in contents(pathlib.Path("/proc").glob("[0-9]*/cmdline"))}
            ours = str(process.pid)
            self.assertEqual([line for pid, line in lines.items() if marker.encode() in line], [])
            self.assertEqual([pid for pid, line in lines.items() if marker[::-1].encode() in line and pid != ours], [])
            environments = [text for _, text in contents(pathlib.Path("/proc").glob("[0-9]*/environ"))]
            self.assertGreaterEqual(sum(marker.encode() in text for text in environments), 2)  # proves that the search works
            agents = [pid for pid, line in lines.items() if b"ddplaunchd\0--stdio" in line]
            self.assertGreaterEqual(len(agents), 2)
            process.send_signal(signal.SIGINT)
            done = self.finish(process)
            self.assertEqual(done.code, 130, done)
            self.assertNotIn(marker, done.err + done.out)
            secrets_only = [secrets]
            for place in (self.dir, temp, nodes.dir):
                found = [str(path) for path, text in contents(place.rglob("*")) if path not in secrets_only and
                         (marker.encode() in text or marker[::-1].encode() in text)]
                self.assertEqual(found, [])


def contents(paths):
    """Yields each file that can be read, with its bytes. Processes and files may end meanwhile."""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_file():
                yield path, path.read_bytes()


class DenyList(SshEnvTest):
    # One or two of each class; unit_job compares the whole list with docs/users/environment.md.
    DENIED = """HOME PWD _ TERM DISPLAY XDG_RUNTIME_DIR XDG_CONFIG_HOME SSH_AUTH_SOCK TMUX PS1 HOSTNAME TMPDIR NOTIFY_SOCKET SUDO_USER BASH_ENV
        BASH_FUNC_x%% SHELLOPTS LD_PRELOAD CUDA_VISIBLE_DEVICES NCCL_SOCKET_IFNAME UCX_NET_DEVICES SLURM_PROCID SBATCH_X PMI_RANK PMIX_RANK
        OMPI_COMM_WORLD_RANK KUBERNETES_SERVICE_HOST REDIS_SERVICE_PORT REDIS_PORT_6379_TCP RANK MASTER_ADDR TORCHELASTIC_X PET_UNKNOWN
        ACCELERATE_X_PROCESS_Y JAX_PROCESS_ID DDPLAUNCH_TOKEN DDPLAUNCH_X""".split()

    def test_no_variable_of_the_deny_list_is_forwarded(self):
        # The worker is /usr/bin/env, since a shell would set some of these variables itself. Values such as RANK=0 do not
        # make this launcher a node of a larger job.
        self.cluster()
        mine = dict(self.env, **{name: "only-here-" + name for name in self.DENIED})
        for name in ("HOME", "TMPDIR", "XDG_CONFIG_HOME"):  # must exist
            mine[name] = str(self.dir / f"only-here-{name}")
            os.mkdir(mine[name])
        free = {"WANDB_API_KEY": "k", "HF_HOME": "/x", "NCCL_DEBUG": "only-here-not", "CUDA_HOME": "/c", "ENVIRONMENT": "e",
                "TERRAFORM": "t", "OMP_PLACES": "cores", "WORLD": "w", "RANKING": "r", "LISTENER": "l"}
        mine.update(free)
        done = self.run_job(*self.ssh, "/usr/bin/env", "-0", env=mine)
        self.assert_code(done, 0)
        seen = [entry for entry in re.split(r"\0|\n", done.out) if "=" in entry]
        leaked = sorted({entry for entry in seen if "only-here-" in entry and not entry.startswith("NCCL_DEBUG=")})
        self.assertEqual(leaked, [])
        for name, value in free.items():
            self.assertEqual(seen.count(f"{name}={value}"), 2, name)

    def test_a_denied_variable_is_forwarded_when_asked_for_by_name(self):
        self.cluster()
        self.env["HOSTNAME"] = "master"
        done = self.run_job(*self.ssh, "--env", "HOSTNAME", "--env", "NCCL_IB_HCA=mlx5_0", "sh", "-c",
                            "echo $HOSTNAME $NCCL_IB_HCA")
        self.assert_code(done, 0)
        self.assertEqual(done.out, "master mlx5_0\n" * 2)
        self.assertIn("ddplaunch: --env NCCL_IB_HCA goes to all nodes alike, though its value usually belongs to one machine",
                      done.err)


class ActiveEnvironments(SshEnvTest):
    def test_an_active_venv_is_active_on_the_nodes(self):
        self.cluster()
        venv = self.dir / "venv"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", venv], check=True)
        script = self.script("which.py", "import sys, os\nprint(sys.prefix, os.environ['VIRTUAL_ENV'], "
                             "os.environ['PATH'].split(':')[0], 'PYTHONHOME' in os.environ)\n")
        path = self.env["PATH"]
        # bin/activate sets these variables.
        self.env.update(VIRTUAL_ENV=str(venv), PATH=f"{venv}/bin:{path}", VIRTUAL_ENV_PROMPT="(venv)")
        self.env.pop("PYTHONHOME", None)
        done = self.run_job(*self.ssh, script)
        self.assert_code(done, 0)
        self.assertEqual(done.out, f"{venv} {venv} {venv}/bin False\n" * 2)

    def test_an_active_conda_environment_is_active_on_the_nodes(self):
        nodes = self.cluster()
        conda = self.dir / "conda" / "envs" / "train"
        (conda / "bin").mkdir(parents=True)
        (conda / "bin" / "python3").symlink_to(PYTHON)
        self.env.update(CONDA_PREFIX=str(conda), CONDA_DEFAULT_ENV="train", CONDA_SHLVL="2", CONDA_PREFIX_1="/opt/conda",
                        CONDA_EXE="/opt/conda/bin/conda", CONDA_PYTHON_EXE="/opt/conda/bin/python",
                        CONDA_PROMPT_MODIFIER="(train) ", PATH=f"{conda}/bin:{self.env['PATH']}")
        script = self.script("which.py", "import os, shutil\nprint(shutil.which('python3'), os.environ['CONDA_PREFIX'], "
                             "os.environ['CONDA_DEFAULT_ENV'], os.environ['CONDA_SHLVL'])\n")
        done = self.run_job(*self.ssh, script)
        self.assert_code(done, 0)
        self.assertEqual(done.out, f"{conda}/bin/python3 {conda} train 2\n" * 2)
        # One node lacks the conda environment.
        hosts = self.dir / "hosts"
        hosts.write_text(f"{nodes.hosts[0]} slots=1\n{nodes.hosts[1]} slots=1 env:CONDA_PREFIX=/no/such/env\n")
        done = self.run_job("--hostfile", hosts, "--ssh-config", nodes.ssh_config, script)
        self.assertEqual(done.code, 115, done)
        self.assertIn("127.0.0.3: CONDA_PREFIX names /no/such/env, which does not exist; install the environment at the same path, "
                      "or launch without it active", done.err)

    def test_a_missing_environment_fails_only_a_job_whose_python_comes_from_it(self):
        self.env.update(VIRTUAL_ENV="/no/venv", PATH=os.environ["PATH"])
        self.env.pop("PYTHONHOME", None)
        (self.dir / "own.py").write_text(f"#!{PYTHON}\n")
        (self.dir / "searched").write_text("#!/usr/bin/env python3\n")
        for name in ("own.py", "searched"):
            (self.dir / name).chmod(0o755)
        missing = "VIRTUAL_ENV names /no/venv, which does not exist; install the environment at the same path, or launch without it active"
        for words in (["true"], ["--python", PYTHON, "own.py"], ["--no-python", "./own.py"]):
            done = self.run_job(*words)
            self.assert_code(done, 0)
            self.assertIn(f"ddplaunch: localhost: warning: {missing}\n", done.err)
        for words in (["own.py"], ["python3", "own.py"], ["./searched"], ["-m", "this"]):
            done = self.run_job(*words)
            self.assert_code(done, 115)
            self.assertIn(f"localhost: {missing}\n", done.err)
        self.env.update(PYTHONHOME="/no/home", VIRTUAL_ENV="")
        self.assert_code(self.run_job("true"), 0)
        self.assert_code(self.run_job("--python", PYTHON, "own.py"), 115)

    def test_check_warns_of_an_environment_that_the_worker_does_not_need(self):
        self.env.update(VIRTUAL_ENV="/no/venv", PATH=os.environ["PATH"])
        missing = "localhost: VIRTUAL_ENV names /no/venv, which does not exist; "
        for words, code, level in ((["true"], 0, "warning: "), (["python3"], 115, "error: "), ([], 115, "error: ")):
            done = subprocess.run([DDPLAUNCH, "check", *words], env=self.env, cwd=self.dir, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done)
            self.assertIn(level + missing, done.stdout)

    def test_path_entries_of_the_node_alone_come_last(self):
        extra = self.dir / "node_bin"
        extra.mkdir()
        rc = self.dir / "rc"
        rc.write_text(f"export PATH=$PATH:{extra}\n")
        self.cluster(NODES_BASHRC=str(rc))
        self.env["PATH"] = "/only/here:/usr/bin:/bin"
        done = self.run_job(*self.ssh, "sh", "-c", "echo $PATH")
        self.assert_code(done, 0)
        for line in done.out.splitlines():
            self.assertTrue(line.startswith("/only/here:/usr/bin:/bin:") and line.endswith(f":{extra}"), line)


class Setup(SshEnvTest):
    PROFILE = """
        export PATH=/profile/bin:/usr/bin:/bin FROM_PROFILE=1 FORWARDED=profile CONDA_PREFIX=/auto/activated CONDA_SHLVL=1
        module() { if [ "$1" = load ]; then export MODULES="$MODULES:$2" PATH="/modules/$2:$PATH"; else echo "no $1" >&2; return 4; fi; }
        echo "welcome to $SHELL"
    """

    def with_profile(self, text=PROFILE):
        home = self.dir / "home"
        home.mkdir(exist_ok=True)
        (home / ".bash_profile").write_text(text)
        nodes = self.cluster(own=True)
        # The agent's HOME is the account's; bash reads the profile from the HOME that sshd sets.
        config = nodes.dir / "sshd_config"
        config.write_text(config.read_text().replace("SetEnv SHLVL=1", f"SetEnv SHLVL=1 HOME={home}"))
        nodes.restart_sshd()
        return nodes

    def test_module_load_changes_the_workers_environment(self):
        self.with_profile()
        self.env["FORWARDED"] = "launcher"
        self.env["CONDA_PREFIX"] = str(self.dir)
        self.env["PATH"] = "/launcher/bin:/usr/bin:/bin"
        done = self.run_job(*self.ssh, "--setup", "module load cuda; export TWO='a\nb'", "--setup", "module load nccl\ncd /; LOCAL_ONLY=1", "sh", "-c",
                            'echo "$MODULES|$FORWARDED|$FROM_PROFILE|$TWO|${LOCAL_ONLY-unset}|$PWD|$RANK|${CONDA_PREFIX-none}"; echo "$PATH"')
        self.assert_code(done, 0)
        seen = done.out.replace("a\nb", "a+b").splitlines()
        self.assertEqual(sorted(line for line in seen if "|" in line),
                         [f":cuda:nccl|launcher|1|a+b|unset|{self.dir}|{rank}|{self.dir}" for rank in (0, 1)])
        for line in seen:
            if "|" not in line:
                self.assertTrue(line.startswith("/modules/nccl:/modules/cuda:/launcher/bin:/usr/bin:/bin:"), line)
                self.assertTrue(line.endswith(":/profile/bin"), line)
        self.assertIn("ddplaunch: 127.0.0.2: setup: welcome to", done.err)

    def test_setup_runs_once_per_node_before_any_worker(self):
        self.cluster()
        log = self.dir / "order"
        done = self.run_job(*self.ssh[:-4], "--nproc-per-node", 2, "--label", "", "--max-restarts", 1, "--restart-backoff",
                            "10ms", "--setup", f"echo setup >> {log}; echo printed", "sh", "-c",
                            f"echo worker >> {log}; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3")
        self.assert_code(done, 0)
        order = log.read_text().split()
        self.assertEqual(order[:2], ["setup"] * 2)
        self.assertEqual(order.count("setup"), 2)
        self.assertEqual(done.err.count("setup: printed"), 2)
        self.assertIn("127.0.0.3: setup: printed", (self.job_dir / "ddplaunch.log").read_text())
        quiet = self.run_job(*self.ssh, "--quiet", "--setup", "echo printed", "true")
        self.assert_code(quiet, 0)
        self.assertEqual(quiet.err, "")

    def test_a_restart_names_the_programs_of_setup_that_ended(self):
        done = self.run_job("--label", "", "--max-restarts", 2, "--restart-backoff", "10ms", "--setup",
                            "sleep 300 > /dev/null 2>&1 & until [ \"$(cat /proc/$!/comm)\" = sleep ]; do :; done",
                            "sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3")
        self.assert_code(done, 0)
        self.assertRegex(done.err, r"setup: ended with the attempt before: sleep \(pid \d+\); --setup runs once, so start such programs "
                                   r"with the workers\n")
        self.assertEqual(done.err.count("--setup runs once"), 1)
        without = self.run_job("--label", "", "--max-restarts", 1, "--restart-backoff", "10ms", "--setup", "true",
                               "sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3")
        self.assert_code(without, 0)
        self.assertNotIn("--setup runs once", without.err)

    def test_a_failure_names_host_code_and_last_lines(self):
        self.with_profile()
        nodes = r"nodes? 127\.0\.0\.(?:\[2-3\]|[23]): --setup failed: "
        begun = r"--setup failed: its shell exited 7; its last lines:\n(.*\n)* +begun\n(?! +on)"
        for where, setup, words in (
                (self.ssh, "seq 1 40; module unload x", nodes + r"its shell exited 4; its last lines:\n(.*\n)*?\s*22\n(.*\n)*?\s*40\n\s*no unload\n"),
                (self.ssh, "kill -KILL $$", nodes + r"its shell was killed by SIGKILL; its last lines:\n +welcome"),
                (self.ssh, "echo one\nnot-a-command two", r"its shell exited 127; its last lines:\n +welcome.*\n +one\n +line 2: not-a-command: "),
                (self.ssh, "exit 0", r"--setup ended its shell \(exit 0\), so its variables are lost; remove the exit or exec"),
                ([], "set -e; echo begun; (exit 7); echo on", begun), ([], "set -e\necho begun\n(exit 7)\necho on", begun)):
            with self.subTest(setup):
                done = self.run_job(*where, "--setup", setup, "sh", "-c", "echo never")
                self.assertEqual((done.code, done.out), (115, ""), done)
                self.assertRegex(done.err, words)

    def test_the_program_is_searched_in_the_path_that_setup_made(self):
        self.cluster()
        tool = self.dir / "late"
        tool.mkdir()
        self.script("late/tool-of-a-module", "#!/bin/sh\necho found $RANK\n")
        done = self.run_job(*self.ssh, "--setup", f"PATH={tool}:$PATH", "tool-of-a-module")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["found 0", "found 1"])

    def test_setup_is_stopped_like_workers(self):
        self.cluster()
        up = self.dir / "up"
        for ignore in ("", "trap '' TERM; "):
            up.unlink(missing_ok=True)
            process = self.start(*self.ssh, "--setup", f"{ignore}(setsid sleep 300 &) ; echo x >> {up}; sleep 300; sleep 300",
                                 "true")
            self.assertTrue(wait_until(lambda: up.exists() and up.read_text().count("x") == 2))
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            done = self.finish(process, began=began)
            self.assertEqual(done.code, 143, done)
            self.assertLess(done.seconds, 20)

    def test_a_setup_per_host_in_the_hostfile(self):
        nodes = self.cluster()
        hosts = self.dir / "hosts"
        hosts.write_text(f"{nodes.hosts[0]} slots=1 setup=\"export WHO='first one'\"\n{nodes.hosts[1]} slots=1\n")
        done = self.run_job("--hostfile", hosts, "--ssh-config", nodes.ssh_config, "--label", "", "--setup", "export WHO=all",
                            "sh", "-c", 'echo "$RANK $WHO"')
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["0 first one", "1 all"])


if __name__ == "__main__":
    main()
