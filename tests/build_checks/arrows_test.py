#!/usr/bin/env python3
"""Checks that cmake/check_arrows.py refuses each forbidden include of a small tree, with its name and line."""
import pathlib
import re
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


class AllowedIncludes(unittest.TestCase):
    maxDiff = None

    def checked(self, path, line):
        with tempfile.TemporaryDirectory() as root:
            source = pathlib.Path(root, path)
            source.parent.mkdir(parents=True)
            source.write_text(f"// a line before\n{line}\n")
            found = list(check_arrows.violations(pathlib.Path(root)))
            return (1 if found else 0), found

    def refused(self, path, line, why):
        self.assertEqual(self.checked(path, line), (1, [f"{path}:2: {why}"]))

    def accepted(self, path, line):
        self.assertEqual(self.checked(path, line), (0, []))

    def test_the_tree_has_no_violation(self):
        code, found = check(ROOT)
        self.assertEqual(found, [], "move the code to a room that may know the other one. If this room must know it, add the arrow to "
                         "TABLE in cmake/check_arrows.py and to docs/developers/architecture.md")
        self.assertEqual(code, 0)

    def test_only_list_directory_reads_directories(self):
        line = 'for (const auto& entry : std::filesystem::directory_iterator(".", failed)) {'
        self.refused("launcher/job/a.cc", line, "directories are read by list_directory (base/files.h)")
        self.accepted("base/files.h", line)

    def test_base_includes_no_other_folder(self):
        self.refused("base/a.cc", '#include "launcher/job/b.h"', 'base may not include launcher/job ("launcher/job/b.h")')

    def test_rendezvous_and_remote_never_include_each_other(self):
        self.refused("rendezvous/link/a.h", '#include "remote/hosts/b.h"',
                     'rendezvous/link may not include remote/hosts ("remote/hosts/b.h")')
        self.refused("remote/start/a.h", '#include "rendezvous/link/b.h"',
                     'remote/start may not include rendezvous/link ("rendezvous/link/b.h")')

    def test_master_and_agent_never_include_each_other(self):
        self.refused("launcher/master/a.h", '#include "launcher/agent/b.h"',
                     'launcher/master may not include launcher/agent ("launcher/agent/b.h")')
        self.refused("launcher/agent/a.h", '#include "launcher/master/b.h"',
                     'launcher/agent may not include launcher/master ("launcher/master/b.h")')

    def test_no_library_includes_apps(self):
        self.refused("launcher/job/a.cc", '  #  include "apps/ddplaunch/b.h"',
                     'launcher/job may not include apps/ddplaunch ("apps/ddplaunch/b.h")')

    def test_train_includes_only_the_client_side_of_rendezvous(self):
        self.refused("apps/train/world/a.cc", '#include "launcher/job/b.h"',
                     'apps/train/world may not include launcher/job ("launcher/job/b.h")')
        self.accepted("apps/train/world/a.cc", '#include "rendezvous/store_tcp/tcp_store_client.h"')

    def test_the_agent_program_does_not_include_ssh(self):
        self.refused("apps/ddplaunchd/a.cc", '#include "remote/ssh/ssh_transport.h"',
                     'apps/ddplaunchd may not include remote/ssh ("remote/ssh/ssh_transport.h")')

    def test_an_unknown_folder_is_refused(self):
        self.assertEqual(self.checked("launcher/attic/a.cc", ""),
                         (1, ["launcher/attic/a.cc:1: launcher/attic is not a room in the table of cmake/check_arrows.py"]))
        self.refused("launcher/job/a.cc", '#include "base/old/b.h"', '"base/old/b.h": base/old is not a room in the table of '
                                                                     'cmake/check_arrows.py')

    def test_includes_in_angle_brackets_are_checked_too(self):
        self.refused("base/a.cc", "#include <launcher/agent/agent.h>", 'base may not include launcher/agent ("launcher/agent/agent.h")')
        self.refused("launcher/report/a.cc", "#include <base/asio.h>", "a sans-IO core may not include base/asio.h")

    def test_includes_are_written_from_the_root(self):
        self.refused("base/a.cc", '#include "error.h"', '"error.h" does not start at the repository root')

    def test_product_code_does_not_include_tests(self):
        self.refused("base/a.cc", '#include "tests/support/catch.h"',
                     '"tests/support/catch.h" does not start at the repository root')

    def test_only_its_folders_include_a_library(self):
        for library, rooms in check_arrows.OWNERS.items():
            if library != "boost/asio":
                owners = f"{', '.join(rooms)} only" if rooms else "no room"
                self.refused("launcher/keeper/a.cc", f"#include <{library}x.h>", f"<{library}x.h> is for {owners}")
            for room in rooms:
                self.assertIn(room, check_arrows.ROOMS)

    def test_restricted_headers_are_refused_elsewhere(self):
        for header, room in (("zlib.h", "apps/train/data"), ("cuda_runtime_api.h", "apps/train/gpu"),
                             ("boost/system/result.hpp", "remote/hosts")):
            self.accepted(f"{room}/a.cc", f"#include <{header}>")
            self.assertTrue(self.checked("launcher/agent/a.cc", f"#include <{header}>")[0], header)
        self.refused("remote/hosts/a.cc", "#include <boost/asio/read.hpp>",
                     '<boost/asio/read.hpp> is for base only (include "base/asio.h")')
        for header in ("asio.hpp", "catch2/catch_all.hpp", "nvml.h"):
            self.refused("base/a.cc", f"#include <{header}>", f"<{header}> is for no room")

    def test_other_source_suffixes_are_refused(self):
        for suffix in ("hpp", "cpp", "cxx"):
            self.assertEqual(self.checked(f"launcher/job/a.{suffix}", "#include <thread>"),
                             (1, [f"launcher/job/a.{suffix}:1: unknown suffix; sources end in .cc, .cu, .cuh, .h"]))

    def test_asio_is_included_through_one_header(self):
        self.refused("launcher/master/a.cc", "#include <boost/asio/read.hpp>",
                     '<boost/asio/read.hpp> is for base only (include "base/asio.h")')

    def test_sans_io_cores_include_no_io(self):
        cores = [room for room, (kind, _) in check_arrows.ROOMS.items() if kind == "core"]
        self.assertIn("rendezvous/protocol", cores)
        for core in cores:
            self.refused(f"{core}/a.cc", "#include <sys/socket.h>", "a sans-IO core may not include sys/socket.h")
        for header in ("netinet/in.h", "arpa/inet.h", "netdb.h", "poll.h", "sys/un.h", "sys/eventfd.h", "condition_variable", "future",
                       "pthread.h", "signal.h", "fcntl.h"):
            self.refused("launcher/hang/a.cc", f"#include <{header}>", f"a sans-IO core may not include {header}")
            self.accepted("launcher/agent/a.cc", f"#include <{header}>")
        for name in ("asio", "child_process", "blocking_calls"):
            self.assertTrue((ROOT / f"base/{name}.h").is_file())
            self.refused("launcher/report/a.cc", f'#include "base/{name}.h"', f"a sans-IO core may not include base/{name}.h")

    def test_each_exception_of_a_core_is_used(self):
        for path, header in check_arrows.CORE_EXCEPTIONS:
            self.assertTrue(f"#include <{header}>" in (ROOT / path).read_text(encoding="utf-8"),
                            f"{path} does not include <{header}> any more; remove it from CORE_EXCEPTIONS in cmake/check_arrows.py")
            self.accepted(path, f"#include <{header}>")

    def test_sans_io_cores_read_no_clock_and_no_environment(self):
        for line, call in (("auto now = std::chrono::steady_clock::now();", "steady_clock::now"),
                           ("f(system_clock::now());", "system_clock::now"), ('if (std::getenv("HOME")) {', "getenv"),
                           ("for (char** at = environ; *at; ++at) {", "environ"),
                           ("clock_gettime(CLOCK_MONOTONIC, &now);", "clock_gettime")):
            self.refused("launcher/hang/a.cc", line, f"a sans-IO core may not use {call}")
            self.accepted("launcher/agent/a.cc", line)
            self.accepted("launcher/hang/a.cc", f"// {line}")
        self.accepted("launcher/hang/a.cc", 'f("steady_clock::now() getenv(");')
        self.accepted("launcher/hang/a.cc", "int environment = 1'000, x = 'a';")
        self.refused("launcher/hang/a.cc", "environ;  // 'a line after a comment'", "a sans-IO core may not use environ")

    def test_architecture_md_marks_the_cores(self):
        rows = re.findall(r"^\| `([a-z_/]+)`( ●)?", (ROOT / "docs/developers/architecture.md").read_text(encoding="utf-8"), re.M)
        marked = {room: "core" if mark else "io" for room, mark in rows if room in check_arrows.ROOMS}
        self.assertGreaterEqual(len(marked), 30)
        wrong = [room for room, kind in marked.items() if kind != check_arrows.ROOMS[room][0]]
        self.assertEqual(wrong, [], "docs/developers/architecture.md marks a core with ●, as TABLE in cmake/check_arrows.py has it; make both agree")

    def test_each_allowed_include_is_used(self):
        used = {room: set() for room in check_arrows.ROOMS}
        for top in check_arrows.TOP:
            for path in (ROOT / top).rglob("*"):
                if path.suffix in check_arrows.SOURCES:
                    room = path.parent.relative_to(ROOT).as_posix()
                    for line in path.read_text(encoding="utf-8").splitlines():
                        if found := check_arrows.INCLUDE.match(line):
                            used[room].add((found[1] or found[2]).rpartition("/")[0])
        unused = [f"{room} -> {other}" for room, (_, allowed) in check_arrows.ROOMS.items() for other in allowed
                  if not any(one == other or (other.endswith("/*") and one.startswith(other[:-1])) for one in used[room])]
        self.assertEqual(unused, [], "no file needs these arrows any more; remove them from TABLE in cmake/check_arrows.py")

    def test_allowed_includes_have_no_cycle(self):
        """Sorts the rooms topologically by their arrows. Rooms of a circle would be left over."""
        left = {room: [other for other in check_arrows.ROOMS if other != room and check_arrows.may_include(room, other)]
                for room in check_arrows.ROOMS}
        while free := [room for room, others in left.items() if not any(other in left for other in others)]:
            for room in free:
                del left[room]
        self.assertEqual(left, {}, "these rooms include each other in a circle; turn one arrow around, or move what both need to a lower room")


if __name__ == "__main__":
    unittest.main()
