#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// One line of /proc: a process as it was at one moment.
struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';           ///< R, S, D, T, t, Z, X, …
  std::uint64_t started = 0;  ///< in clock ticks since boot; pid and this together are never used twice
  std::uint64_t cpu = 0;      ///< clock ticks used by it and by its children that it has waited for
  std::string comm;
};

/// Reads the text of /proc/PID/stat (proc(5)); the name may hold any byte, also spaces and parentheses.
std::optional<ProcessInfo> parse_stat(std::string_view text);

/// Unset: there is no such process (any more).
std::optional<ProcessInfo> read_process(pid_t pid);

/// Every process that /proc shows to us, the highest number first. About 10 µs each.
std::vector<ProcessInfo> list_processes();

/// The same, each handed over in the moment in which it was read.
void visit_processes(const std::function<void(ProcessInfo&&)>& visit);

/// The effective uid, from /proc/PID/status (the owner of /proc/PID is root for a process that may not be
/// dumped).
std::optional<uid_t> process_uid(pid_t pid);

/// What the process was executed with, as NAME=value entries separated by NUL; empty when we may not read it.
/// Programs that rename themselves may have overwritten it. At most 4 MiB.
std::string process_environment(pid_t pid);

/// Whether `environment` (as process_environment gives it) has this very "NAME=value" entry, or with a name
/// alone any value of it.
bool has_entry(std::string_view environment, std::string_view entry);

}  // namespace ddp::launcher
