#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ddp::launcher {

/// One thing that went wrong: a worker that ended badly, or a node.
struct Failure {
  enum class Kind : std::uint8_t {
    kExited,    ///< worker, `status` 1…255
    kSignaled,  ///< worker, `signal`, `core_dumped`
    kExec,      ///< worker, could not be executed: `error` has the errno and the text
    kNode,      ///< node: `error` says what; rank, local_rank and pid mean nothing
  };
  Kind kind = Kind::kExited;
  std::string host;
  int rank = 0;
  int local_rank = 0;
  std::int64_t pid = 0;  ///< 0: never ran
  int status = 0;
  int signal = 0;
  bool core_dumped = false;
  Error error;
  bool stopped_by_us = false;                    ///< ended after our own stop order reached it: never a cause
  std::chrono::milliseconds at{0};               ///< since the start of the attempt, clocks corrected
  std::chrono::nanoseconds at_error{0};          ///< ± of `at`
  std::optional<std::chrono::milliseconds> ran;  ///< from the worker's start to its end; unset: it never ran
  std::uint32_t attempt = 0;
  std::vector<std::string> last_stderr;  ///< StderrTail::lines()
  std::string stderr_path;               ///< its file in the job directory; empty: none
};

/// How a job ended, as the master saw it.
struct JobEnd {
  std::vector<Failure> failures;    ///< of the last attempt, in any order
  std::vector<Failure> earlier;     ///< the root cause of each attempt that was restarted, in order
  std::optional<std::size_t> root;  ///< index into failures; unset: pick_root_cause decides
  int stop_signal = 0;  ///< the user's SIGINT, SIGTERM or SIGHUP that came before any failure; 0: none
  std::optional<Error>
      master;  ///< the master's own failure (usage, job directory, …), where no node is to blame
};

/// `text` ends with the line "ddplaunch: exit N: why"; empty for exit 0.
struct ExitReport {
  int exit_code = 0;
  std::string text;
};

/// Root cause in words, the last lines of its stderr, the consequences (alike ones folded into one line), the
/// exit code:
///   stop_signal     128 + signal, whatever the workers then did
///   a worker        its own code, 128 + n for a signal, 127 (not found) or 126 when it could not be executed
///   a node, master  exit_code_of its error
ExitReport make_exit_report(const JobEnd& end);

/// The earliest failure that we did not cause ourselves; at equal times a worker before a node. Unset when
/// all were stopped by us or there is none.
std::optional<std::size_t> pick_root_cause(const std::vector<Failure>& failures);

/// "rank 5 on gpu02 exited 3": one failure in half a line.
std::string failure_line(const Failure& failure);

/// The one table of the reserved codes (docs/exit_codes.md). kExec takes the errno into account: use
/// exec_exit_code.
struct ExitCodeRow {
  ErrorCode error;
  int exit_code;
  const char* meaning;
};
const std::vector<ExitCodeRow>& exit_code_table();
int exit_code_of(const Error& error);
/// As shells do: 127 when the program or its interpreter was not found, else 126.
int exec_exit_code(int sys);

/// Sorted numbers as "0-3,7"; at most 8 parts, then ",…".
std::string rank_set(std::vector<int> ranks);

}  // namespace ddp::launcher
