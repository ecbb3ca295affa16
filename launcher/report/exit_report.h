#pragma once

#include <string>
#include <vector>

#include "launcher/report/exit_code.h"
#include "launcher/report/job_end.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {

/// `text` ends with the line "ddplaunch: exit N: why"; empty for exit 0. `why` is that line's end.
struct ExitReport {
  int exit_code = 0;
  std::string text;
  std::string why;
};

/// Root cause in words, with what is known of it; the last lines of its stderr; the consequences (alike ones
/// folded into one line); the exit code:
///   stop_signal     128 + signal, whatever the workers then did
///   a worker        its own code, 128 + n for a signal, 127 (not found) or 126 when it could not be
///   executed;
///                   1 when its exception is known, but our stop came before it had exited
///   a node, master  exit_code_of its error
ExitReport make_exit_report(const JobEnd& end);

/// Which failure make_exit_report tells of as the cause; null: none.
const Failure* cause_of(const JobEnd& end);

/// A node that never got ready. Several such are no consequences of each other, and each has its own cure.
bool is_start_failure(const Failure& failure);

/// "rank 5 on gpu02 exited 3": one failure in half a line; `cause`: of those that others follow from.
std::string failure_line(const Failure& failure, bool cause = true);

/// Sorted numbers as "0-3,7"; at most 8 parts, then ",…".
std::string rank_set(std::vector<int> ranks);

}  // namespace ddp::launcher
