#pragma once

#include <sys/types.h>

#include <chrono>

#include "base/unique_fd.h"

namespace ddp::launcher {

/// A descriptor that stays with its process, even when another process gets the number: a pidfd, or, where
/// has_pidfds() is false, the directory /proc/PID. It can be sent to another process of this PID namespace. A
/// zombie counts as ended once all its threads have ended. All functions make system calls only
/// (async-signal-safe), allocate nothing, and may run on any thread.

/// Empty: errno says why (ESRCH: no such process; EMFILE).
UniqueFd open_process(pid_t pid);

bool has_ended(int fd);

/// Waits until the process has ended, at most `limit`. Looks every millisecond where it has no pidfd.
void wait_for_end(int fd, std::chrono::milliseconds limit);

/// Signals the process with the number `pid`; returns 0 or an errno (ESRCH: it has ended). Without a pidfd
/// the process is looked at first: another one would be hit only if this one ended, was reaped and all
/// numbers were used in the microseconds between the look and the signal.
int signal_process(int fd, pid_t pid, int number);

}  // namespace ddp::launcher
