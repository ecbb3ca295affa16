#!/usr/bin/env python3
"""Checks which libraries the built programs need, and which code of other projects they contain.

usage: links_test.py BIN_DIR
The agent runs on nodes where nothing of ddplaunch is installed, so it needs no library and contains neither SSH nor TLS. The
worker is a client of the store and contains neither.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv.pop())
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
        self.assertIn("libssh.so.4", needed("ddplaunch"))
        self.assertNotEqual(foreign("ddplaunch"), [])

    def test_agent_is_static(self):
        self.assertEqual(needed("ddplaunchd"), set())
        self.assertNotIn("INTERP", run("readelf", "-l", BIN / "ddplaunchd"))

    def test_agent_is_small_enough_to_be_copied(self):
        with tempfile.TemporaryDirectory() as folder:
            stripped = pathlib.Path(folder) / "ddplaunchd"
            subprocess.run(["strip", "-o", stripped, BIN / "ddplaunchd"], check=True)
            self.assertLessEqual(stripped.stat().st_size, 6_000_000)

    def test_agent_resolves_no_names(self):
        """Glibc's resolver would load libraries of the exact glibc of the build, so no_name_resolution.cc replaces it."""
        symbols = run("nm", BIN / "ddplaunchd").split()
        found = sorted({name for name in symbols if re.match(r"_*(nss_|gethostby|getservby|gai_|res_n?query)", name)})
        self.assertEqual(found, [])

    def test_agent_has_a_build_id(self):
        for program in ("ddplaunchd", "train"):
            self.assertRegex(run("readelf", "-n", BIN / program), r"Build ID: [0-9a-f]{40}")

    def test_agent_contains_neither_ssh_nor_tls(self):
        self.assertEqual(foreign("ddplaunchd"), [])

    def test_train_contains_neither_ssh_nor_tls(self):
        self.assertEqual(foreign("train"), [])
        self.assertEqual({name for name in needed("train") if re.match(r"lib(ssh|ssl|crypto|boost)", name)}, set())


if __name__ == "__main__":
    unittest.main()
