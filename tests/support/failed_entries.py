#!/usr/bin/env python3
"""Prints the end of the output of each failed entry of a ctest run, so that the last lines of a long log say why it failed.

usage: failed_entries.py LOG   LOG is ctest's LastTest.log"""
import re
import sys

SHOWN_LINES = 30
ENTRY = re.compile(r"^\d+/\d+ Testing: ([^\n]*)\n.*?^Output:\n-+\n(.*?)^<end of output>\n.*?^Test (\w+)\.$", re.M | re.S)


def failed(log):
    """Returns the name and the last lines of the output of each failed entry."""
    return [(name, output.splitlines()[-SHOWN_LINES:]) for name, output, result in ENTRY.findall(log) if result not in ("Passed", "Skipped")]


def main():
    with open(sys.argv[1], errors="replace") as file:
        for name, lines in failed(file.read()):
            print(f"--- {name} failed; its last lines:", *lines, sep="\n")


if __name__ == "__main__":
    main()
