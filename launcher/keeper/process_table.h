#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// A process as /proc/PID/status showed it at one moment. Reading this file takes no lock which another
/// process can hold for long. Reading the other files (stat, wchan, environ, cmdline, maps) may wait until an
/// exec or page fault of the process ends. A dead disk can delay that for ever.
struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  uid_t uid = 0;       ///< effective
  char state = '?';    ///< R, S, D, T, t, Z, X, …
  bool stops = false;  ///< in D with a SIGSTOP that is still to take effect: a parent inside vfork
  std::string comm;
};

/// Reads the text of /proc/PID/status (proc(5)).
std::optional<ProcessInfo> parse_status(std::string_view text);

/// Unset if there is no such process.
std::optional<ProcessInfo> read_process(pid_t pid);

/// Returns "pid 77 of user ann". 0: a process outside of this PID namespace.
std::string process_text(pid_t pid, uid_t uid);
/// Returns the sender of a signal for people: "bash (pid 77 of user ann)".
std::string sender_text(pid_t pid, uid_t uid);

/// Returns every visible process of /proc, the highest number first. Costs 10 to 20 µs per process.
std::vector<ProcessInfo> list_processes();

/// Calls `visit` for the same processes, each at the moment when it was read.
void visit_processes(const std::function<void(ProcessInfo&&)>& visit);

/// Processes by number.
using ProcessMap = std::map<pid_t, ProcessInfo>;

/// Returns the first process, from `pid` upwards to its ancestors, for which `wanted` holds; 0: none. The
/// processes of a changing system may form a cycle.
pid_t find_upwards(const ProcessMap& processes, pid_t pid,
                   const std::function<bool(const ProcessInfo&)>& wanted);

/// The fields of /proc/PID/stat that are needed.
struct ProcessStat {
  pid_t pid = 0;
  char state = '?';
  bool ending = false;        ///< its end has begun: it exits, a signal ends it, or its core is being written
  std::uint64_t started = 0;  ///< clock ticks since boot; the pair of pid and `started` is never reused
  std::uint64_t cpu = 0;      ///< clock ticks used by it and by its children that it has waited for
  std::uint64_t own_cpu = 0;  ///< of these, by itself
  std::string comm;
};

/// Parses the text of /proc/PID/stat (proc(5)). The name may hold any byte, including spaces and parentheses.
std::optional<ProcessStat> parse_stat(std::string_view text);

/// Unset if there is no such process. Blocks while the process is inside exec.
std::optional<ProcessStat> read_stat(pid_t pid);

/// False if another process has the number meanwhile. Zombies count as ended.
bool has_pid_ended(pid_t pid);

/// Returns whether `environment` (NAME=value entries, each ended by NUL, as in /proc/PID/environ) has exactly
/// this entry. Allocates nothing.
bool has_entry(std::string_view environment, std::string_view entry);
/// The value of `name` in `environment`; unset if it has no such entry.
std::optional<std::string_view> entry_value(std::string_view environment, std::string_view name);

}  // namespace ddp::launcher
