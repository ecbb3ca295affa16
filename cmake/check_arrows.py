#!/usr/bin/env python3
"""Checks the include rules: which room may include which other room, and which third-party library.

usage: check_arrows.py SOURCE_ROOT      prints FILE:LINE: REASON for each violation; exit code 1 when there is one

A room is a folder (docs/developers/architecture.md, "Rooms"). A new file needs no line here; a new room needs one.
"""
import pathlib
import re
import sys

# room                              kind  other rooms that it may include; "rendezvous/*" means all rooms of that folder.
# A core decides: it has no socket, clock, thread, environment or logger (CORE_FORBIDS), and runs in simulations and fuzzers.
TABLE = """
base                                io    -

rendezvous/protocol                 core  base
rendezvous/membership               core  base
rendezvous/store                    core  base
rendezvous/worker                   core  base
rendezvous/flight_recorder          core  base
rendezvous/link                     io    base rendezvous/protocol
rendezvous/store_tcp                io    base rendezvous/link rendezvous/store
rendezvous/worker_client            io    base rendezvous/worker

remote/hosts                        core  base
remote/bootstrap                    core  base
remote/transports                       io    base remote/bootstrap remote/hosts
remote/start                        io    base remote/bootstrap remote/transports
remote/ssh                          io    base remote/bootstrap remote/hosts remote/transports remote/start

launcher/job                        core  base remote/hosts rendezvous/membership rendezvous/protocol
launcher/report                     core  base remote/hosts rendezvous/flight_recorder rendezvous/protocol rendezvous/worker
launcher/hang                       core  base launcher/report rendezvous/protocol
launcher/lines                      core  base launcher/job
launcher/supervisor                 core  base launcher/hang launcher/job launcher/report remote/hosts
                                          rendezvous/membership rendezvous/protocol
launcher/agent_core                 core  base launcher/report rendezvous/protocol rendezvous/worker
launcher/check                      core  base launcher/job launcher/report launcher/supervisor remote/hosts rendezvous/membership
                                          rendezvous/protocol
launcher/keeper                     io    base
launcher/inspection                 io    base launcher/hang launcher/keeper rendezvous/flight_recorder rendezvous/protocol
launcher/agent                      io    base launcher/agent_core launcher/inspection launcher/job launcher/keeper launcher/report
                                          rendezvous/flight_recorder rendezvous/link rendezvous/protocol
                                          rendezvous/store rendezvous/store_tcp rendezvous/worker
launcher/output                     io    base launcher/job launcher/lines remote/hosts rendezvous/protocol
launcher/control                    io    base launcher/report remote/start rendezvous/link
launcher/telemetry                  io    base launcher/report
launcher/master                     io    base launcher/check launcher/control launcher/job launcher/keeper launcher/lines
                                          launcher/output launcher/report launcher/supervisor launcher/telemetry remote/start rendezvous/link
                                          rendezvous/membership
                                          rendezvous/protocol
launcher/links                      io    base remote/bootstrap remote/transports remote/start rendezvous/link

apps/options                        io    base
apps/ddplaunch/options              io    apps/options base launcher/control launcher/job launcher/lines launcher/links launcher/report remote/hosts
apps/ddplaunch/operate              io    apps/ddplaunch/options apps/options base launcher/control launcher/job launcher/keeper launcher/lines launcher/output launcher/report
apps/ddplaunch                      io    base apps/ddplaunch/operate apps/ddplaunch/options launcher/* remote/* rendezvous/link rendezvous/membership
                                          rendezvous/protocol
apps/ddplaunchd                     io    apps/options base launcher/agent launcher/keeper launcher/links remote/bootstrap rendezvous/link rendezvous/protocol
apps/ddplaunch_listen               io    apps/ddplaunchd base launcher/links rendezvous/link
apps/ddplaunch_nvml                 io    -
apps/static_program                 io    -

apps/train/kernels/cpu              core  -
apps/train/kernels/gpu              core  apps/train/kernels/cpu
apps/train/schedule                 core  base
apps/train/data                     io    base apps/train/kernels/cpu
apps/train/model                    io    apps/train/data apps/train/kernels/cpu
apps/train/checkpoint               io    base apps/train/data apps/train/kernels/cpu apps/train/model apps/train/schedule
apps/train/collectives              io    base apps/train/collectives/schedule
apps/train/collectives/schedule     core  base apps/train/kernels/cpu
apps/train/collectives/cpu          io    base apps/train/collectives apps/train/collectives/schedule apps/train/data
                                          apps/train/kernels/cpu
apps/train/gpu                      io    base apps/train/collectives apps/train/data apps/train/kernels/cpu apps/train/kernels/gpu
                                          apps/train/model
apps/train/collectives/nccl         io    base apps/train/collectives apps/train/gpu
apps/train/flight_recorder          io    base apps/train/collectives apps/train/collectives/schedule apps/train/kernels/cpu
                                          rendezvous/flight_recorder
apps/train/options                  io    apps/options base apps/train/collectives apps/train/data apps/train/gpu apps/train/kernels/cpu
                                          apps/train/model apps/train/schedule
apps/train/world                    io    base apps/train/collectives apps/train/collectives/cpu apps/train/collectives/nccl
                                          apps/train/data apps/train/flight_recorder apps/train/gpu apps/train/options
                                          rendezvous/store_tcp
apps/train/training                 io    base apps/train/checkpoint apps/train/collectives apps/train/data
                                          apps/train/gpu apps/train/kernels/cpu apps/train/model apps/train/options
                                          apps/train/schedule apps/train/world rendezvous/worker rendezvous/worker_client
apps/train/bench                    io    apps/options base apps/train/checkpoint apps/train/collectives apps/train/collectives/nccl
                                          apps/train/data apps/train/gpu apps/train/kernels/cpu apps/train/options apps/train/training
                                          apps/train/world
apps/train/health/checks            core  apps/train/bench apps/train/data apps/train/kernels/gpu base
apps/train/health                   io    apps/ddplaunch_nvml apps/options base apps/train/bench apps/train/checkpoint apps/train/collectives apps/train/data
                                           apps/train/gpu apps/train/health/checks apps/train/kernels/cpu apps/train/kernels/gpu apps/train/model apps/train/options
                                          apps/train/training apps/train/world
apps/train                          io    base apps/train/*
"""
# header                 rooms that include it; a library without a room is for tests, or is not used
LIBRARIES = """
boost/asio               base
boost/beast              apps/ddplaunch/operate launcher/control launcher/telemetry
boost/                   apps/ddplaunch/operate base launcher/control launcher/report launcher/telemetry remote/hosts rendezvous/protocol
asio.hpp
asio/
catch2/
cuda                     apps/train/gpu apps/train/health apps/train/kernels/gpu
nvml.h
zlib.h                   apps/train/data
spdlog/                  launcher/output
libssh/                  remote/ssh
openssl/                 remote/ssh rendezvous/link
yaml-cpp/                apps/ddplaunch/options
CLI/                     apps/options
nlohmann/                apps/ddplaunch/operate launcher/check launcher/control launcher/hang launcher/report launcher/telemetry rendezvous/flight_recorder rendezvous/worker apps/train/bench apps/train/checkpoint
                         apps/train/health apps/train/training
nccl.h                   apps/train/collectives/nccl
"""
CORE_FORBIDS = re.compile(
    r"^(boost/asio.*|base/(asio|clock|child_process|blocking_calls)\.h"
    r"|sys/(socket|epoll|eventfd|un|wait)\.h|netinet/in\.h|arpa/inet\.h|netdb\.h|poll\.h|fcntl\.h|unistd\.h|signal\.h|pthread\.h"
    r"|thread|mutex|condition_variable|future|fstream|iostream)$")
# (file of a core, header): reason
CORE_EXCEPTIONS = {
    ("launcher/hang/wait_state.cc", "arpa/inet.h"): "inet_ntop writes an address of /proc/net/tcp as text",
    ("remote/hosts/host.cc", "arpa/inet.h"): "inet_pton reads an address from text",
}
CORE_CALLS = re.compile(r"\b(\w+_clock\s*::\s*now(?=\s*\()|(?:secure_)?getenv(?=\s*\()|environ\b|clock_gettime\b)")
NO_CODE = re.compile(
    r'//[^\n]*|/\*[\s\S]*?\*/|R"(\w*)\([\s\S]*?\)\1"|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)+\'')
# Incrementing a directory_iterator throws when a disk fails or a process of /proc has ended.
LISTED_BY = "base/files.h"
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SOURCES = {".h", ".cc", ".cu", ".cuh"}
UNKNOWN_SOURCES = {".c", ".c++", ".cpp", ".cppm", ".cxx", ".h++", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tcc"}


def read_rooms(table):
    """Returns {room: (kind, [room or "folder/*"])}. A line that begins with a blank continues the line before."""
    rooms = {}
    for line in table.splitlines():
        words = line.split()
        if line[:1].isspace():
            rooms[room][1].extend(words)
        elif words:
            room = words[0]
            rooms[room] = (words[1], [word for word in words[2:] if word != "-"])
    return rooms


ROOMS = read_rooms(TABLE)
OWNERS = {words[0]: words[1:] for words in map(str.split, LIBRARIES.replace("\n ", " ").splitlines()) if words}
TOP = {room.split("/")[0] for room in ROOMS}


def may_include(room, other):
    return other == room or any(
        other == allowed or (allowed.endswith("/*") and other.startswith(allowed[:-1])) for allowed in ROOMS[room][1])


def wrong_own(room, header):
    if header.split("/")[0] not in TOP:
        return f'"{header}" does not start at the repository root'
    other = header.rpartition("/")[0]
    if other not in ROOMS:
        return f'"{header}": {other} is not a room in the table of cmake/check_arrows.py'
    if not may_include(room, other):
        return f'{room} may not include {other} ("{header}")'
    return None


def wrong_library(room, header):
    for library, owners in OWNERS.items():
        if header.startswith(library) and room not in owners:
            instead = ' (include "base/asio.h")' if library == "boost/asio" else ""
            return f"<{header}> is for {', '.join(owners) + ' only' if owners else 'no room'}{instead}"
    return None


def core_calls(text):
    """Yields (line number, call) of each clock and environment variable that the code reads. Comments and strings are
    skipped."""
    code = NO_CODE.sub(lambda skipped: "\n" * skipped[0].count("\n") or " ", text)
    for number, line in enumerate(code.splitlines(), 1):
        for call in CORE_CALLS.findall(line):
            yield number, call


def violations(root):
    paths = (path for top in sorted(TOP) for path in sorted((root / top).rglob("*")) if path.suffix in SOURCES | UNKNOWN_SOURCES)
    for path in paths:
        name = path.relative_to(root).as_posix()
        room = name.rpartition("/")[0]
        if path.suffix in UNKNOWN_SOURCES:
            yield f"{name}:1: unknown suffix; sources end in {', '.join(sorted(SOURCES))}"
            continue
        if room not in ROOMS:
            yield f"{name}:1: {room} is not a room in the table of cmake/check_arrows.py"
            continue
        text = path.read_text(encoding="utf-8")
        is_core = ROOMS[room][0] == "core"
        for number, call in core_calls(text) if is_core else ():
            yield f"{name}:{number}: a sans-IO core may not use {call}"
        for number, line in enumerate(text.splitlines(), 1):
            if "directory_iterator" in line and name != LISTED_BY:
                yield f"{name}:{number}: directories are read by list_directory ({LISTED_BY})"
            found = INCLUDE.match(line)
            if not found:
                continue
            quoted, angled = found.groups()
            header = quoted or angled
            wrong = wrong_own(room, header) if quoted or header.split("/")[0] in TOP else wrong_library(room, header)
            if not wrong and is_core and CORE_FORBIDS.match(header) and (name, header) not in CORE_EXCEPTIONS:
                wrong = f"a sans-IO core may not include {header}"
            if wrong:
                yield f"{name}:{number}: {wrong}"


def main():
    found = list(violations(pathlib.Path(sys.argv[1])))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
