#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/report/job_end.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {

/// The only table of the reserved codes (docs/users/exit_codes.md). kExec depends on the errno, see
/// exec_exit_code, and kCancelled on the signal, which is in `sys`: 128 + signal.
struct ExitCodeRow {
  ErrorCode error;
  const char* kind;  ///< name in the document and in reports
  int exit_code;
  const char* meaning;
};
const std::vector<ExitCodeRow>& exit_code_table();
int exit_code_of(const Error& error);
/// Returns the code that shells use: 127 when the program or its interpreter was not found, else 126.
int exec_exit_code(int sys);

/// Exit code of an error without a row: an internal error.
inline constexpr int kInternalExit = 110;

/// `text` ends with the line "ddplaunch: exit N: why"; it is empty for exit 0. `why` is the end of that line.
struct ExitReport {
  int exit_code = 0;
  std::string text;
  std::string why;
};

/// Builds the report: the root cause with its facts and last stderr lines, the consequences (equal ones
/// folded into one line), and the exit code:
///   stop_signal     128 + signal, whatever the workers then did
///   a worker        its own code, 128 + n for a signal, 127 (not found) or 126 when it could not be
///   executed;
///                   1 when its exception is known, but our stop came before it had exited
///   a node, master  exit_code_of its error
ExitReport make_exit_report(const JobEnd& end);

/// Returns why a job with a stop_signal ends: "stopped by SIGTERM from bash (pid 77 of user ann)".
std::string why_stopped(const JobEnd& end);

/// Returns the failure that make_exit_report reports as the cause; null: none.
const Failure* cause_of(const JobEnd& end);

/// Says where the job is: "job run7: 2 nodes × 8 workers, files in /home/ann/run7".
std::string job_line(const JobEnd& end);

/// Returns one failure as a short line: "rank 5 on gpu02 exited 3". `cause` marks a failure that others
/// follow from.
std::string failure_line(const Failure& failure, bool cause = true);

/// Returns the ranks as "rank 1 on gpu02" or "ranks 0-2 on gpu01 and gpu02".
std::string early_ranks(const std::vector<EarlyExit>& exits);

/// Returns the workers that exited 0 for certain before `failure`.
std::vector<EarlyExit> exits_before(const JobEnd& end, const Failure& failure);

/// Returns which ranks exited 0 for certain before `failure`: "rank 1 on gpu02 exited 0, 2.3 s earlier".
/// Empty: none.
std::string early_exits_text(const JobEnd& end, const Failure& failure);

/// Figures of a whole run.
struct RunSummary {
  std::chrono::nanoseconds duration{0};
  std::uint64_t output_bytes = 0;  ///< that the workers wrote
  double goodput = 0;              ///< see JobProgress
  std::string usage = {};          ///< usage_text()
};

/// Returns the text of the report, with a summary if the run lasted for a minute or `always`. After success,
/// when the report has no text, a run with restarts has one, too. After a failure the report names restarts.
std::string text_with_summary(const ExitReport& report, const JobEnd& end, const RunSummary& summary,
                              bool always);

}  // namespace ddp::launcher
