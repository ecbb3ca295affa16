#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// A worker's exception, as written by PyTorch's `@record` to TORCHELASTIC_ERROR_FILE. Any field may be
/// empty.
struct WorkerException {
  std::string type;                       ///< "ValueError"
  std::string message;                    ///< "boom"; without a type, the whole text
  std::string frame;                      ///< where it was raised: "train.py:12 in main: x = f(y)"
  std::string trace;                      ///< the whole traceback
  std::optional<std::int64_t> unix_time;  ///< by the node's wall clock, in seconds: shown, never trusted
};

/// Parses the formats that torch has written since 1.9: {"message": {"message": "ValueError: boom",
/// "extraInfo": {"py_callstack": …, "timestamp": "1700000000"}}} and {"message": "ValueError: boom"}. A
/// truncated text yields the part before the cut. Unset when there is no message.
std::optional<WorkerException> parse_error_json(std::string_view text);

/// Splits "ValueError: boom" into its two parts; without a type the first is empty.
WorkerException split_exception(std::string_view text);

/// Returns the innermost frame of a Python traceback, as in WorkerException::frame; empty when there is none.
std::string last_frame(std::string_view trace);

/// The time at which something happened: not before `earliest` and not after `latest`, by the master's
/// CLOCK_MONOTONIC.
struct Interval {
  std::chrono::nanoseconds earliest{0};
  std::chrono::nanoseconds latest{0};

  std::chrono::nanoseconds middle() const { return earliest + margin(); }
  std::chrono::nanoseconds margin() const { return (latest - earliest) / 2; }
};

/// A node's knowledge of a worker's abnormal exit beyond the exit status (rendezvous::WorkerEvidence).
struct Evidence {
  std::string oom;  ///< source of the proof that the OOM killer ended it or a child; empty: none
  std::string xid;  ///< Xid lines of the NVIDIA driver, one per line
  std::optional<WorkerException> exception;  ///< written by `@record`
};

Evidence read_evidence(const rendezvous::WorkerEvidence& message);

/// One failure: an abnormal exit of a worker, or a failed node.
struct Failure {
  enum class Kind : std::uint8_t {
    kExited,      ///< worker, `status` 1…255
    kSignaled,    ///< worker, `signal`, `core_dumped`
    kMisbehaved,  ///< worker, `error` has what it did; it still ran, and ddplaunch stops it
    kExec,        ///< worker, could not be executed: `error` has the errno and the text
    kNode,        ///< node: `error` has the reason; rank, local_rank and pid mean nothing
    kHung,        ///< the whole job: `error` has the ranks' states; no host, no rank
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
  bool stopped_by_us = false;                 ///< its end began after our signal (WorkerExited::after_stop)
  bool late_kill = false;                     ///< WorkerExited::late_kill
  bool lost_peers = false;                    ///< it had reported unreachable ranks (worker protocol)
  Interval happened;                          ///< a worker's end: by its agent's clock ± its error
  std::chrono::nanoseconds attempt_began{0};  ///< by the clock of `happened`
  std::optional<std::chrono::milliseconds> ran;  ///< from the worker's start to its end; unset: never ran
  std::uint32_t attempt = 0;
  std::uint32_t start_attempt = 0;  ///< attempt that started its process; it survived until `attempt`
  Evidence evidence;
  int nodes_lost = 0;                    ///< of the root cause of an earlier attempt: lost in that attempt
  std::string waited_for;                ///< of a root cause: the rank that others waited for; empty: none
  std::vector<std::string> last_stderr;  ///< StderrTail::lines()
  std::string stderr_path;               ///< file in the job directory; empty: none

  bool of_worker() const { return kind != Kind::kNode && kind != Kind::kHung; }
  /// Since the start of the attempt, ± happened.margin().
  std::chrono::nanoseconds at() const { return happened.middle() - attempt_began; }
};

/// Returns how many nodes are among the failures of an attempt. A node may be named twice.
int count_nodes(const std::vector<Failure>& failures);

/// A worker that exited 0 before the attempt ended. Times are as in Failure.
struct EarlyExit {
  int rank = 0;
  std::string host;
  Interval happened;
  std::chrono::nanoseconds attempt_began{0};

  std::chrono::nanoseconds at() const { return happened.middle() - attempt_began; }
};

/// What is known of a job that makes no progress, or of which a user asked: the one object that the report,
/// the status, the page, hooks and `ddplaunch hang` show (docs/users/hang.md).
struct HangVerdict {
  enum class Kind : std::uint8_t {
    kActive,   ///< a user asked, or a line told of a hang; a worker was active shortly before
    kStalled,  ///< nobody is active; the job goes on, or its stacks are still being collected
    kHung,     ///< the attempt is ended for it (--hang-timeout)
    kFailed,   ///< a rank gave up waiting for others
  };
  enum class Confidence : std::uint8_t { kLow, kMedium, kHigh };
  /// A source of what is known. `ranks`: how many told it; 0: it is not of single ranks.
  struct Witness {
    std::string source;  ///< "flight recorder", "steps", "activity", "processes", "hint"
    std::size_t ranks = 0;
    std::string text;
  };
  Kind kind = Kind::kActive;
  std::uint32_t attempt = 0;
  std::string text;  ///< one line
  Confidence confidence = Confidence::kLow;
  std::vector<int> ranks;             ///< that the others wait for, or that differ from the others
  std::vector<Witness> witnesses;     ///< the most telling first
  std::chrono::nanoseconds quiet{0};  ///< time without any activity
  std::string files;                  ///< pattern of the files with stacks; empty: none were written

  /// Returns the text of a witness; empty: it told nothing.
  std::string text_of(std::string_view source) const;
};

/// The end of a job, from the master's view.
struct JobEnd {
  std::vector<Failure> failures;    ///< of the last attempt, in any order
  std::vector<EarlyExit> early;     ///< of the last attempt, in any order
  std::vector<Failure> earlier;     ///< root cause of each restarted attempt, in order
  int restarts = 0;                 ///< after failures, so without those for a larger world
  std::optional<std::size_t> root;  ///< index into failures; unset: pick_root_cause decides
  int stop_signal = 0;              ///< user's SIGINT, SIGTERM or SIGHUP before any failure; 0: none
  std::string stopped_by;       ///< with stop_signal: who sent it, as text; empty: the terminal, or unknown
  std::string awaited;          ///< with stop_signal: what the start waited for; empty: it was over
  std::string grace_ended_by;   ///< early, by whom: "a second Ctrl-C after 3.1 s"; empty: nobody
  std::string job;              ///< "job run7: 2 nodes × 8 workers"
  std::string job_dir;          ///< directory of the job's files; empty: none
  std::optional<Error> master;  ///< the master's own failure (usage, job directory, …)
  std::optional<HangVerdict> hang;  ///< of the attempt; unset: nobody has asked, or the job went on
};

}  // namespace ddp::launcher
