#!/usr/bin/env python3
"""Tests our client against both servers of PyTorch's own store: store_torch_server.py CLIENT.

Exit code 77: no such torch is installed.
"""
import subprocess
import sys

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: {sys.executable} has no torch: {error}")
    sys.exit(77)

version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if version < (2, 2):
    print(f"skipped: the store of torch {torch.__version__} has an older numbering; ours begins with 2.2")
    sys.exit(77)

status = 0
both = "use_libuv" in (dist.TCPStore.__init__.__doc__ or "")
backends = [{"use_libuv": False}, {"use_libuv": True}] if both else [{}]
for backend in backends:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, **backend)
    code = subprocess.run([sys.argv[1], "127.0.0.1", str(store.port)], timeout=60).returncode
    print(f"torch {torch.__version__} serving {backend or ''}: {'ok' if code == 0 else 'failed'}")
    status = status or code
sys.exit(status)
