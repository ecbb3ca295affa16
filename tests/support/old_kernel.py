#!/usr/bin/env python3
"""Runs a program as on a kernel older than 5.3: a seccomp filter answers ENOSYS to system calls that such a kernel lacks.

usage: old_kernel.py PROGRAM [ARGUMENT…]
"""

import ctypes
import errno
import os
import platform
import struct
import sys

IS_KNOWN = platform.machine() in ("x86_64", "aarch64")
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
# These numbers are the same on x86-64 and aarch64.
CALLS = {"pidfd_send_signal": 424, "pidfd_open": 434, "clone3": 435, "close_range": 436}


def without(*names, error=errno.ENOSYS):
    """Returns a function for preexec_fn that refuses the named calls to the program and all its children."""
    numbers = [CALLS[name] for name in names]
    filters = struct.pack("HBBI", LOAD, 0, 0, 0)  # the number of the call
    for at, number in enumerate(numbers):
        filters += struct.pack("HBBI", JUMP_IF_EQUAL, len(numbers) - at, 0, number)
    filters += struct.pack("HBBI", RETURN, 0, 0, RET_ALLOW) + struct.pack("HBBI", RETURN, 0, 0, RET_ERRNO | error)
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(filters, len(filters))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(numbers) + 3, ctypes.addressof(code)))

    def apply(_code=code):  # the program has only its address
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, MODE_FILTER, program, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")
    return apply


def main():
    if not IS_KNOWN:
        sys.exit(77)  # ctest shows a skip
    without(*CALLS)()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
