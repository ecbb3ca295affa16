#!/usr/bin/env python3
"""Runs an interpreter's real PyTorch against our store, and our client against PyTorch's own store.

store_torch_test.py server SERVER PYTHON: PyTorch's clients against SERVER, our store_server_main.
store_torch_test.py client CLIENT PYTHON: CLIENT, our store_client_main, against PyTorch's own store.

PYTHON is a path, or the name of an environment variable that holds one ("$DDP_TEST_TORCH_PYTHON"). Exit code 77: it is not
there, or its PyTorch is missing or too old.
"""
import os
import pathlib
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch  # noqa: E402

HERE = pathlib.Path(__file__).parent
SKIPPED = 77
LIMIT_S = 100
RANKS = 3


def interpreter(name):
    if name.startswith("$"):
        path = os.environ.get(name[1:], "")
        if not path:
            print(f"skipped: {name[1:]} is not set; it names a Python with torch >= 2.1 to test with")
            sys.exit(SKIPPED)
        name = path
    if not os.access(name, os.X_OK):
        print(f"skipped: there is no {name}")
        sys.exit(SKIPPED)
    return name


def with_server(server, run):
    """Calls run(port) and returns its status, or 1 when the server reports an error."""
    process = subprocess.Popen([server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        word, port = process.stdout.readline().split()
        assert word == "port"
        status = run(port)
    finally:
        process.stdin.close()
        code = process.wait(60)
    if code != 0:
        print(f"the server ended with {code}")
        return 1  # also after a skip
    return status


def conformance(python, port):
    try:
        command = [python, HERE / "store_torch_client.py", "127.0.0.1", port]
        return subprocess.run(command, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        print(f"{python}: no end after {LIMIT_S} s")
        return 1


def gloo(python, port, ranks):
    children = []
    for rank in range(ranks):
        environment = dict(
            os.environ,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            RANK=str(rank),
            WORLD_SIZE=str(ranks),
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RESTART_COUNT="0",
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
        )
        children.append(subprocess.Popen([python, HERE / "store_torch_gloo.py"], env=environment))
    try:
        deadline = time.monotonic() + LIMIT_S
        codes = [child.wait(max(0.1, deadline - time.monotonic())) for child in children]
        if not any(codes):
            return 0
        print(f"{python}: the ranks ended with {codes}")  # a negative code is a signal
        return 1
    except subprocess.TimeoutExpired:
        print(f"{python}: {ranks} ranks did not meet within {LIMIT_S} s")
        return 1
    finally:
        for child in children:
            child.kill()
            child.wait()


def main():
    side, program, python = sys.argv[1], sys.argv[2], interpreter(sys.argv[3])
    if side == "client":
        return subprocess.run([python, HERE / "store_torch_server.py", program], timeout=LIMIT_S).returncode
    status = with_server(program, lambda port: conformance(python, port))
    if status == 0 and not pytorch.can_join_store(python):
        print(f"skipped: ranks of a group, since {pytorch.why_not(python)}; its clients passed")
        return SKIPPED
    return status or with_server(program, lambda port: gloo(python, port, RANKS))


sys.exit(main())
