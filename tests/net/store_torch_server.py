#!/usr/bin/env python3
"""Tests our client against the servers (with and without libuv) of PyTorch's own store: store_torch_server.py CLIENT.

Exit code 77: no such torch is installed.
"""
import pathlib
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch

torch, dist = pytorch.import_or_skip()

version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if version < (2, 2):
    print(f"skipped: the store of torch {torch.__version__} has an older numbering; ours begins with 2.2")
    sys.exit(77)

status = 0
both = "use_libuv" in (dist.TCPStore.__init__.__doc__ or "")
backends = [{"use_libuv": False}, {"use_libuv": True}] if both else [{}]
if pytorch.lacks_libuv(dist):
    print(f"torch {torch.__version__} is built without libuv: only its other server is tested")
    backends.pop()
for backend in backends:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, **backend)
    code = subprocess.run([sys.argv[1], "127.0.0.1", str(store.port)], timeout=60).returncode
    print(f"torch {torch.__version__} serving {backend or ''}: {'ok' if code == 0 else 'failed'}")
    status = status or code
sys.exit(status)
