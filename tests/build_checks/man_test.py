#!/usr/bin/env python3
"""Checks that the man pages and --help name the same options.

usage: man_test.py BIN_DIR
"""
import pathlib
import re
import subprocess
import sys
import unittest

BIN = pathlib.Path(sys.argv.pop())
MAN = pathlib.Path(__file__).resolve().parents[2] / "docs/man"
LONG_OPTION = r"--[a-z][a-z-]+"


# Verbs of a program, with options of their own.
OTHER_USES = {"train": (("bench",), ("health",))}
# The page names these options in one sentence.
ONE_CHOICE = "Options of nccl-tests with one possible value:"


def options_of_help(program, *use):
    text = subprocess.run([BIN / program, *use, "--help"], check=True, text=True, stdout=subprocess.PIPE).stdout
    text = text.partition(ONE_CHOICE)[0]
    return set(re.findall(rf"(?m)^ +(?:-\w, ?)?({LONG_OPTION})", text))


def options_of_page(program):
    """Returns the options that have a paragraph of their own: the line after .TP."""
    page = (MAN / f"{program}.1").read_text().replace("\\-", "-")
    heads = re.findall(r"(?m)^\.TP\n\.B[IR]? (.*)$", page)
    return {name for head in heads for name in re.findall(LONG_OPTION, head)}


class Man(unittest.TestCase):
    def test_pages_and_help_name_the_same_options(self):
        for program in ("ddplaunch", "train"):
            with self.subTest(program):
                uses = ((), *OTHER_USES.get(program, ()))
                expected = set().union(*(options_of_help(program, *use) for use in uses))
                self.assertEqual(sorted(options_of_page(program)), sorted(expected))

    def test_every_program_has_a_page(self):
        self.assertEqual({page.stem for page in MAN.glob("*.1")}, {"ddplaunch", "ddplaunchd", "train"})


if __name__ == "__main__":
    unittest.main()
