#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// A process as /proc/PID/status showed it at one moment: a file that takes no lock which another process can
/// hold for long. All others of a process (stat, wchan, environ, cmdline, maps) may wait until its exec or
/// its page fault has ended, which a dead disk can keep for ever.
struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  uid_t uid = 0;     ///< effective
  char state = '?';  ///< R, S, D, T, t, Z, X, …
  std::string comm;
};

/// Reads the text of /proc/PID/status (proc(5)).
std::optional<ProcessInfo> parse_status(std::string_view text);

/// Unset: there is no such process (any more).
std::optional<ProcessInfo> read_process(pid_t pid);

/// Every process that /proc shows to us, the highest number first. 10 to 20 µs each.
std::vector<ProcessInfo> list_processes();

/// The same, each handed over in the moment in which it was read.
void visit_processes(const std::function<void(ProcessInfo&&)>& visit);

/// From /proc/PID/stat.
struct ProcessStat {
  pid_t pid = 0;
  char state = '?';
  std::uint8_t end_signal = 0;  ///< the signal that is ending it; 0: none, or it exits, or we may not know
  std::uint64_t started = 0;    ///< in clock ticks since boot; pid and this together are never used twice
  std::uint64_t cpu = 0;        ///< clock ticks used by it and by its children that it has waited for
  std::string comm;
};

/// Reads the text of /proc/PID/stat (proc(5)); the name may hold any byte, also spaces and parentheses.
std::optional<ProcessStat> parse_stat(std::string_view text);

/// Unset: there is no such process (any more). Waits for an exec of the process.
std::optional<ProcessStat> read_stat(pid_t pid);

/// Whether the process of a pidfd has ended.
bool has_ended(int pidfd);
/// The same by number, which another process may have got meanwhile: then it has not. Zombies have ended.
bool has_pid_ended(pid_t pid);

/// Whether `environment` (NAME=value entries, each ended by NUL: /proc/PID/environ) has this very entry.
/// Allocates nothing.
bool has_entry(std::string_view environment, std::string_view entry);
/// The value of `name` in it; unset: it has none.
std::optional<std::string_view> entry_value(std::string_view environment, std::string_view name);

}  // namespace ddp::launcher
