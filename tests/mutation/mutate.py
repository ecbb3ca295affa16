#!/usr/bin/env python3
"""Makes mutants of a room's sources, each with one changed line, and reports those that no test kills.

The work is done in a copy of the committed tree, build/mutate/tree, with a build of its own beside it. A mutant is killed if a
test of the room fails or does not end. A mutant that does not compile within ten minutes is not counted. The same seed makes the
same mutants.

Each outcome is a line of build/mutate/results.jsonl. A run that was interrupted continues: it takes from this file what it has
tried on the same commit. Remove the file to try all again. The room keeper needs root: its tests run in a PID namespace.
"""
import argparse
import fcntl
import io
import json
import os
import pathlib
import random
import re
import resource
import subprocess
import sys
import tarfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import OWN_PIDS

# Sources of each room, and the programs that test it.
ROOMS = {
    "membership": (["rendezvous/membership/*.cc"], ["unit_membership", "unit_supervisor"]),
    "supervisor": (["launcher/supervisor/*.cc"], ["unit_supervisor", "sim_survivors"]),
    "agent_core": (["launcher/agent_core/*.cc"], ["unit_agent_core", "sim_survivors"]),
    "root_cause": (["launcher/report/*.cc"], ["unit_report", "unit_supervisor"]),
    "store": (["rendezvous/store/*.cc"], ["unit_store"]),
    "keeper": (["launcher/keeper/*.cc"],
               ["unit_keeper", "process_process_tree_test", "process_process_tree_old_kernel", "process_cgroup_test",
                "process_attempt_tree_test", "process_stuck_process_test", "process_keeper_test", "process_worker_group_test"]),
    "lines": (["launcher/lines/*.cc"], ["unit_lines"]),
    "output": (["launcher/output/*.cc"], ["unit_output"]),
    "hang": (["launcher/hang/*.cc"], ["unit_hang", "unit_supervisor"]),
    "schedule": (["apps/train/schedule/*.cc"], ["unit_train"]),
    "checkpoint": (["apps/train/checkpoint/*.cc"], ["unit_train_engine"]),
}
OLD_KERNEL = ("_old_kernel", "_test")  # such a target runs the program of that name with the fallbacks of older kernels
SMALLER_SIMULATION = ["~*ten thousand nodes*"]  # this case takes longer than all others, unoptimized
SKIPPED = 77
BUILD_LIMIT_S = 600
# A mutant may make a program loop: it gets this many times the time of the unchanged program, and so much memory.
PATIENCE = 5
MEMORY = 4 << 30

# A pattern, and what replaces it. Operators stand between spaces, as clang-format sets them.
REPLACEMENTS = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "),
    (r" == ", " != "), (r" != ", " == "), (r" && ", " || "), (r" \|\| ", " && "),
    (r"(?<!\") \+ (?!\")", " - "), (r" - ", " + "), (r" \+= (?!\")", " -= "), (r" -= ", " += "),
    (r"\+\+(?=\w)", "--"), (r"--(?=\w)", "++"),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"\bif \((?!auto |const |!|!?\()(.+)\)(?= (\{|return|continue|break|co_return)|$)", r"if (!(\1))"),
    (r"\bstd::min\b", "std::max"), (r"\bstd::max\b", "std::min"),
    (r"(?<![\w.\"'])(\d+)(?![\w.\"'])", lambda match: str(int(match[1]) + 1)),
]
# A call or an assignment that fills its line.
STATEMENT = re.compile(r"^\s+(?!return|co_return|using|const |auto |case |else|throw|delete)[\w>.:\[\]-]+(\(.*\)| [-+|&]?= .*|\+\+|--);$")


def mutations(text):
    """Yields (line number, new line) for each mutant of the text, outside of comments and strings."""
    for number, line in enumerate(text.split("\n"), 1):
        code = re.sub(r'"(\\.|[^"\\])*"', lambda match: '"' + "_" * (len(match[0]) - 2) + '"', line.split(" //")[0].rstrip())
        if not code.strip() or code.lstrip().startswith(("//", "#", "///", "static_assert", "template")):
            continue
        for pattern, replacement in REPLACEMENTS:
            for masked in re.finditer(pattern, code):
                match = re.compile(pattern).match(line, masked.start(), len(code))
                if match and match.end() == masked.end():
                    changed = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
                    yield number, line[:match.start()] + changed + line[match.end():]
        if STATEMENT.match(code):
            yield number, re.match(r"\s*", line)[0] + ";"


class Copy:
    """The copy of the tree, in which the mutants are built."""

    def __init__(self, root, jobs):
        self.tree = root / "build/mutate/tree"
        self.build = root / "build/mutate/build"
        self.jobs = jobs
        self.take(root)
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                        "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -D_GLIBCXX_ASSERTIONS"], stdout=subprocess.DEVNULL, check=True)

    def take(self, root):
        """Takes the committed files. A file that has not changed keeps its time, so that it is not compiled again."""
        archive = subprocess.run(["git", "-C", root, "archive", "HEAD"], stdout=subprocess.PIPE, check=True)
        files = tarfile.open(fileobj=io.BytesIO(archive.stdout))
        wanted = {self.tree / one.name: one for one in files if one.isfile()}
        for path in [path for path in self.tree.rglob("*") if path.is_file() and path not in wanted]:
            path.unlink()
        for path, one in wanted.items():
            content = files.extractfile(one).read()
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(one.mode)

    def compile(self, targets, limit_s=None):
        programs = [target.replace(*OLD_KERNEL) for target in targets]
        return subprocess.run(["cmake", "--build", self.build, "-j", str(self.jobs), "--target", *programs],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s)

    def compiles(self, target):
        try:
            return self.compile([target], BUILD_LIMIT_S).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def end_of(self, target, limit_s):
        """Returns the exit code of a test program, or None if it does not end within the time."""
        # A mutant of a program that kills processes may kill any process that it sees: those of its own PID namespace, which ends with the
        # time limit, too.
        isolated = OWN_PIDS if target.startswith(("process_", "unit_keeper")) else []
        smaller = SMALLER_SIMULATION if target.startswith("sim_") else []
        older = [self.tree / "tests/support/old_kernel.py"] if target.endswith(OLD_KERNEL[0]) else []
        program = self.build / "tests" / target.replace(*OLD_KERNEL)
        try:
            ran = subprocess.run([*isolated, *older, program, *smaller], cwd=self.build, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit_s,
                                 env={**os.environ, "DDP_SIM_SEEDS": "100"},
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)))
        except subprocess.TimeoutExpired:
            return None
        return ran.returncode


class Results:
    """The file of outcomes: one JSON object in each line."""

    def __init__(self, path, commit):
        self.path, self.commit, self.known = path, commit, {}
        lines = path.read_text().split("\n") if path.exists() else [""]
        if lines.pop():  # a run was killed while it wrote this line
            path.write_text("".join(line + "\n" for line in lines))
        for one in map(json.loads, lines):
            if one["commit"] == commit:
                self.known[self.key(one)] = one

    @staticmethod
    def key(one):
        return one["room"], one["file"], one["line"], one["after"]

    def add(self, one):
        if self.key(one) in self.known:
            return
        self.known[self.key(one)] = one
        with open(self.path, "a") as file:
            file.write(json.dumps({"commit": self.commit, **one}) + "\n")


def outcome_of(copy, ends):
    """Returns the outcome of the mutant in the tree, and the program that killed it. A program is built when those before it have
    found nothing."""
    for target, (limit_s, code) in ends.items():
        if not copy.compiles(target):
            return "not compiled", None
        if copy.end_of(target, limit_s) != code:
            return "killed", target
    return "survived", None


def try_one(copy, room, path, number, line, ends):
    """Builds and tests one mutant, and restores the file."""
    file = copy.tree / path
    text = file.read_text()
    lines = text.split("\n")
    before, lines[number - 1] = lines[number - 1], line
    file.write_text("\n".join(lines))
    try:
        outcome, finder = outcome_of(copy, ends)
    finally:
        file.write_text(text)
    return {"room": room, "file": path, "line": number, "before": before.strip(), "after": line.strip(), "outcome": outcome,
            "by": finder}


def run(copy, room, chosen, ends, results):
    """Tries each mutant that has no outcome yet, prints all survivors, and counts the outcomes. `ends` has the limit in seconds and the
    exit code of each unchanged test program."""
    counts = {"killed": 0, "survived": 0, "not compiled": 0}
    for path, number, line in chosen:
        one = results.known.get((room, path, number, line.strip())) or try_one(copy, room, path, number, line, ends)
        results.add(one)
        counts[one["outcome"]] += 1
        if one["outcome"] == "survived":
            print(f"survived: {path}:{number}\n  - {one['before']}\n  + {one['after']}", flush=True)
    return counts


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def lock_of(folder):
    """Returns a file whose lock ends with this process. Another run in the same folder would mix both runs' mutants."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"./dev mutate: another run uses {folder}; wait until it ends")
    return lock


def main():
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help="of: " + ", ".join(ROOMS) + "; all by default")
    parser.add_argument("--count", type=positive, default=50, metavar="N", help="mutants of each room (50)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which mutants are made (1)")
    parser.add_argument("--jobs", type=positive, default=2, metavar="N", help="compile jobs (all processors, as memory allows)")
    options = parser.parse_args()
    rooms = options.rooms or list(ROOMS)
    for room in rooms:
        if room not in ROOMS:
            parser.error(f"no such room: {room}; the rooms are {', '.join(ROOMS)}")
    if "keeper" in rooms and subprocess.run([*OWN_PIDS, "true"]).returncode != 0:
        sys.exit("./dev mutate: the room keeper needs a PID namespace, which unshare could not make; run as root")
    root = pathlib.Path(__file__).resolve().parents[2]
    if subprocess.run(["git", "-C", root, "status", "--porcelain"], stdout=subprocess.PIPE, check=True).stdout:
        print("./dev mutate: changes that are not committed are not tested", file=sys.stderr)
    lock = lock_of(root / "build/mutate")
    copy = Copy(root, options.jobs)
    commit = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    results = Results(root / "build/mutate/results.jsonl", commit)
    for room in rooms:
        globs, targets = ROOMS[room]
        clean = copy.compile(targets)
        if clean.returncode != 0:
            sys.exit("./dev mutate: the unchanged tree does not compile:\n" + clean.stdout.decode(errors="replace")[-3000:])
        ends = {}
        for target in targets:
            began = time.monotonic()
            code = copy.end_of(target, BUILD_LIMIT_S)
            if code not in (0, SKIPPED):
                sys.exit(f"./dev mutate: {target} fails without a mutant; run {copy.build / 'tests' / target}")
            ends[target] = (5 + PATIENCE * (time.monotonic() - began), code)
        files = sorted({file.relative_to(copy.tree).as_posix() for glob in globs for file in copy.tree.glob(glob)})
        possible = [(file, *one) for file in files for one in mutations((copy.tree / file).read_text())]
        chosen = random.Random(options.seed).sample(possible, min(options.count, len(possible)))
        began = time.monotonic()
        counts = run(copy, room, chosen, ends, results)
        tried = counts["killed"] + counts["survived"]
        print(f"{room}: {counts['killed']} of {tried} mutants killed ({100 * counts['killed'] // max(1, tried)} %), "
              f"{counts['not compiled']} not compiled, {len(possible)} possible, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("./dev mutate: interrupted; the same command continues")
