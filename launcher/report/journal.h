#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/job_end.h"

namespace ddp::launcher {

struct HistoryPoint;

/// A change of a job's state (docs/users/journal.md).
struct JournalEvent {
  enum class Kind : std::uint8_t {
    kJobStarted,
    kJobEnded,
    kNodeJoined,
    kNodeAbsent,
    kNodeLost,
    kNodeReplaced,
    kAttemptStarted,
    kAttemptRunning,
    kAttemptStopping,
    kAttemptEnded,
    kRankExited,
    kLineMatched,
    kRankSlow,
    kRankRecovered,
    kHangFound,
    kHangNamed,  ///< the verdict on it; comes again while the job goes on without progress
    kHangOver,
    kSignal,
  };
  struct AttemptNode {
    std::string node;
    int first_rank = 0;
    int ranks = 0;
  };

  Kind kind = Kind::kJobStarted;
  std::string reason = {};  ///< for the user; empty: the kind says all
  std::string node = {};    ///< empty: the event is of no single node
  std::optional<std::uint32_t> rank = {};
  std::optional<std::uint32_t> attempt = {};
  std::string job = {};               ///< kJobStarted: the job's id
  std::optional<int> exit_code = {};  ///< kJobEnded; kRankExited: unset if a signal ended it
  int signal = 0;                     ///< kSignal; kRankExited: the signal that ended it, or 0
  bool failure = false;               ///< kAttemptStopping: neither the user's wish nor for a larger attempt;
                                      ///< kLineMatched: the line counts as the rank's failure
  std::optional<HangVerdict> hang = {};  ///< kHangNamed
  std::vector<AttemptNode> nodes = {};   ///< kAttemptStarted: all, in the order of node ranks
};

/// Version of the journal's lines. It changes when a key changes its meaning.
inline constexpr int kJournalFormat = 1;

/// Returns the event as a line of events.jsonl: JSON, UTF-8, ends with a newline. Long reasons are cut. The
/// events of a job have the ids 1, 2, 3 and so on.
std::string journal_line(const JournalEvent& event, std::uint64_t id,
                         std::chrono::system_clock::time_point time);

/// Returns the point as a line of events.jsonl, an event "sample". What is not known is null.
std::string sample_line(const HistoryPoint& point, std::uint64_t id,
                        std::chrono::system_clock::time_point time);

}  // namespace ddp::launcher
