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

/// A worker's exception, as PyTorch's `@record` leaves it in TORCHELASTIC_ERROR_FILE. Any field may be empty.
struct WorkerException {
  std::string type;                       ///< "ValueError"
  std::string message;                    ///< "boom"; of an exception without a type all that was written
  std::string frame;                      ///< where it was raised: "train.py:12 in main: x = f(y)"
  std::string trace;                      ///< the whole traceback
  std::optional<std::int64_t> unix_time;  ///< by the node's wall clock, in whole seconds: told, never trusted
};

/// Reads the shapes that torch has written since 1.9: {"message": {"message": "ValueError: boom",
/// "extraInfo": {"py_callstack": …, "timestamp": "1700000000"}}} and {"message": "ValueError: boom"}. A text
/// that was cut short gives what stands before the cut. Nothing when there is no message.
std::optional<WorkerException> parse_error_json(std::string_view text);

/// "ValueError: boom" in its two parts; without a type the first is empty.
WorkerException split_exception(std::string_view text);

/// The innermost frame of a Python traceback, as WorkerException::frame; empty when there is none.
std::string last_frame(std::string_view trace);

/// What a node knows of a worker's bad end beyond its exit status (rendezvous::WorkerEvidence).
struct Evidence {
  std::string
      oom;  ///< not empty: the kernel ended it, or a child of it, for want of memory; where that was read
  std::string xid;                           ///< Xid lines of the NVIDIA driver, one a line
  std::optional<WorkerException> exception;  ///< what `@record` wrote
};

/// One thing that went wrong: a worker that ended badly, or a node.
struct Failure {
  enum class Kind : std::uint8_t {
    kExited,    ///< worker, `status` 1…255
    kSignaled,  ///< worker, `signal`, `core_dumped`
    kExec,      ///< worker, could not be executed: `error` has the errno and the text
    kNode,      ///< node: `error` says what; rank, local_rank and pid mean nothing
    kHung,      ///< the whole job: `error` says what its ranks were doing; of no host and no rank
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
  bool stopped_by_us = false;            ///< ended after our own stop order reached it
  bool lost_peers = false;               ///< it had reported ranks that it cannot reach (worker protocol)
  std::chrono::nanoseconds at{0};        ///< since the start of the attempt, clocks corrected
  std::chrono::nanoseconds at_error{0};  ///< ± of `at`
  std::chrono::nanoseconds when{0};      ///< `at` on the master's CLOCK_MONOTONIC; 0: not known
  std::optional<std::chrono::milliseconds> ran;  ///< from the worker's start to its end; unset: it never ran
  std::uint32_t attempt = 0;
  std::uint32_t start_attempt = 0;  ///< attempt in which its process was started; it had lived on since
  Evidence evidence;
  std::string waited_for;  ///< of a root cause: which rank the others waited for in a collective; empty: none
  std::vector<std::string> last_stderr;  ///< StderrTail::lines()
  std::string stderr_path;               ///< its file in the job directory; empty: none

  bool of_worker() const { return kind != Kind::kNode && kind != Kind::kHung; }
};

/// How a job ended, as the master saw it.
struct JobEnd {
  std::vector<Failure> failures;    ///< of the last attempt, in any order
  std::vector<Failure> earlier;     ///< the root cause of each attempt that was restarted, in order
  std::optional<std::size_t> root;  ///< index into failures; unset: pick_root_cause decides
  int stop_signal = 0;  ///< the user's SIGINT, SIGTERM or SIGHUP that came before any failure; 0: none
  std::optional<Error>
      master;  ///< the master's own failure (usage, job directory, …), where no node is to blame

  /// To the failure of that rank and attempt; without one (foreign, late) nothing happens.
  void add_evidence(int rank, std::uint32_t attempt, const rendezvous::WorkerEvidence& evidence);
};

}  // namespace ddp::launcher
