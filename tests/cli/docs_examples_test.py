#!/usr/bin/env python3
"""Runs the shell blocks of README.md, docs/users and docs/developers as a reader would, on emulated nodes. The examples of the
--help texts run, too.

Each code block names its language. `sh` runs as a script of bash with -eu. In `console` each line `HOST$ COMMAND` runs, on all
hosts at the same time. Blocks of a page run in order in one directory, which has a hostfile `hosts` and a `train.py`. A comment
directly above a block says what differs:

    <!-- not run: REASON -->      the block does not run
    <!-- needs: PROGRAM -->       it runs where this program is installed
    <!-- exits N: REASON -->      its exit code is N and not 0
    <!-- file: NAME -->           the block is this file, for the blocks behind it
    <!-- output -->               the lines of the block are, in this order, in the output of the last block that ran; numbers and
                                  `…` stand for others
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, SOURCE, Nodes, live_processes_with, main, wait_until
from tests.support.ports import free_port

# The nodes gpu01, gpu02, … are 127.0.0.2, 127.0.0.3, …
NODES = 10
LIMIT_S = 200
RUNS = ("sh", "console")
MARK = re.compile(r"^ *<!-- (not run|needs|exits \d+|file|output)(?:: ?(.*?))? *-->$")
FENCE = re.compile(r"^( *)```(.*)$")
PROMPT = re.compile(r"^(\w+)\$ (.*)$")
# A line that begins so is a command line, unless it is a synopsis.
COMMAND = re.compile(r"^(\$|ddplaunchd?|train|\./dev) (?!.*\[options\]|(?:bench|health): )")

# The hostfile of a page that shows none or another size.
HOSTS = "gpu01 slots=8\ngpu02 slots=8\n"
HOSTS_OF = {
    "docs/users/daemon.md": "gpu01 slots=8 address=127.0.0.2 port={port}\ngpu02 slots=8 address=127.0.0.3 port={port}\n",
    "docs/users/elastic.md": "".join(f"gpu{number:02} slots=8\n" for number in range(1, 10)),
    "--help": "gpu01 slots=2\ngpu02 slots=2\n",
    "docs/users/exit_codes.md": "gpu01 slots=4\ngpu02 slots=4\n",
    "docs/users/hang.md": "gpu01 slots=2\ngpu02 slots=2\n",
    "docs/users/report.md": "gpu01 slots=4\ngpu02 slots=4\n",
}

TRAIN = "print('epoch 1 loss 0.5')\n"
TRAIN_OF = {
    "docs/users/hang.md": "import os, threading, time\n"
                          "time.sleep(600) if os.environ['RANK'] == '3' else threading.Event().wait()\n",
    # Rank 5 fails when all others have ended, so the report has no consequences.
    "docs/users/report.md": """import os, pathlib, sys, time
if os.environ["RANK"] != "5":
    pathlib.Path(f"{os.getpid()}.pid").touch()
    sys.exit()
def runs(pid):
    try:
        return pathlib.Path("/proc", pid, "cmdline").read_bytes() != b""  # a zombie has none
    except (FileNotFoundError, ProcessLookupError):
        return False
while len(others := list(pathlib.Path().glob("*.pid"))) < 7 or any(runs(path.stem) for path in others):
    time.sleep(0.01)
print("the data set is empty", file=sys.stderr)
sys.exit(3)
""",
}

# What a reader's cluster has and the emulated one has not: (page or None for all, pattern, replacement).
SUBSTITUTIONS = (
    # One account, one sshd.
    (None, r"\balice@", ""),
    (None, r" port=2222\b", ""),
    (None, r"\b10\.1\.0\.110\b", "127.0.0.11"),
    (None, r"--network (10\.1\.0\.0/16|ib0)", "--network lo"),
    (None, r"--master-addr gpu01\b", "--master-addr 127.0.0.2"),
    # Folders of the cluster are in the page's directory.
    (None, r"(?<![\w~.])/(data|shared|opt)/", r"{dir}/\1/"),
    # `train` computes for a second instead of minutes, on few cores.
    (None, r"(?m)(^| )train(?= --| *#| *$)(?: --data synthetic)?(?: --limit 10000)?", r"\1train --data synthetic --limit 400"),
    (None, r"--nproc-per-node 8 (?=train )", "--nproc-per-node 1 "),
    (None, r"train health \d+m --memory \d+", "train health 100ms --memory 16"),
    (None, r"-b 1M -e 1G", "-b 1K -e 16K"),
    (None, r"(?m)check --deep --hostfile hosts( train health.*)?$", "check --deep --hostfile hosts --nproc-per-node 1 train health 100ms --memory 16"),
    (None, r"--min-busbw 9\b", "--min-busbw 0.000001"),
    (None, r"--hang-timeout 1m", "--hang-timeout 5s"),
    # The daemons of all nodes are on this machine.
    ("docs/users/daemon.md", r"ddplaunchd --listen\b", "ddplaunchd --listen {address}:{port}"),
)

# Programs of a cluster: their place is taken by a script of sh.
STUBS = {
    "module": "exit 0",
    "apptainer": 'shift 3; exec "$@"',  # apptainer exec --nv IMAGE COMMAND…
}


def pages():
    """README.md and all pages of docs/ but the records of decisions."""
    found = [SOURCE / "README.md", *sorted(SOURCE.glob("docs/*.md")), *sorted(SOURCE.glob("docs/users/*.md")),
             *sorted(SOURCE.glob("docs/developers/*.md"))]
    return {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in found}


# Examples of --help that do not run here, and why.
HELP_NOT_RUN = {"ddplaunchd --listen 10.1.0.5:29499": "it runs until it is stopped; docs/users/daemon.md runs it in the background"}


def help_page():
    """The examples of all --help texts, as a page."""
    text = ""
    for command in (["ddplaunch", "--help", "all"], ["ddplaunchd", "--help"], ["train", "--help"], ["train", "bench", "--help"],
                    ["train", "health", "--help"]):
        printed = subprocess.run([BIN / command[0], *command[1:]], check=True, text=True, stdout=subprocess.PIPE).stdout
        for example in re.findall(r"^  Example: (.*)$", printed, re.M):
            text += f"<!-- not run: {HELP_NOT_RUN[example]} -->\n" if example in HELP_NOT_RUN else ""
            text += f"```sh\n{example}\n```\n"
    return text


class Block:
    def __init__(self, line, language, marks):
        self.line, self.language, self.marks, self.lines = line, language, marks, []

    @property
    def text(self):
        return "".join(line + "\n" for line in self.lines)

    def runs(self):
        return self.language in RUNS and not {"not run", "file"} & set(self.marks)

    def exit_code(self):
        return next((int(mark.split()[1]) for mark in self.marks if mark.startswith("exits ")), 0)


def blocks_of(text):
    """Returns the code blocks of a Markdown text, and its faults as (line, text)."""
    blocks, faults, marks, current, indent = [], [], {}, None, 0
    lines = text.splitlines()
    for number, (before, line) in enumerate(zip(["", *lines], lines), 1):
        fence = FENCE.match(line)
        if current is not None:
            if fence and fence[2] == "" and len(fence[1]) == indent:
                if current.language == "text" and "output" not in current.marks:
                    faults += [(current.line, f"a command line in a block of text: {each}") for each in current.lines if COMMAND.match(each)]
                blocks.append(current)
                current = None
            else:
                current.lines.append(line[indent:])
            continue
        mark = MARK.match(line)
        if mark:
            marks[mark[1]] = mark[2] or ""
            if not mark[2] and mark[1] != "output":
                faults.append((number, f'"{mark[1]}" needs a reason or a name: {line.strip()}'))
            continue
        if fence:
            if not fence[2]:
                faults.append((number, "this block has no language; commands are sh, their output is text"))
            if before.lstrip().startswith("<!-- ") and not MARK.match(before):
                faults.append((number - 1, f"unknown mark: {before.strip()}"))
            current, indent = Block(number, fence[2], marks), len(fence[1])
        elif marks:
            faults.append((number - 1, "this comment is for a block, and is not directly above one"))
        elif line.startswith("    "):
            faults.append((number, "an indented code block; write a fence with a language"))
        marks = {}
    if current is not None:
        faults.append((current.line, "this block has no end"))
    return blocks, faults


def pattern_of(line):
    """A regular expression for a line of output: a number matches any number, `…` any text, a blank any blanks."""
    parts = []
    for part in re.findall(r"…|\s+|[^\s…]+", re.sub(r"/home/\w+", "…", line.strip())):
        if part == "…":
            parts.append(r".*")
        elif part.isspace():
            parts.append(r"\s+")
        else:
            parts.append(re.sub(r"[0-9a-f]*\d[0-9a-f]*(?:\\?[.,:]\d+)*", r"[0-9a-f.,:-]+", re.escape(part)))
    return re.compile("".join(parts))


def missing_line(expected, output):
    """Returns the first line of `expected` that does not follow its predecessors in `output`, or None."""
    lines = iter(output.splitlines())
    for line in expected:
        if line.strip() and not any(pattern_of(line).search(real) for real in lines):
            return line
    return None


class Cluster:
    """The nodes, programs and start-up files that the pages share."""

    def __init__(self, directory, nodes, port):
        self.dir, self.port = directory, port
        self.programs = directory / "programs"
        self.programs.mkdir()
        names = "".join(f"Host gpu{number:02}\n  HostName {address}\n" for number, address in enumerate(nodes.hosts, 1))
        self.ssh_config = names + nodes.ssh_config.read_text()
        (directory / "ssh_config").write_text(self.ssh_config)
        # ssh takes the home directory from the account and not from HOME, so it gets its configuration here.
        self.add_program("ssh", f'exec {shutil.which("ssh")} -F {directory}/ssh_config "$@"')
        for python in ("python", "python3"):
            self.add_program(python, f'exec {sys.executable} "$@"')
        for name, script in STUBS.items():
            self.add_program(name, script)

    def add_program(self, name, script):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


class Page:
    """Runs the blocks of one page. `failures` and `not_run` are texts that begin with page and line."""

    def __init__(self, cluster, name, text):
        self.cluster, self.name = cluster, name
        self.failures, self.not_run, self.ran = [], [], 0
        self.blocks = blocks_of(text)[0]
        self.home = cluster.dir / name.replace("/", "-").removesuffix(".md")
        self.dir = self.home / "work"
        self.background = []

    def run(self):
        try:
            self.prepare()
            for block in self.blocks:
                self.take(block)
        except Exception as error:  # a thread of the test: the fault belongs to this page
            self.failures.append(f"{self.name}: {error!r}")
        finally:
            self.end_background()
        return self

    def prepare(self):
        self.dir.mkdir(parents=True)
        if not any(block.runs() for block in self.blocks):
            return
        (self.home / "cluster_ssh").write_text(self.cluster.ssh_config)
        for folder in ("data/run1", "shared", "opt/venv/bin"):
            (self.dir / folder).mkdir(parents=True)
        (self.dir / "opt/ddplaunch").symlink_to(BIN.parent)
        (self.dir / "opt/venv/bin/activate").touch()
        (self.dir / "job.env").write_text("NCCL_DEBUG=INFO\n")
        for folder in (self.dir, self.dir / "data/run1"):
            (folder / "train.py").write_text(TRAIN_OF.get(self.name, TRAIN))
        (self.dir / "hosts").write_text(HOSTS_OF.get(self.name, HOSTS).format(port=self.cluster.port))
        left_out = ("DDP", "PET_", "SLURM", "TORCHELASTIC", "MASTER_", "XDG_", "SSH_")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        self.env.update(HOME=str(self.home), PATH=f"{self.cluster.programs}:{BIN}:{os.environ['PATH']}")

    def take(self, block):
        where = f"{self.name}:{block.line}"
        if "file" in block.marks:
            (self.dir / block.marks["file"]).write_text(self.substituted(block.text))
        elif "output" in block.marks:
            line = missing_line(block.lines, self.output)
            if line is not None:
                self.failures.append(f"{where}: this line is not in the output, or not in this order: {line}\n{self.output}")
        elif "not run" in block.marks:
            self.not_run.append(f"{where}: {block.marks['not run']}")
        elif block.language in RUNS:
            program = block.marks.get("needs")
            if program and not shutil.which(program):
                self.not_run.append(f"{where}: {program} is not installed")
                return
            self.ran += 1
            for script, code in self.execute(block):
                if code != block.exit_code():
                    self.failures.append(f"{where}: exit code {code} instead of {block.exit_code()}\n{script}\n{self.output}")

    def execute(self, block):
        """Runs the scripts of a block at the same time. Returns (script, exit code) of each, and keeps their output."""
        env, scripts = self.env, [self.substituted(block.text)]
        if block.language == "console":
            env = {**self.env, "MASTER_PORT": str(free_port())}
            by_host = {}
            for line in block.lines:
                prompt = PROMPT.match(line)
                if prompt:
                    by_host.setdefault(prompt[1], []).append(prompt[2])
            scripts = [self.substituted("\n".join(lines), host) for host, lines in by_host.items()]
        started = [subprocess.Popen(["bash", "-eu", "-o", "pipefail", "-c", script], cwd=self.dir, env=env, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                    start_new_session=True) for script in scripts]
        if re.search(r"(?<!&)&$", block.text, re.M):
            self.background += started
        with concurrent.futures.ThreadPoolExecutor(len(started)) as readers:
            outputs = list(readers.map(self.read, started))
        self.output = "".join(outputs)
        return [(script, process.returncode) for script, process in zip(scripts, started)]

    def read(self, process):
        try:
            return process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0] + f"(killed after {LIMIT_S} s)\n"

    def substituted(self, text, host="gpu01"):
        values = {"dir": str(self.dir), "port": str(self.cluster.port), "address": f"127.0.0.{int(host[3:]) + 1}"}
        for page, pattern, replacement in SUBSTITUTIONS:
            if page in (None, self.name):
                for key, value in values.items():
                    replacement = replacement.replace("{%s}" % key, value)
                text = re.sub(pattern, replacement, text)
        return text

    def end_background(self):
        for process in self.background:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                self.failures.append(f"{self.name}: a program in the background has ended: {shlex.join(process.args)}")

    def jobs(self):
        folder = self.home / ".local/state/ddplaunch/jobs"
        return [path.name for path in folder.iterdir() if path.is_dir()] if folder.exists() else []


class Rules(unittest.TestCase):
    """Each rule can fail."""

    def test_each_block_of_the_pages_has_a_language_and_each_mark_a_reason(self):
        self.assertEqual([f"{name}:{line}: {fault}" for name, text in pages().items() for line, fault in blocks_of(text)[1]], [])

    def test_blocks_and_marks_are_found(self):
        blocks, faults = blocks_of("- item\n\n  <!-- exits 3: it fails -->\n  ```sh\n  false\n    true\n  ```\n<!-- file: hosts -->\n```text\na\n```\n")
        self.assertEqual([(each.line, each.language, each.marks, each.text) for each in blocks],
                         [(4, "sh", {"exits 3": "it fails"}, "false\n  true\n"), (9, "text", {"file": "hosts"}, "a\n")])
        self.assertEqual([each.runs() for each in blocks], [True, False])
        self.assertEqual(faults, [])

    def test_faults_of_marks_and_blocks_are_found(self):
        for text, said in (
                *((f"<!-- {mark} -->\n```sh\ntrue\n```\n", [f'"{name}" needs a reason or a name: <!-- {mark} -->'])
                  for mark, name in (("not run:", "not run"), ("not run", "not run"), ("exits 3:", "exits 3"), ("file:", "file"), ("needs", "needs"))),
                ("<!-- not ran: x -->\n```sh\ntrue\n```\n", ["unknown mark: <!-- not ran: x -->"]),
                ("<!-- output -->\n\n```text\na\n```\n", ["this comment is for a block, and is not directly above one"]),
                ("```\na\n```\n", ["this block has no language; commands are sh, their output is text"]),
                ("a\n\n    ddplaunch b\n", ["an indented code block; write a fence with a language"]),
                ("```text\nddplaunch train.py\n```\n", ["a command line in a block of text: ddplaunch train.py"]),
                ("```text\nddplaunch [options]\nddplaunch: exit 3\n```\n", [])):
            with self.subTest(text):
                self.assertEqual([fault for _, fault in blocks_of(text)[1]], said)

    def test_output_is_compared(self):
        output = "[gpu01:0] epoch 2/5 loss 0.125\n[gpu02:3] rank 3 weights 00ffee\ndone in 3.1 s\n"
        self.assertIsNone(missing_line(["epoch 1/1   loss 0.3681", "rank 0 weights cb63", "… in 7.5 s"], output))
        self.assertEqual(missing_line(["rank 0 weights cb63", "epoch 1/1 loss 1"], output), "epoch 1/1 loss 1")
        self.assertEqual(missing_line(["epoch 1/1 lost 0.3681"], output), "epoch 1/1 lost 0.3681")

    def test_a_failing_block_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster.__new__(Cluster)
            cluster.dir, cluster.programs, cluster.ssh_config, cluster.port = pathlib.Path(folder), pathlib.Path("/none"), "", 1
            text = ("```sh\nfalse\ntrue\n```\n<!-- exits 3: x -->\n```sh\nexit 3\n```\n```sh\ncat made\n```\n<!-- file: made -->\n```text\nhere\n```\n"
                    "```sh\ncat made\n```\n<!-- output -->\n```text\nhere\n```\n<!-- output -->\n```text\nthere\n```\n"
                    "```console\ngpu01$ exit 4\ngpu02$ true\n```\n<!-- not run: x -->\n```sh\nfalse\n```\n")
            page = Page(cluster, "a.md", text).run()
            self.assertEqual([failure.splitlines()[0] for failure in page.failures], [
                "a.md:1: exit code 1 instead of 0", "a.md:9: exit code 1 instead of 0",
                "a.md:24: this line is not in the output, or not in this order: there", "a.md:27: exit code 4 instead of 0"])
            self.assertEqual((page.not_run, page.ran), (["a.md:32: x"], 5))


class Examples(unittest.TestCase):
    def test_the_examples_of_all_pages_run(self):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-docs-"))
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        (directory / "bashrc").touch()
        cluster = Cluster(directory, Nodes(self, NODES, NODES_BASHRC=str(directory / "bashrc")), free_port())
        texts = {**pages(), "--help": help_page()}
        self.assertGreater(len(blocks_of(texts["--help"])[0]), 8)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            done = list(pool.map(Page.run, [Page(cluster, name, text) for name, text in texts.items()]))
        not_run = [line for page in done for line in page.not_run]
        print("", *not_run, f"{sum(page.ran for page in done)} blocks ran, {len(not_run)} did not (see above)", sep="\n", file=sys.stderr)
        self.assertEqual([failure for page in done for failure in page.failures], [], "\n\n".join(f for page in done for f in page.failures))
        self.assertGreater(sum(page.ran for page in done), 20)
        jobs = [job for page in done for job in page.jobs()]
        self.assertGreater(len(jobs), 20)
        self.assertTrue(wait_until(lambda: not [left for job in jobs for left in live_processes_with(f"DDPLAUNCH_JOB_ID={job}\0")]),
                        "processes of a job are left")


if __name__ == "__main__":
    main()
