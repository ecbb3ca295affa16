#!/usr/bin/env python3
"""Runs `./dev test --quick` in a fresh system of each distribution that README names, and prints a table.

usage: platforms.py [NAME…]             bookworm, trixie and noble (Ubuntu 24.04) if no NAME is given
       platforms.py --packages [NAME…]  runs the packages of build/packages instead (packages.py)

The roots are build/platforms/NAME. They are kept, and get the distribution's updates at the next run. The checkout's tracked files are
copied into them. There is no network but loopback while the tests run. The roots have no CUDA, so the GPU code is not built there.
Exit code 1: something failed, nothing ran, or a NAME could not be made."""

import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "support")]
import packages  # noqa: E402
import skipped_cases  # noqa: E402
from report import not_run, outcomes, table, upstream_version  # noqa: E402
from root import HOME, SOURCE, Root, say  # noqa: E402

PLATFORMS = ["bookworm", "trixie", "noble"]
TREE = "ddplaunch"
RESULTS = "build/platform.xml"
# Column of the table, and the package with this version.
VERSIONS = {"g++": r"g\+\+", "Boost": r"libboost[\d.]*-dev", "libssh": "libssh-dev", "OpenSSL": "libssl-dev",
            "OpenSSH": "openssh-server", "Catch2": "catch2"}


def copy_sources(tree):
    """Makes the tracked files of this checkout those of `tree`, except for its build. An unchanged file keeps its time, so that it is
    not compiled again. A changed one gets the time of now: it may have changed while an earlier run compiled its old content."""
    names = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0")
    names = {name for name in names if name and os.path.lexists(SOURCE / name)}
    for path in [path for path in tree.rglob("*") if not path.is_dir() and path.relative_to(tree).parts[0] != "build"]:
        if str(path.relative_to(tree)) not in names:
            path.unlink()
    for name in names:
        source, copy = SOURCE / name, tree / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or not filecmp.cmp(source, copy, shallow=False):
            shutil.copy(source, copy)
        shutil.copymode(source, copy)


def compiler_cache():
    if shutil.which("ccache"):
        return subprocess.run(["ccache", "-k", "cache_dir"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return HOME / "ccache"


def versions(root):
    """Returns the versions of the root's packages, in the order of VERSIONS."""
    lines = subprocess.run(["chroot", root.path, "dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"],
                           stdout=subprocess.PIPE, text=True, check=False).stdout
    found = [re.search(rf"^installed {package} (.*)$", lines, re.M) for package in VERSIONS.values()]
    return [upstream_version(match.group(1)) if match else "-" for match in found]


def test(name):
    """Runs the quick tests in the root. Returns the row of the table, lines with details and the exit code, None if there is no root."""
    root = Root(name)
    reason = root.make()
    if reason:
        return not_run(name, reason), [], None
    tree = root.path / TREE
    copy_sources(tree)
    cache = compiler_cache()
    pathlib.Path(cache).mkdir(parents=True, exist_ok=True)
    say(f"{name}: installing, building and testing; the log is {root.log}")
    environment = {"CCACHE_DIR": "/ccache", **{key: os.environ[key] for key in ("DDP_JOBS",) if key in os.environ}}
    (tree / RESULTS).unlink(missing_ok=True)
    with root.log.open("w") as log:
        options = {"cwd": f"/{TREE}", "environment": environment, "cache": cache, "log": log}
        update = "apt-get -qq update && apt-get -qq -y dist-upgrade && exec ./dev setup build demo test package"
        code = root.run(["sh", "-c", update], network=True, **options)
        if code == 0:
            code = root.run(["./dev", "test", "--quick", "--output-junit", f"/{TREE}/{RESULTS}"], network=False, **options)
    if not (tree / RESULTS).exists():
        last_lines = root.log.read_text(errors="replace").splitlines()[-30:]
        return [name, *versions(root), "-", "-", "-", "-"], [f"{name}: setup or build failed:", *last_lines], 1
    passed, failed, skipped = outcomes((tree / RESULTS).read_text(errors="replace"))
    cases = skipped_cases.skipped_cases(tree / "build/all-tests")
    details = [f"{name}: failed: {entry}" for entry in failed] + [f"{name}: {line}" for line in skipped_cases.report(cases)]
    return [name, *versions(root), len(passed), len(failed), len(skipped), len(cases)], details, code


def run_tests(names, named):
    """Prints details and the table. `named`: a platform that cannot be made is a failure."""
    results = [test(name) for name in names]
    for _, details, _ in results:
        print("".join(f"{line}\n" for line in details), end="")
    print(*table(["platform", *VERSIONS, "passed", "failed", "skipped", "cases skipped"], [row for row, _, _ in results]), sep="\n")
    codes = [code for _, _, code in results if named or code is not None]
    return 0 if codes and not any(code != 0 for code in codes) else 1


def main(words):
    os.chdir(SOURCE)
    what, known, run = ("platform", PLATFORMS, run_tests)
    if words[:1] == ["--packages"]:
        what, known, run = ("system", list(packages.SYSTEMS), packages.run_packages)
        words = words[1:]
    unknown = [name for name in words if name not in known]
    if unknown:
        say(f'unknown {what} "{unknown[0]}"; the {what}s are {" ".join(known)}')
    elif os.geteuid() != 0:
        say("needs root, for chroot and mounts; run: sudo ./dev platforms")
    elif not shutil.which("debootstrap"):
        say("debootstrap is not installed; run: apt-get install debootstrap")
    else:
        return run(words or known, bool(words))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
