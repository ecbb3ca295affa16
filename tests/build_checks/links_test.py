#!/usr/bin/env python3
"""Checks which libraries the built programs need, and which code of other projects they contain.

usage: links_test.py BIN_DIR STATIC        STATIC is ON if this build links ddplaunch without shared libraries
The agent runs on nodes where nothing of ddplaunch is installed, so it needs no library and contains neither SSH nor TLS. The
worker is a client of the store and contains neither.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

STATIC = sys.argv.pop() == "ON"
BIN = pathlib.Path(sys.argv.pop())
PROGRAMS = ["ddplaunch", "ddplaunchd", "ddplaunch-listen"] if STATIC else ["ddplaunchd"]
SSH_OR_TLS = re.compile(r"^(ssh_(connect|channel_open_session|new)|SSL_(new|CTX_new)|EVP_DigestInit_ex)$")


def run(*words):
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def needed(program):
    return set(re.findall(r"\(NEEDED\).*\[(.*?)\]", run("readelf", "-d", BIN / program)))


def foreign(program):
    """Returns the names of SSH or TLS functions that the program defines or imports."""
    symbols = run("nm", BIN / program).split() + run("nm", "-D", BIN / program).split()
    return sorted({name.split("@")[0] for name in symbols if SSH_OR_TLS.match(name.split("@")[0])})


class Links(unittest.TestCase):
    def test_the_test_detects_libssh_in_ddplaunch(self):
        self.assertNotEqual(foreign("ddplaunch"), [])

    def test_the_test_detects_libraries(self):
        self.assertIn("libc.so.6", needed("train"))

    def test_programs_are_static(self):
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertEqual(needed(program), set(), "a static program needs these libraries; link their static archives, or do without them")
                self.assertIn("no dynamic section", run("readelf", "-d", BIN / program), "the program is linked dynamically; link it with -static")
                self.assertNotIn("INTERP", run("readelf", "-l", BIN / program), "the program asks for a dynamic loader, which a node may lack; link it with -static")

    def test_agent_is_small_enough_to_be_copied(self):
        with tempfile.TemporaryDirectory() as folder:
            stripped = pathlib.Path(folder) / "ddplaunchd"
            subprocess.run(["strip", "-o", stripped, BIN / "ddplaunchd"], check=True)
            self.assertLessEqual(stripped.stat().st_size, 6_000_000, "the agent is copied to each node at a start; find what it links now with "
                                 "`nm --size-sort -C`, and move that to another program or library")

    def test_static_programs_load_nothing(self):
        """Glibc's name service and dlopen would load libraries of the exact glibc of the build, so
        no_shared_libraries.cc replaces them."""
        loaders = re.compile(r"_*(nss_(?!keylog)|gethostby(?!name$)|getservby|gai_(?!strerror)|res_n?query|getpw.*_r_?nss|_dl_open\b|dlvsym)")
        for program in PROGRAMS:
            with self.subTest(program):
                symbols = run("nm", BIN / program).split()
                self.assertEqual(sorted({name for name in symbols if loaders.match(name)}), [],
                                 "these functions of glibc load libraries at run time; replace them in apps/static_program/no_shared_libraries.cc")

    def test_agent_has_a_build_id(self):
        for program in ("ddplaunchd", "train"):
            self.assertRegex(run("readelf", "-n", BIN / program), r"Build ID: [0-9a-f]{40}")

    def test_agent_contains_neither_ssh_nor_tls(self):
        self.assertEqual(foreign("ddplaunchd"), [], "the agent runs where no such library is; keep the code that needs it out of its rooms")

    def test_train_contains_neither_ssh_nor_tls(self):
        self.assertEqual(foreign("train"), [], "a worker is a client of the store only; keep the code that needs this out of its rooms")
        self.assertEqual({name for name in needed("train") if re.match(r"lib(ssh|ssl|crypto|boost)", name)}, set(), "link no such library to train")


if __name__ == "__main__":
    unittest.main()
