#!/usr/bin/env python3
"""Fails when an include goes against the modules' arrows, or a third-party header is used outside its files."""
import pathlib
import re
import sys

# apps -> launcher -> {rendezvous, remote} -> base; rendezvous and remote never see each other.
MAY_INCLUDE = {
    "base": {"base"},
    "remote": {"remote", "base"},
    "rendezvous": {"rendezvous", "base"},
    "launcher": {"launcher", "rendezvous", "remote", "base"},
    "apps": {"apps", "launcher", "rendezvous", "remote", "base"},
}
# The bundled worker is a client of the rendezvous and knows nothing of launching.
TRAIN_MAY_INCLUDE = {"apps/train", "rendezvous", "base"}
# A third-party library is included by the named files only.
ONLY_IN = {
    "libssh/": {"remote/ssh_session.cc", "remote/ssh_shell.cc", "remote/ssh_keys.cc"},
    "spdlog/": {"base/log.h", "base/log.cc"},
    "CLI/": {"apps/ddplaunch/options.cc", "apps/ddplaunch/option_groups.cc", "apps/train/options.cc"},
}
# Sans-IO cores: no sockets, clocks, threads, environment or logger.
CORES = {
    "remote/hostfile", "remote/host_range", "remote/host_filter", "remote/shell_quote", "remote/bootstrap",
    "rendezvous/message", "rendezvous/frame", "rendezvous/codec", "rendezvous/rank_plan", "rendezvous/key_store",
    "rendezvous/tcp_store_codec", "launcher/job_spec", "launcher/worker_env", "launcher/supervisor",
    "launcher/output_lines", "launcher/exit_report", "launcher/net_choice", "apps/train/sampler",
}
CORE_FORBIDS = re.compile(r"(boost/asio|base/asio|base/log|sys/socket|<thread>|<mutex>|<fstream>|<iostream>|unistd\.h)")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def violations(root):
    for module in MAY_INCLUDE:
        for path in sorted((root / module).rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
                continue
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found = INCLUDE.match(line)
                if not found:
                    continue
                ours, theirs = found.groups()
                if ours:
                    top = ours.split("/")[0]
                    allowed = MAY_INCLUDE[module]
                    if top not in MAY_INCLUDE:
                        yield f'{name}:{number}: "{ours}" is not written from the repository root'
                    elif name.startswith("apps/train/"):
                        folder = "/".join(ours.split("/")[:2]) if top == "apps" else top
                        if folder not in TRAIN_MAY_INCLUDE:
                            yield f'{name}:{number}: train may not include "{ours}"'
                    elif top not in allowed:
                        yield f'{name}:{number}: {module} may not include "{ours}"'
                for library, files in ONLY_IN.items():
                    if theirs and theirs.startswith(library) and name not in files:
                        yield f"{name}:{number}: <{theirs}> belongs to {', '.join(sorted(files))}"
                if path.with_suffix("").relative_to(root).as_posix() in CORES and CORE_FORBIDS.search(line):
                    yield f"{name}:{number}: a sans-IO core may not include {ours or theirs}"


def main():
    found = list(violations(pathlib.Path(sys.argv[1])))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
