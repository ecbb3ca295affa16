#!/usr/bin/env python3
"""Prints the cases that a ctest run skipped, by reason. ctest's summary does not name them, even less those of entries that passed.

usage: skipped_cases.py FOLDER   has ctest's log of the run, and entries.tsv of measured_entry.py

A case is a test of unittest (with verbosity 2) or Catch2 (SKIP_TEST), or an entry that ends with 77 and names no case."""
import pathlib
import re
import sys

from failed_entries import ENTRY

SKIPPED_CODE = "77"
STARTED = re.compile(r"^(\w+) \((?:__main__\.)?([\w.]+)\)")
SKIPPED = re.compile(r"""^(.*?)(?: \.\.\. |^)skipped (['"])(.*)\2$""")


def cases_of(output):
    """Returns (case, reason) of each skipped case in the output of an entry."""
    found, case = [], ""
    for line in output.splitlines():
        if started := STARTED.match(line):
            case = started[2]
        if skipped := SKIPPED.match(line):
            found.append((case if started or not skipped[1] else skipped[1], skipped[3]))
    return found


def reason_of(output):
    """Returns why an entry was skipped."""
    lines = output.strip().splitlines() or ["no reason given"]
    line = next((line for line in lines if "skipped" in line), lines[-1])
    return re.sub(r"^.*?\bskipped:? ", "", line).strip("'\" ")


def skipped_cases(folder):
    """Returns (entry, case, reason) of each skipped case. The case of an entry that names none is empty."""
    codes = {line.split("\t")[0]: line.split("\t")[3] for line in (folder / "entries.tsv").read_text().splitlines()}
    log = (folder / "Testing/Temporary/LastTest.log").read_text(errors="replace")
    found = []
    for entry, output, _ in ENTRY.findall(log):  # the result of a skipped entry is "Passed" there
        cases = cases_of(output) or ([("", reason_of(output))] if codes.get(entry) == SKIPPED_CODE else [])
        found += [(entry, case, reason) for case, reason in cases]
    return found


def report(cases):
    """Returns a line with the number of cases, and one for each reason."""
    reasons = {}
    for entry, case, reason in cases:
        reasons.setdefault(reason, {}).setdefault(entry, []).append(case)
    lines = [f"{len(cases)} case{'s' * (len(cases) != 1)} skipped"]
    for reason, entries in sorted(reasons.items()):
        lines.append(f"  {reason}: " + ", ".join(f"{entry} ({'; '.join(names)})" if any(names) else entry for entry, names in entries.items()))
    return lines


def main():
    print(*report(skipped_cases(pathlib.Path(sys.argv[1]))), sep="\n")


if __name__ == "__main__":
    main()
