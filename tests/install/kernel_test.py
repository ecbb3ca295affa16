#!/usr/bin/env python3
"""Runs jobs as on an older kernel: a seccomp filter answers ENOSYS to system calls that such a kernel lacks."""

import ctypes
import os
import pathlib
import platform
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launch import DDPLAUNCH, LaunchTest, main  # noqa: E402

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ENOSYS = 0x7FFF0000, 0x00050000 | 38
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
# These numbers are the same on x86-64 and aarch64.
CALLS = {"pidfd_send_signal": 424, "pidfd_open": 434, "clone3": 435, "close_range": 436}


def without(*names):
    """Returns a function for preexec_fn that refuses the named calls to the program and all its children."""
    numbers = [CALLS[name] for name in names]
    filters = struct.pack("HBBI", LOAD, 0, 0, 0)  # the number of the call
    for at, number in enumerate(numbers):
        filters += struct.pack("HBBI", JUMP_IF_EQUAL, len(numbers) - at, 0, number)
    filters += struct.pack("HBBI", RETURN, 0, 0, RET_ALLOW) + struct.pack("HBBI", RETURN, 0, 0, RET_ENOSYS)
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(filters, len(filters))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(numbers) + 3, ctypes.addressof(code)))

    def apply(_code=code):  # the program has only its address
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, MODE_FILTER, program, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")
    return apply


@unittest.skipUnless(platform.machine() in ("x86_64", "aarch64"), "the filter knows x86-64 and aarch64")
class OldKernel(LaunchTest):
    def test_the_filter_refuses_the_call(self):
        done = self.run_job("true")
        self.assert_code(done, 0)
        code = "import os, sys\ntry: os.pidfd_open(os.getpid())\nexcept OSError as e: sys.exit(e.errno)"
        pid = os.fork()
        if pid == 0:
            without("pidfd_open")()
            os.execv(sys.executable, [sys.executable, "-c", code])
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 38)

    def test_workers_get_no_descriptor_without_close_range(self):
        """Every descriptor of the caller that is not close-on-exec ends at ddplaunch."""
        extra = os.open("/dev/null", os.O_RDONLY)
        self.addCleanup(os.close, extra)
        os.set_inheritable(extra, True)
        for names in ((), ("close_range",), ("close_range", "clone3")):
            with self.subTest(names):
                done = self.run_job("--nproc-per-node", 2, "--label", "none", "sh", "-c", "exec ls /proc/self/fd", close_fds=False,
                                    preexec_fn=without(*names) if names else None)
                self.assert_code(done, 0)
                # The last one is the directory that ls reads.
                self.assertEqual(sorted(done.out.split()), sorted("0123" * 2))

    def test_failure_and_stop_without_close_range_and_clone3(self):
        done = self.run_job("--nproc-per-node", 2, "sh", "-c", "[ $RANK = 0 ] && exit 7; sleep 1000",
                            preexec_fn=without("close_range", "clone3"))
        self.assert_code(done, 7)

    def test_missing_pidfds_are_one_clear_error(self):
        for name in ("pidfd_open", "pidfd_send_signal"):
            with self.subTest(name):
                done = self.run_job("true", preexec_fn=without(name))
                self.assertNotEqual(done.code, 0)
                self.assertIn(f"lacks or refuses {name} (Function not implemented); ddplaunch needs Linux 5.4 or later", done.err)
                check = self.run_check(without(name))
                self.assertIn(f"lacks or refuses {name}", check.err + check.out)

    def test_check_names_the_missing_calls(self):
        lines = [self.run_check(filtered).out for filtered in (None, without("close_range", "clone3"))]
        self.assertIn("used by jobs: pidfd_open, clone3, close_range, ", lines[0])
        self.assertIn("used by jobs: pidfd_open, clone3: no (not in this kernel), close_range: no (not in this kernel), ", lines[1])

    def run_check(self, filtered):
        self.command = lambda *args: [DDPLAUNCH, "check", *map(str, args)]
        try:
            return self.run_job(preexec_fn=filtered)
        finally:
            del self.command


if __name__ == "__main__":
    main()
