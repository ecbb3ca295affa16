#!/usr/bin/env python3
"""Makes the packages of this build, installs each one, and runs jobs with it. DDP_BUILD_DIR is the build. The packages
have the programs of the presets "portable" and "aarch64", too, if ./dev package has built them.

The tarball goes into a directory with a blank in its name, the wheel into a venv, the .deb into a directory (dpkg-deb -x)."""

import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launch import BIN, SOURCE, LaunchTest, Nodes, main  # noqa: E402

BUILD = pathlib.Path(os.environ.get("DDP_BUILD_DIR", BIN.parent))
PORTABLE = ["--portable", SOURCE / "build/portable"] if (SOURCE / "build/portable/bin/train").exists() else []
AARCH64 = ["--aarch64"] if (SOURCE / "build/aarch64/bin/ddplaunchd").exists() else []
UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
TREE = {"bin/ddplaunch", "bin/ddplaunchd", "libexec/ddplaunch/train", "libexec/ddplaunch/ddplaunch-listen",
        "libexec/ddplaunch/ddplaunch-nvml", "lib/systemd/user/ddplaunchd.service", "share/ddplaunch/python/ddplaunch/elastic.py",
        "share/bash-completion/completions/ddplaunch", "share/doc/ddplaunch/docs/third_party.md"}
FAT_BINARY = bytes.fromhex("50ed55ba")
if AARCH64:
    TREE.add("libexec/ddplaunch/ddplaunchd-aarch64")


def make_packages(out):
    made = subprocess.run([sys.executable, "-B", SOURCE / "cmake/package.py", BUILD, out, *PORTABLE, *AARCH64], text=True, capture_output=True,
                          env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, check=False)
    if made.returncode != 0:
        raise RuntimeError(made.stdout + made.stderr)
    return {path.suffix: path for path in map(pathlib.Path, made.stdout.split())}


def device_code(program):
    """Returns the architectures for which a program has machine code of a GPU, and those for which it has PTX.

    nvcc puts them into fat binaries: a header (magic, version, its size, size of the rest), then an entry per architecture (kind: 1 is
    PTX, 2 machine code; size of its header and of the rest; at byte 28 the architecture). The entries themselves may be compressed."""
    content, found = program.read_bytes(), {1: set(), 2: set()}
    at = content.find(FAT_BINARY)
    while at >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", content, at)
        begin = end = at + header
        if version == 1 and header == 16:
            end += size
        while begin < end:
            kind, _, entry, size = struct.unpack_from("<HHIQ", content, begin)
            architecture, = struct.unpack_from("<I", content, begin + 28)
            found.setdefault(kind, set()).add(architecture)
            begin += entry + size
        at = content.find(FAT_BINARY, at + 4)
    return found[2], found[1]


def nvcc_version():
    """Returns the version of the compiler of the GPU's code in this build; nothing if there is none."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    compiler = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(/.*)$", cache, re.M)
    if not compiler or not re.search(r"^DDP_CUDA:BOOL=ON$", cache, re.M):
        return None
    text = subprocess.run([compiler[1], "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"release (\d+)\.(\d+)", text).groups()))


def can_unshare():
    return subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode == 0


class Package(LaunchTest):
    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="ddplaunch-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        cls.packages = make_packages(cls.place / "packages")
        with tarfile.open(cls.packages[".gz"]) as tar:
            tar.extractall(cls.place / "my programs")
        cls.trees = list((cls.place / "my programs").iterdir())
        assert len(cls.trees) == 1, cls.trees
        if ".deb" in cls.packages:
            subprocess.run(["dpkg-deb", "-x", cls.packages[".deb"], cls.place / "root"], check=True)
            cls.trees.append(cls.place / "root/usr")

    def command(self, *args):
        return [str(self.prefix / "bin/ddplaunch"), "--job-id", self.job, "--job-dir", str(self.job_dir), *map(str, args)]

    def assert_runs(self, prefix):
        """Runs what a new user runs: the version, a job of two ranks, and the trainer."""
        self.prefix = prefix
        for name in TREE:
            self.assertTrue((prefix / name).exists() or "python" in name, f"{prefix} has no {name}")
        self.assertFalse((prefix / "bin/train").exists())
        version = subprocess.run([prefix / "bin/ddplaunch", "--version"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(version, r"^ddplaunch \d+\.\d+\.\d+\ncommit: .*\ncompiler: .*\nlibraries: static: libssh ")
        done = self.run_job("--nproc-per-node", 2, "sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assert_code(done, 0)
        self.assertEqual(sorted(done.out.splitlines()), ["[localhost:0] 0 of 2", "[localhost:1] 1 of 2"])
        done = self.run_job("--nproc-per-node", 2, "train", "--limit", 2000, timeout=300)
        self.assert_code(done, 0)
        self.assertIn("test accuracy", done.out)

    def test_tarball_in_a_directory_with_a_blank(self):
        self.assert_runs(self.trees[0])

    @unittest.skipIf(nvcc_version() is None, "this build has no GPU code: there is no nvcc, or DDP_CUDA is OFF")
    def test_train_has_code_for_each_gpu(self):
        for prefix in self.trees:
            machine, ptx = device_code(prefix / "libexec/ddplaunch/train")
            self.assertEqual(machine, {75, 80, 86, 89, 90} | ({100, 120} if nvcc_version() >= (12, 8) else set()))
            self.assertEqual(ptx, {90})  # for GPUs that come later

    def test_the_links_of_the_installed_documents_lead_to_files(self):
        for prefix in self.trees:
            links = 0
            for page in (prefix / "share/doc/ddplaunch").rglob("*.md"):
                for link in re.findall(r"\]\(([^)#:\s]+)[)#]", re.sub(r"(?s)```.*?```", "", page.read_text())):
                    links += 1
                    self.assertTrue((page.parent / link).exists(), f"{page}: {link}")
            self.assertGreater(links, 100)

    def test_deb(self):
        if ".deb" not in self.packages:
            self.skipTest("dpkg-shlibdeps is not installed")
        self.assert_runs(self.trees[1])
        fields = subprocess.run(["dpkg-deb", "-f", self.packages[".deb"]], capture_output=True, text=True, check=True).stdout
        self.assertRegex(fields, r"(?m)^Depends: libc6 \(>= 2\.\d+\), libgcc-s1 \(>= \S+\)$")
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        done = subprocess.run(["lintian", "--allow-root", "--tag-display-limit", "0", self.packages[".deb"]],
                              env=dict(self.env, TMPDIR=str(self.dir)), capture_output=True, text=True, check=False)  # it leaves a file
        self.assertEqual([line for line in done.stdout.splitlines() if line.startswith("E:")], [])

    def test_wheel_in_a_venv(self):
        wheel = self.packages[".whl"]
        # The release is made on Debian 12. OpenSSL 3.5 of later distributions is larger.
        openssl = re.search(r"OpenSSL (\d+)\.(\d+)", subprocess.run([BIN / "ddplaunch", "--version"], capture_output=True, text=True, check=True).stdout)
        self.assertLessEqual(wheel.stat().st_size, 16_500_000 if tuple(map(int, openssl.groups())) < (3, 5) else 17_500_000)
        venv = self.dir / "venv"
        made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.skipTest("this Python makes no venv")
        subprocess.run([venv / "bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel], check=True)
        self.assert_runs(venv)
        python = venv / "bin/python"
        done = subprocess.run([python, "-m", "ddplaunch", "--version"], capture_output=True, text=True, check=True)
        self.assertTrue(done.stdout.startswith("ddplaunch "))
        spec = "import importlib.util; print(importlib.util.find_spec('ddplaunch.elastic').origin)"
        done = subprocess.run([python, "-c", spec], capture_output=True, text=True, check=True, cwd="/")
        self.assertTrue(done.stdout.startswith(str(venv)), done.stdout)

    def test_tag_of_the_wheel_covers_all_symbols(self):
        wheel = self.packages[".whl"]
        allowed = int(re.search(r"manylinux_2_(\d+)_", wheel.name).group(1))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.dir)
        programs = [p for p in self.dir.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
        self.assertEqual(len(programs), 6 if AARCH64 else 5)
        needed = set()
        for program in programs:
            text = subprocess.run(["readelf", "-V", program], capture_output=True, text=True, check=True).stdout
            needed.update(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", text))
            libraries = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
            self.assertNotIn("libstdc++", libraries, program)
        self.assertLessEqual(max(needed), allowed)

    @unittest.skipUnless(PORTABLE, "./dev package has not made the portable build, so train needs this system's glibc")
    def test_wheel_is_for_glibc_2_28(self):
        self.assertIn("manylinux_2_28_", self.packages[".whl"].name)

    def test_same_build_gives_the_same_bytes(self):
        again = make_packages(self.dir / "again")
        self.assertEqual(again.keys(), self.packages.keys())
        for kind, path in again.items():
            self.assertEqual(path.read_bytes(), self.packages[kind].read_bytes(), kind)

    @unittest.skipUnless(can_unshare(), "mounting in a namespace of our own is not allowed here")
    def test_agent_and_train_are_pushed_from_the_installed_tree(self):
        """The tree is mounted at a path that does not exist on the nodes."""
        here = self.dir / "here"
        here.mkdir()
        nodes = Nodes(self, 2, NODES_BASHRC=str(self.script("bashrc", "")))
        self.prefix = here
        binds = 'mount --bind "$0" "$1" && shift && exec "$@"'
        plain = self.command
        self.command = lambda *args: [*UNSHARE, "sh", "-c", binds, str(self.trees[0]), str(here), *plain(*args)]
        done = self.run_job("-v", "--ssh-config", nodes.ssh_config, "--hostfile", nodes.hostfile, "--nproc-per-node", 1, "--chdir", "/",
                            "train", "--limit", 2000, "--device", "cpu", timeout=120)
        self.assert_code(done, 0)
        self.assertIn("copied ddplaunchd", done.err)
        self.assertIn("test accuracy", done.out)


if __name__ == "__main__":
    main()
