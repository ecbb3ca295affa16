"""PyTorch for tests: the interpreters that have it, and what a build without libuv needs.

Since 2.4 PyTorch's store uses libuv unless USE_LIBUV=0 is set, and refuses to connect in a build without libuv (Debian 13's). A
test adds environment(PYTHON) to the environment of its workers, so all other builds are tested as users run them. A test whose
workers join the agent's store is skipped where can_join_store() is False; why_not() is the reason.

The module is not called torch, since a script in this folder would import it instead of PyTorch."""

import functools
import os
import pathlib
import re
import subprocess
import sys

SYSTEM = "/usr/bin/python3"
NAMED = "DDP_TEST_TORCH_PYTHON"  # may name one more interpreter
WITHOUT_LIBUV = {"USE_LIBUV": "0"}


@functools.cache
def lacks_libuv(dist):
    """Returns whether this interpreter's store asks for libuv, and its build has none. `dist` is torch.distributed."""
    if "use_libuv" not in (dist.TCPStore.__init__.__doc__ or ""):
        return False
    try:
        dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=True)
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return True
    return False


def store_options(dist):
    """Returns the further arguments with which this interpreter's TCPStore can be made."""
    return {"use_libuv": False} if lacks_libuv(dist) else {}


@functools.cache
def probe(python):
    """Returns the environment that the interpreter's PyTorch needs, or None if it has no PyTorch with torch.distributed."""
    code = ("import torch.distributed as dist\nif not dist.is_available(): raise ImportError\n"
            f"import sys; sys.path.append({str(pathlib.Path(__file__).resolve().parents[2])!r})\n"
            "from tests.support import pytorch\nprint(pytorch.lacks_libuv(dist))")
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    lines = done.stderr.splitlines()
    if done.returncode != 0 and lines and re.match("(Import|ModuleNotFound)Error", lines[-1]):
        return None
    if done.returncode != 0:
        raise RuntimeError(f"{python} cannot use its PyTorch:\n{done.stderr}")
    return WITHOUT_LIBUV if done.stdout.split() == ["True"] else {}


def why_not(python=SYSTEM):
    """Returns why workers with this interpreter's PyTorch cannot join the agent's store, or None. Without libuv, PyTorch 2.6 makes a
    client for libuv there whatever USE_LIBUV says, and fails. It joins the store of a worker."""
    needs = probe(python)
    if needs is None:
        return f"{python} has no PyTorch"
    return f"the PyTorch of {python} was built without libuv, so it cannot join the agent's store" if needs else None


def can_join_store(python=SYSTEM):
    return why_not(python) is None


def environment(python=SYSTEM):
    return dict(probe(python) or {})


def interpreters():
    """Returns the distribution's interpreter and the named one, each if it has PyTorch."""
    return [python for python in (SYSTEM, os.environ.get(NAMED)) if python and probe(python) is not None]


def joining_interpreters():
    """Returns those whose PyTorch can join the agent's store."""
    return [python for python in interpreters() if can_join_store(python)]


def import_or_skip():
    """Returns (torch, torch.distributed). Ends a script with 77 if its interpreter has no PyTorch. Sets USE_LIBUV where needed."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        print(f"skipped: {sys.executable} has no torch: {error}")
        sys.exit(77)
    if lacks_libuv(dist):
        os.environ.update(WITHOUT_LIBUV)
    return torch, dist
