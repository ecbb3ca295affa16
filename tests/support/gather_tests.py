#!/usr/bin/env python3
"""Gathers the tests of several build trees into one ctest tree, so that one ctest run gives one summary.

usage: gather_tests.py BUILD_DIR release [asan-ubsan] [tsan]

Writes BUILD_DIR/all-tests/CTestTestfile.cmake. Each entry appends its wall and CPU time to entries.tsv there, which is emptied
here (measured_entry.py). Tests of the release build keep their names. Tests of another build get its
name as a prefix ("tsan.ssh_transport") and as a label. From the tsan build only tests with the label "threads" are taken, since a
test without threads gives ThreadSanitizer nothing to find.
"""
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

# Tests with this label run in the release build only (the demo, benchmarks).
RELEASE_ONLY = "release-only"
WAITS = "waits"
# The first entry of a run, and the last one, which proves that the tests left nothing (leftovers.py).
FIRST, LAST, FIXTURE = "nothing_before", "nothing_is_left", "machine"
# The values of these properties are names of other tests, so they get the prefix too.
NAMES_TESTS = {"DEPENDS"}
NAMES_SHARED = {"FIXTURES_SETUP", "FIXTURES_REQUIRED", "FIXTURES_CLEANUP"}
# Sanitized programs are two to fifteen times slower.
SLOWER = {"release": 1, "asan-ubsan": 3, "tsan": 5}
LEAST_TIMEOUT = 900  # seconds; it ends what hangs, and must not end what other tests, or another user of the machine, slow down


def quoted(value):
    return f"[==[{value}]==]"


def listed(value):
    return value if isinstance(value, list) else [value]


def tests_of(tree):
    found = subprocess.run(["ctest", "--test-dir", str(tree), "--show-only=json-v1"], check=True,
                           stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return json.loads(found.stdout)["tests"]


def wanted(preset, labels):
    if preset == "tsan":
        return "threads" in labels
    return preset == "release" or RELEASE_ONLY not in labels


@functools.cache
def can_fix_layout():
    return shutil.which("setarch") and subprocess.run(["setarch", "-R", "true"], check=False).returncode == 0


def wrapped(preset, test, labels):
    """Returns the command of a test with what its build needs around it."""
    command = test["command"]
    # Results of a CPU are expected, and NVIDIA's driver needs the same addresses as AddressSanitizer. An emulated GPU is not hidden.
    if preset == "asan-ubsan" or (preset == "release" and "gpu" not in labels and not test["name"].startswith("emulated_")):
        return ["env", "CUDA_VISIBLE_DEVICES=", *command]
    # ThreadSanitizer's shadow memory does not fit every layout that a kernel with vm.mmap_rnd_bits > 28 may choose.
    return ["setarch", "-R", *command] if preset == "tsan" and can_fix_layout() else command


def measured(figures, name, command):
    program = pathlib.Path(__file__).with_name("measured_entry.py").resolve()
    return [sys.executable, "-I", "-S", str(program), str(figures), name, *command]


def slots(labels, properties):
    return 1 if WAITS in labels else 1 + int(properties.get("PROCESSORS", 1))


def cost(preset, properties):
    """Returns the order in which ctest starts the tests, the highest first. The tests that need more slots than others are put
    first: they would find room only at the end, and each would run alone there."""
    first = 1000 * (int(properties.get("PROCESSORS", 1)) - 1)
    return first + float(properties.get("COST", 0)) * SLOWER[preset]


def entry(preset, test, figures):
    """Returns the add_test and set_tests_properties lines of one test, or "" when this build does not run it."""
    properties = {p["name"]: p["value"] for p in test.get("properties", [])}
    labels = listed(properties.get("LABELS", []))
    if not wanted(preset, labels) or properties.get("DISABLED"):
        return ""
    if "command" not in test:
        sys.exit(f"gather_tests: {preset}: the program of test {test['name']} was not built")
    prefix = "" if preset == "release" else preset + "."
    properties["LABELS"] = labels + [p for p in [preset] if p != "release" and p not in labels]
    properties["TIMEOUT"] = max(float(properties.get("TIMEOUT", 120)) * SLOWER[preset], LEAST_TIMEOUT)
    properties["COST"] = cost(preset, properties)
    properties["PROCESSORS"] = slots(labels, properties)
    command = measured(figures, prefix + test["name"], wrapped(preset, test, labels))
    properties["FIXTURES_REQUIRED"] = listed(properties.get("FIXTURES_REQUIRED", [])) + [FIXTURE]
    lines = [f"add_test({quoted(prefix + test['name'])} {' '.join(map(quoted, command))})"]
    for name, value in properties.items():
        values = [str(v) for v in listed(value)]
        if name in NAMES_TESTS or name in NAMES_SHARED:
            values = [v if v == FIXTURE else prefix + v for v in values]
        if isinstance(value, bool):
            values = ["TRUE" if value else "FALSE"]
        lines.append(f"set_tests_properties({quoted(prefix + test['name'])} PROPERTIES {name} {quoted(';'.join(values))})")
    return "\n".join(lines) + "\n"


def machine_entries(build, target, figures):
    """Returns the lines of the first and of the last entry. ctest adds them to each selection of tests."""
    program = str(pathlib.Path(__file__).with_name("leftovers.py").resolve())
    lines = []
    for name, action, role in ((FIRST, "snapshot", "SETUP"), (LAST, "compare", "CLEANUP")):
        command = measured(figures, name, [sys.executable, program, action, str(target / "before.json"), str(build)])
        lines += [f"add_test({quoted(name)} {' '.join(map(quoted, command))})\n"
                  f"set_tests_properties({quoted(name)} PROPERTIES FIXTURES_{role} {FIXTURE} SKIP_RETURN_CODE 77 TIMEOUT 120)\n"]
    return "".join(lines)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    target = build / "all-tests"
    target.mkdir(parents=True, exist_ok=True)
    figures = target / "entries.tsv"
    figures.write_text("")
    text = "".join(entry(preset, test, figures) for preset in sys.argv[2:] for test in tests_of(build / preset))
    text += machine_entries(build, target, figures)
    partial = target / "CTestTestfile.cmake.part"
    partial.write_text(text)
    os.replace(partial, target / "CTestTestfile.cmake")


if __name__ == "__main__":
    main()
