"""Root file systems of distributions, made by debootstrap and kept, and commands that run in them.

A command has a first process, /proc, /dev, /dev/shm, /run and /tmp of its own. All it leaves ends with it, except files in the root."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
HOME = SOURCE / "build/platforms"
# The archive of each distribution, unless DDP_DEBIAN_MIRROR or DDP_UBUNTU_MIRROR or this machine's apt names a mirror.
ARCHIVES = {"Debian": "http://deb.debian.org/debian", "Ubuntu": "http://archive.ubuntu.com/ubuntu"}
# Distribution, and the lines of apt behind the mirror.
SUITES = {"bullseye": ("Debian", ["bullseye main"]), "bookworm": ("Debian", ["bookworm main"]), "trixie": ("Debian", ["trixie main"]),
          "noble": ("Ubuntu", ["noble main universe", "noble-updates main universe"])}
SCRIPTS = pathlib.Path("/usr/share/debootstrap/scripts")
UBUNTU_KEYS = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
# Mounts what the programs of the root $1 expect. The root is a mount, too, so that mounts in it can be changed as a whole.
MOUNT = r"""
set -e
mount --rbind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty fuse; do
  [ ! -e /dev/$name ] || { touch dev/$name && mount --bind /dev/$name dev/$name; }
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd; for name in 0:stdin 1:stdout 2:stderr; do ln -s fd/${name%:*} dev/${name#*:}; done
for name in dev/shm tmp run; do mount -t tmpfs -o mode=1777 tmpfs $name; done
chmod 755 run
"""
# The shell is the first process, and reaps orphans as an init does. Programs may make user namespaces, which chroot would forbid.
ENTER = MOUNT + r"""
[ -z "$2" ] || { mkdir -p ccache && mount --bind "$2" ccache; }
[ -z "$3" ] || ip link set lo up
shift 3
pivot_root . .
umount -l .
set +e
"$@"; exit $?
"""
ENVIRONMENT = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
               "DEBIAN_FRONTEND=noninteractive"]


def say(text):
    print(f"./dev: platforms: {text}", file=sys.stderr, flush=True)


def mirror_in(targets, distribution):
    """Returns the mirror in the output of `apt-get indextargets`, whose lines have label and URI, or None."""
    found = re.search(rf"^{distribution} (https?://\S+?)/?$", targets, re.M)
    return found and found.group(1)


def mirror(distribution):
    targets = ""
    if shutil.which("apt-get"):
        targets = subprocess.run(["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)"], capture_output=True, text=True,
                                 check=False).stdout
    return os.environ.get(f"DDP_{distribution.upper()}_MIRROR") or mirror_in(targets, distribution) or ARCHIVES[distribution]


def why_unreachable(uri):
    try:
        urllib.request.urlopen(urllib.request.Request(uri, method="HEAD"), timeout=20).close()
    except (urllib.error.URLError, OSError) as error:
        return str(getattr(error, "reason", error))
    return None


class Root:
    """The root of one release. `kind` separates roots with different packages."""

    def __init__(self, name, kind=""):
        self.name = name
        self.path = HOME / kind / name
        self.log = self.path.with_suffix(".log")

    def make(self):
        """Makes the root if it is missing. Returns why it cannot be made, or None."""
        distribution, lines = SUITES[self.name]
        archive = mirror(distribution)
        if not self.path.exists():
            reason = why_unreachable(f"{archive}/dists/{self.name}/InRelease")
            if reason:
                return f"cannot reach {archive}: {reason}"
            part = self.path.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.parent.mkdir(parents=True, exist_ok=True)
            say(f"making {self.path} from {archive}; the log is {self.log}")
            command = ["unshare", "--mount", "debootstrap", "--variant=minbase", "--include=ca-certificates"]
            command += [f"--components={','.join(lines[0].split()[1:])}"]
            command += [f"--keyring={ubuntu_keys()}"] if distribution == "Ubuntu" else []
            # All releases of Ubuntu have the same script. A debootstrap that is older than a release lacks the link of its name.
            script = [SCRIPTS / "gutsy"] if distribution == "Ubuntu" else []
            with self.log.open("w") as log:
                if subprocess.run([*command, self.name, part, archive, *script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode:
                    return f"debootstrap failed; see {self.log}"
            part.rename(self.path)
        (self.path / "etc/apt/sources.list").write_text("".join(f"deb {archive} {line}\n" for line in lines))
        (self.path / "etc/hosts").write_text(f"127.0.0.1 localhost {self.name}\n")
        shutil.copyfile("/etc/resolv.conf", self.path / "etc/resolv.conf")
        return None

    def run(self, command, *, network, cwd="/", environment=None, cache=None, log=None):
        """Returns the exit code of the command in the root, with this machine's network or only loopback."""
        kept = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        words = [f"{name}={value}" for name, value in {**kept, **(environment or {})}.items()]
        inside = [*ENVIRONMENT, *words, "sh", "-c", f'hostname {self.name} && cd "$1" && shift && exec "$@"', "-", cwd, *command]
        spaces = ["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", *([] if network else ["--net"])]
        return subprocess.run(["unshare", *spaces, "sh", "-c", ENTER, "-", self.path, cache or "", "" if network else "lo", *inside],
                              stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode

    def install(self, packages):
        """Installs the packages that are missing. Returns the exit code."""
        command = 'dpkg -s "$@" >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends "$@"; }'
        with self.log.open("a") as log:
            return self.run(["sh", "-c", command, "-", *packages], network=True, log=log)


def ubuntu_keys():
    """Returns Ubuntu's keys: this machine's, or those of Debian 13's package, which Debian's keys verify."""
    here = pathlib.Path("/", UBUNTU_KEYS)
    if here.exists():
        return here
    trixie = Root("trixie")
    if trixie.make() is None:
        trixie.install(["ubuntu-keyring"])
    return trixie.path / UBUNTU_KEYS
