"""Installs the packages of build/packages in fresh systems and runs jobs with them, also over SSH from one system to another.

Each system is a root in build/platforms/packages: Debian's minimal system with Python and OpenSSH, or one that holds nothing but busybox
and dropbear. They share a network that is only loopback, with an address and an SSH server for each."""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import time

from report import glibc_in, not_run, table
from root import ENVIRONMENT, HOME, MOUNT, SOURCE, Root, say

# What is installed in each root. The .deb is for the distribution that made it, so only the root of this machine's release gets it.
SYSTEMS = {"bullseye": ["tarball", "wheel"], "bookworm": ["tarball", "wheel", "deb"], "trixie": ["tarball", "wheel", "deb"],
           "busybox": ["tarball"]}
INSTALL = {"tarball": "rm -rf /opt && mkdir /opt && tar -C /opt -xzf /packages/*.tar.gz",
           "wheel": "rm -rf /venv && python3 -m venv /venv && /venv/bin/pip install -q --no-index --disable-pip-version-check /packages/*.whl",
           "deb": "dpkg -i /packages/*.deb"}
DDPLAUNCH = {"tarball": "/opt/*/bin/ddplaunch", "wheel": "/venv/bin/ddplaunch", "deb": "/usr/bin/ddplaunch"}
PACKAGES = ["openssh-client", "openssh-server", "python3-venv"]
HEADER = ["system", "glibc", "package", "Python", "version", "train", "exit code", "node over SSH", "exit code", "train", "processes left"]


def make_busybox(path):
    """Makes a root of busybox, dropbear and the libraries of dropbear, from Debian 12's packages. Returns why it cannot, or None."""
    source = Root("bookworm", "packages")
    reason = source.make() or (source.install(["busybox-static", "dropbear-bin"]) and f"cannot install busybox and dropbear; see {source.log}")
    if reason:
        return reason
    shutil.rmtree(path, ignore_errors=True)
    programs = ["/bin/busybox", "/usr/sbin/dropbear", "/usr/bin/dropbearkey"]
    libraries = subprocess.run(["chroot", source.path, "ldd", *programs[1:]], check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in {*programs, *re.findall(r"(/\S+) \(0x", libraries)}:
        (path / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.path / name[1:], path / name[1:])
    for name in ("etc", "proc", "sys", "dev", "run", "tmp", "root"):
        (path / name).mkdir(exist_ok=True)
    (path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (path / "etc/group").write_text("root:x:0:\n")
    subprocess.run(["chroot", path, "/bin/busybox", "--install", "-s", "/bin"], check=True)
    subprocess.run(["chroot", path, "/usr/bin/dropbearkey", "-t", "ed25519", "-f", "/etc/host_key"], check=True, capture_output=True)
    return None


def host_key(name, path):
    if name == "busybox":
        text = subprocess.run(["chroot", path, "/usr/bin/dropbearkey", "-y", "-f", "/etc/host_key"], check=True, stdout=subprocess.PIPE, text=True)
        return re.search(r"^ssh-ed25519 \S+", text.stdout, re.M).group()
    return (path / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()


def prepare(name, built):
    """Makes the root, with the packages in /packages. Returns its path, or None and why."""
    path = HOME / "packages" / name
    root = Root(name, "packages")
    if name == "busybox":
        reason = make_busybox(path)
    else:
        reason = root.make() or (root.install(PACKAGES) and f"cannot install {' '.join(PACKAGES)}; see {root.log}")
    if reason:
        return None, reason
    shutil.rmtree(path / "packages", ignore_errors=True)
    shutil.copytree(built, path / "packages")
    return path, None


def write_keys(roots):
    """Lets root of each system log in to each other one."""
    key = HOME / "packages/id_ed25519"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    known = "".join(f"{address(at)} {host_key(name, path)}\n" for at, (name, path) in enumerate(roots.items()))
    for path in roots.values():
        folder = path / "root/.ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(key, folder)
        shutil.copy(key.with_suffix(".pub"), folder / "authorized_keys")
        (folder / "known_hosts").write_text(known)


def address(at):
    return f"127.0.0.{at + 11}"


def run(path, command, timeout=300):
    """Returns exit code and output of a shell's command in the root."""
    try:
        done = subprocess.run(["chroot", path, *ENVIRONMENT, "sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no end after {timeout} s"
    return done.returncode, done.stdout


def left():
    """Returns the command lines of ddplaunch's processes that do not end within 10 s."""
    limit = time.monotonic() + 10
    while True:
        found = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = file.read_bytes().split(b"\0")
                found += [b" ".join(words)] if words[0].split(b"/")[-1] in (b"ddplaunch", b"ddplaunchd", b"train") else []
        if not found or time.monotonic() > limit:
            return found
        time.sleep(0.1)


def row_of(name, path, package, node, node_address):
    """Installs the package and runs jobs. Returns a row, and what failed."""
    failures = []

    def outcome(command, code, *texts):
        got, output = run(path, command)
        if got == code and all(text in output for text in texts):
            return "ok"
        failures.append(f"{name}: {package}: {command}\nexit {got} instead of {code}\n{output}")
        return "FAILED"

    glibc, python = glibc_in(run(path, "ldd --version")[1]), run(path, "python3 -c 'import platform; print(platform.python_version())'")
    row = [name, glibc, package, python[1].strip() if python[0] == 0 else "-"]
    if outcome(INSTALL[package], 0) != "ok":
        return [*row, "not installed", *["-"] * 6], failures
    program = DDPLAUNCH[package]
    train = "train --limit 2000 --epochs 1"
    takes_train = node != "busybox" and package != "deb"  # that of the .deb needs a node whose glibc is not older
    row += [outcome(f"{program} --version", 0, "ddplaunch "),
            outcome(f"{program} --nproc-per-node 2 {train}", 0, "test accuracy") if name != "busybox" else "-",
            outcome(f"{program} --nproc-per-node 2 sh -c 'exit $((RANK * 7))'", 7),
            node,
            outcome(f"{program} --host {node_address} --nproc-per-node 2 sh -c 'cat /etc/system; exit $((RANK * 5))'", 5, f"system {node}"),
            outcome(f"{program} --host {node_address} --nproc-per-node 2 {train}", 0, "test accuracy") if takes_train else "-"]
    processes = left()
    failures += [f"{name}: {package}: left running: {line.decode(errors='replace')}" for line in processes]
    return [*row, len(processes)], failures


def run_inside(words):
    """Runs in the namespaces: starts the SSH servers, and prints the table. Each system's node is the one before it. Words are names
    of systems, and NAME=REASON of those that could not be made."""
    names = [word for word in words if "=" not in word]
    roots = {name: HOME / "packages" / name for name in names}
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for at, (name, path) in enumerate(roots.items()):
        subprocess.run(["sh", "-c", MOUNT, "-", path], check=True)
        (path / "etc/system").write_text(f"system {name}\n")
        (path / "run/sshd").mkdir()
        server = f"dropbear -p {address(at)}:22 -r /etc/host_key" if name == "busybox" else \
            f"/usr/sbin/sshd -o ListenAddress={address(at)} -o UsePAM=no"
        run(path, server + " >/dev/null 2>&1")
    rows, failures = [], []
    for at, name in enumerate(names):
        for package in SYSTEMS[name]:
            if package == "deb" and f"VERSION_CODENAME={name}\n" not in pathlib.Path("/etc/os-release").read_text():
                continue
            row, failed = row_of(name, roots[name], package, names[at - 1], address((at - 1) % len(names)))
            rows.append(row)
            failures += failed
    missing = [not_run(*word.split("=", 1)) for word in words if "=" in word]
    print(*failures, *table(HEADER, rows + missing), sep="\n")
    return 1 if failures or not rows else 0


def are_built(folder):
    return any(folder.glob("*.tar.gz"))


def run_packages(names, named):
    """Prints the table. `named`: a system that cannot be made is a failure."""
    built = SOURCE / "build/packages"
    if not are_built(built):
        say("there are no packages in build/packages; run: ./dev package")
        return 1
    prepared = {name: prepare(name, built) for name in names}
    roots = {name: path for name, (path, reason) in prepared.items() if not reason}
    missing = {name: reason for name, (_, reason) in prepared.items() if reason}
    if not roots:
        print(*table(HEADER, [not_run(*item) for item in missing.items()]), sep="\n")
        return 1
    write_keys(roots)
    spaces = ["--mount", "--mount-proc", "--pid", "--fork", "--kill-child", "--net", "--ipc"]
    words = [*roots, *(f"{name}={reason}" for name, reason in missing.items())]
    code = subprocess.run(["unshare", *spaces, sys.executable, "-B", __file__, *words], stdin=subprocess.DEVNULL, check=False).returncode
    return code or int(named and bool(missing))


if __name__ == "__main__":
    sys.exit(run_inside(sys.argv[1:]))
