#!/usr/bin/env python3
"""Makes the packages of a release build: a tarball, a wheel and, where dpkg is, a .deb.

Prints the path of each package. Programs of the preset "portable" replace those of the same name in tarball and wheel.
The same build gives the same bytes: entries are sorted and belong to root, and their time is SOURCE_DATE_EPOCH (default: the time of
the last commit). docs/decisions/0027-packages.md has the reasons.
"""
import argparse
import base64
import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
NAME = "ddplaunch"
MODULES = "share/ddplaunch/python/ddplaunch"


def run(*words, **options):
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def time_of_sources():
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run("git", "-C", str(SOURCE), "log", "-1", "--format=%ct"))


def cache_value(build, name):
    return re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M).group(1)


def files_of(tree):
    return sorted(path for path in tree.rglob("*") if path.is_file())


def mode_of(path):
    return 0o755 if os.access(path, os.X_OK) else 0o644


def oldest_glibc(tree):
    """Returns the minor version of the oldest glibc 2.x that has all symbols which the programs of `tree` import."""
    newest = 17
    for path in files_of(tree):
        if path.read_bytes()[:4] == b"\x7fELF":
            imported = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=False).stdout
            newest = max([newest, *(int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", imported))])
    return newest


def use_portable(tree, build):
    for program in (build / "bin").iterdir():
        target = tree / "libexec/ddplaunch" / program.name
        run("strip", "-o", str(target), str(program))
    licence, = build.parent.glob("zig/lib/python3*/site-packages/ziglang/lib/libcxx/LICENSE.TXT")
    shutil.copy(licence, tree / "share/doc/ddplaunch/licenses/libc++")


def write_tarball(tree, path, top, when):
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=when) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in files_of(tree):
            entry = tarfile.TarInfo(f"{top}/{file.relative_to(tree)}")
            entry.size, entry.mtime, entry.mode = file.stat().st_size, when, mode_of(file)
            entry.uname = entry.gname = "root"
            with open(file, "rb") as content:
                tar.addfile(entry, content)


def wheel_name(relative, data):
    """Returns where a file of the tree lies in the wheel: pip puts scripts on PATH and data into the prefix."""
    if relative.parts[0] == "bin":
        return f"{data}/scripts/{relative.name}"
    if relative.is_relative_to(MODULES):
        return f"{NAME}/{relative.name}"
    return f"{data}/data/{relative}"


def write_wheel(tree, out, version, when):
    tag = f"py3-none-manylinux_2_{oldest_glibc(tree)}_{platform.machine()}"
    info, data = f"{NAME}-{version}.dist-info", f"{NAME}-{version}.data"
    entries = {wheel_name(file.relative_to(tree), data): (file.read_bytes(), mode_of(file)) for file in files_of(tree)}
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
                            "Summary: Multi-node launcher for distributed training\nLicense: Apache-2.0\nRequires-Python: >=3.7\n"
                            f"Description-Content-Type: text/markdown\n\n{(SOURCE / 'README.md').read_text()}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    entries.update((name, (text.encode(), 0o644)) for name, text in texts.items())
    record = io.StringIO()
    for name, (content, _) in sorted(entries.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.write(f"{name},sha256={digest},{len(content)}\n")
    entries[f"{info}/RECORD"] = ((record.getvalue() + f"{info}/RECORD,,\n").encode(), 0o644)
    path = out / f"{NAME}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (content, mode) in sorted(entries.items()):
            entry = zipfile.ZipInfo(name, time.gmtime(max(when, 315532800))[:6])  # zip's time begins in 1980
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | mode) << 16
            wheel.writestr(entry, content)
    return path


def write_deb(build, components, out, work, when):
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(when)}
    projects = ";".join(f"{build};{NAME};{component};/" for component in ["ALL", *components])
    run("cpack", "--config", str(build / "CPackConfig.cmake"), "-G", "DEB", "-B", str(work),
        "-D", f"CPACK_INSTALL_CMAKE_PROJECTS={projects}", env=env)
    found, = work.glob("*.deb")
    return shutil.copy(found, out / found.name)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="directory of the release build")
    parser.add_argument("out", type=pathlib.Path, help="directory of the packages")
    parser.add_argument("--portable", type=pathlib.Path, metavar="BUILD", help='directory of the preset "portable"')
    parser.add_argument("--aarch64", action="store_true", help='add the agent of the preset "aarch64"')
    return parser.parse_args()


def main(given):
    os.umask(0o022)
    build, out = given.build.resolve(), given.out.resolve()
    components = ["aarch64"] if given.aarch64 else []
    version, when = cache_value(build, "CMAKE_PROJECT_VERSION"), time_of_sources()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        tree = work / "tree"
        run("cmake", "--install", str(build), "--prefix", str(tree), "--strip")
        for component in components:
            run("cmake", "--install", str(build), "--prefix", str(tree), "--component", component)
        if given.portable:
            use_portable(tree, given.portable.resolve())
        top = f"{NAME}-{version}-linux-{platform.machine()}"
        tarball = out / f"{top}.tar.gz"
        write_tarball(tree, tarball, top, when)
        print(tarball)
        print(write_wheel(tree, out, version, when))
        if shutil.which("dpkg-shlibdeps"):
            print(write_deb(build, components, out, work / "deb", when))
        else:
            print("package.py: no .deb: dpkg-shlibdeps is not installed", file=sys.stderr)


if __name__ == "__main__":
    main(parse_arguments())
