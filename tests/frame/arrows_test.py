#!/usr/bin/env python3
"""Plants includes that break an arrow into a small tree and sees cmake/check_arrows.py refuse each by name and line."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
sys.dont_write_bytecode = True
import check_arrows  # noqa: E402 (found through the lines above)


def check(root):
    done = subprocess.run([sys.executable, ROOT / "cmake/check_arrows.py", root], text=True, stderr=subprocess.PIPE)
    return done.returncode, done.stderr.splitlines()


class Arrows(unittest.TestCase):
    def refused(self, path, line, why):
        with tempfile.TemporaryDirectory() as root:
            planted = pathlib.Path(root, path)
            planted.parent.mkdir(parents=True)
            planted.write_text(f"// a line before\n{line}\n")
            self.assertEqual(check(root), (1, [f"{path}:2: {why}"]))

    def accepted(self, path, line):
        with tempfile.TemporaryDirectory() as root:
            planted = pathlib.Path(root, path)
            planted.parent.mkdir(parents=True)
            planted.write_text(line + "\n")
            self.assertEqual(check(root), (0, []))

    def test_the_tree_itself_is_clean(self):
        self.assertEqual(check(ROOT), (0, []))

    def test_base_knows_nobody(self):
        self.refused("base/a.cc", '#include "launcher/b.h"', 'base may not include "launcher/b.h"')

    def test_rendezvous_and_remote_never_see_each_other(self):
        self.refused("rendezvous/a.h", '#include "remote/b.h"', 'rendezvous may not include "remote/b.h"')
        self.refused("remote/a.h", '#include "rendezvous/b.h"', 'remote may not include "rendezvous/b.h"')

    def test_nobody_includes_apps(self):
        self.refused("launcher/a.cc", '  #  include "apps/ddplaunch/b.h"', 'launcher may not include "apps/ddplaunch/b.h"')

    def test_train_is_a_client_of_the_rendezvous(self):
        self.refused("apps/train/a.cc", '#include "launcher/b.h"', 'train may not include "launcher/b.h"')
        self.refused("apps/train/a.cc", '#include "apps/ddplaunch/b.h"', 'train may not include "apps/ddplaunch/b.h"')
        self.accepted("apps/train/a.cc", '#include "rendezvous/tcp_store_client.h"')

    def test_programs_do_not_include_each_other(self):
        self.refused("apps/ddplaunchd/a.cc", '#include "apps/ddplaunch/b.h"',
                     'ddplaunchd may not include "apps/ddplaunch/b.h"')

    def test_the_agent_does_not_see_ssh(self):
        self.refused("apps/ddplaunchd/a.cc", '#include "remote/ssh_shell.h"',
                     'ddplaunchd may not include "remote/ssh_shell.h"')

    def test_includes_are_written_from_the_root(self):
        self.refused("base/a.cc", '#include "error.h"', '"error.h" is not written from the repository root')

    def test_products_do_not_include_tests(self):
        self.refused("base/a.cc", '#include "tests/support/catch.h"',
                     '"tests/support/catch.h" is not written from the repository root')

    def test_libraries_have_their_files(self):
        for library, files in check_arrows.ONLY_IN.items():
            self.refused("launcher/a.cc", f"#include <{library}x.h>", f"<{library}x.h> belongs to {', '.join(sorted(files))}")

    def test_asio_has_one_door(self):
        self.refused("launcher/a.cc", "#include <boost/asio/read.hpp>", '<boost/asio/read.hpp>: include "base/asio.h"')

    def test_cores_do_no_io(self):
        self.refused("rendezvous/codec.cc", "#include <sys/socket.h>", "a sans-IO core may not include sys/socket.h")


if __name__ == "__main__":
    unittest.main()
