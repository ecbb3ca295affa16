#!/usr/bin/env python3
"""Runs jobs as on an older kernel. kill_test.py and the tests of real processes run there, too."""

import errno
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launch import DDPLAUNCH, LaunchTest, main  # noqa: E402
from old_kernel import CALLS, IS_KNOWN, without  # noqa: E402


@unittest.skipUnless(IS_KNOWN, "the filter knows x86-64 and aarch64")
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
        for names in ((), ("close_range",), tuple(CALLS)):
            with self.subTest(names):
                done = self.run_job("--nproc-per-node", 2, "--label", "none", "sh", "-c", "exec ls /proc/self/fd", close_fds=False,
                                    preexec_fn=without(*names) if names else None)
                self.assert_code(done, 0)
                # The last one is the directory that ls reads.
                self.assertEqual(sorted(done.out.split()), sorted("0123" * 2))

    def test_failure_and_stop(self):
        for names in (("close_range", "clone3"), ("pidfd_send_signal",), tuple(CALLS)):
            with self.subTest(names):
                # The grandchild has left the session of its rank.
                done = self.run_job("--nproc-per-node", 2, "sh", "-c",
                                    "setsid sleep 1000 & [ $RANK = 0 ] && exit 7; sleep 1000", preexec_fn=without(*names))
                self.assert_code(done, 7)

    def test_check_names_the_missing_calls(self):
        lines = [self.run_check(filtered).out for filtered in (None, without(*CALLS))]
        self.assertIn("used by jobs: pidfds, clone3, close_range, ", lines[0])
        no = "no (not in this kernel)"
        self.assertIn("used by jobs: pidfds: no (not in this kernel, or refused: processes are watched by threads and by number), "
                      f"clone3: {no}, close_range: {no}, ", lines[1])

    def test_a_profile_that_forbids_threads_is_named(self):
        """Old container engines answer EPERM to clone3, and libc makes threads without it only after ENOSYS."""
        forbidden = without("clone3", error=errno.EPERM)
        why = "make a thread: Operation not permitted; a container's security profile refuses it (clone3): update the container engine, "
        done = self.run_job("true", preexec_fn=forbidden)
        self.assert_code(done, 116)
        self.assertIn(why, done.err)
        done = self.run_check(forbidden)
        self.assert_code(done, 115)
        self.assertIn("error: localhost: " + why, done.out)

    def run_check(self, filtered):
        self.command = lambda *args: [DDPLAUNCH, "check", *map(str, args)]
        try:
            return self.run_job(preexec_fn=filtered)
        finally:
            del self.command


if __name__ == "__main__":
    main()
