#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/report/journal.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::launcher {

/// Names ranks that are slower than the others while a job runs (sans-IO; docs/users/hang.md). What counts is
/// the time of a rank's own: in a training whose ranks wait for each other in each step, all steps take
/// equally long. Times are of one monotonic clock.
class SlowRanks {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr double kSlower = 1.5;        ///< times the median: the rank is slow
  static constexpr double kRecovered = 1.25;    ///< times the median: it is slow no longer below this
  static constexpr std::uint64_t kWindow = 10;  ///< steps of which the mean counts; two windows must agree,
                                                ///< since a checkpoint or an evaluation is in one of them
  static constexpr double kWindowTime = 2;  ///< seconds of a window: of short steps more than kWindow count
  static constexpr double kLeast = 0.005;   ///< seconds: smaller differences are noise
  static constexpr std::chrono::minutes kSilence{10};  ///< before a rank is named again
  static constexpr std::size_t kMostNamed = 8;         ///< in one check, each in a line of its own

  /// All ranks start anew.
  void begin_attempt() {
    ranks_.clear();
    waits_known_ = false;
  }
  /// The rank completed `steps` (at least 1). `own`: the seconds that they took, without `waited`, those that
  /// it waited for other ranks; 0: it reports none.
  void add(std::uint32_t rank, std::uint64_t steps, double own, double waited);

  struct Change {
    std::uint32_t rank = 0;
    bool slow = true;  ///< false: it no longer is
    std::string text;  ///< "rank 5 on gpu02 is slow: …"; empty: a change that only counts
  };
  /// Returns the host of a rank.
  using HostOf = std::function<std::string(std::uint32_t rank)>;
  /// Returns what is known of the rank's node that slows ranks down, in words that stay while it stays;
  /// empty: nothing.
  using FactsOf = std::function<std::string(std::uint32_t rank)>;
  /// Compares all ranks. Costs a walk through them.
  std::vector<Change> check(Time now, const HostOf& host_of, const FactsOf& facts_of);

 private:
  struct Rank {
    std::uint64_t steps = 0;  ///< of the window that is not full
    double own = 0;
    double time = 0;  ///< of these steps
    std::uint64_t windows = 0;
    double latest = 0, before = 0;  ///< means of the last two full windows
    bool slow = false;
    bool named = false;
    Time named_at{0};
    std::string facts;  ///< when it was named
  };
  std::map<std::uint32_t, Rank> ranks_;
  bool waits_known_ = false;  ///< some rank has reported that it waited
};

/// Measures the progress of a job, and its use of the time (sans-IO; docs/users/metrics.md). It learns from
/// the events of the journal, and from the steps that workers report. Times are of one monotonic clock.
class JobProgress {
 public:
  using Time = std::chrono::nanoseconds;
  /// A use of time. kPhaseNames has the names in metrics.
  enum class Phase : std::uint8_t {
    kStart,   ///< nodes and workers start
    kTrain,   ///< all ranks run
    kRework,  ///< steps are repeated that an earlier attempt had completed
    kHang,    ///< nothing moves, or no step ends
    kWait,    ///< workers stop, or the next attempt waits
  };
  static constexpr std::array<const char*, 5> kPhaseNames{"start", "train", "rework", "hang", "wait"};
  /// Causes of a failed attempt.
  static constexpr std::array<const char*, 4> kCauseNames{"rank", "node", "hang", "other"};

  struct Figures {
    std::optional<std::uint64_t> step;       ///< completed by all ranks that report steps
    std::optional<std::uint64_t> last_step;  ///< completed by the foremost rank
    /// Duration of a recent step, or of the present one if longer; in the first seconds that of the slowest
    /// rank.
    std::optional<double> step_seconds;
    std::optional<Time> step_age;  ///< since all ranks had completed `step`
    std::optional<double> loss;    ///< of the lowest rank that reports one
    StepDurations durations;       ///< of each rank's steps
    Time stalled{0};  ///< since the last step of all ranks, if that is far too long ago; 0: it is not
    std::map<std::string, std::map<int, int>> xids;  ///< number of Xid errors by node and number
    std::array<Time, kPhaseNames.size()> spent{};
    std::array<int, kCauseNames.size()> failures{};
    int nodes_lost = 0;
    /// Returns the part of the time in which the job made progress: kTrain over all; 0 at the begin.
    double goodput() const;
  };

  /// `hang_timeout`: how long nothing has moved when a hang is found.
  JobProgress(Time began, Time hang_timeout) : hang_timeout_(hang_timeout), since_(began) {}

  void on_event(const JournalEvent& event, Time now);
  /// Adds what workers reported; the lists of the message have the same size, but `durations` has pairs.
  /// Ignored unless its attempt is the present one.
  void add_steps(const rendezvous::WorkerSteps& message, Time now);
  /// `lines`: WorkerEvidence::xid. A line counts once in an attempt, though several ranks may report it.
  void add_xids(const std::string& node, std::string_view lines);

  struct RankReport {
    std::uint64_t step = 0;
    std::optional<double> loss;  ///< of the last report
    std::string phase;           ///< what it does; empty: not reported
    /// Mean duration of its steps in the last minute, without steps of unusual length; unset: not yet known.
    std::optional<double> step_seconds = {};
    bool ended = false;  ///< its worker makes no more steps; set by the owner of the status
  };
  /// Unset: the rank has reported no step in this attempt.
  std::optional<RankReport> report_of(std::uint32_t rank) const;
  Figures figures(Time now) const;
  SlowRanks& slow_ranks() { return slow_ranks_; }

 private:
  struct Mark {
    std::uint64_t step = 0;
    Time time{0};
  };
  /// The report of a rank, and its steps in the present and in the previous window.
  struct RankState {
    struct Window {
      std::uint64_t steps = 0;
      double seconds = 0;
      double mean() const { return seconds / static_cast<double>(steps); }
    };
    RankReport report;
    Time window_began{0};
    Window present, previous;
  };
  void enter(Phase phase, Time now);
  void measure(std::uint64_t lowest, Time now);
  void count_steps(const rendezvous::WorkerSteps& message, Time now);
  Time stalled(Time now) const;
  void add_present_phase(std::array<Time, kPhaseNames.size()>& spent, Time now) const;

  Time hang_timeout_;
  Phase phase_ = Phase::kStart;
  Time since_;    ///< begin of the phase
  Figures sums_;  ///< all but the present phase and the steps
  std::uint32_t attempt_ = 0;
  std::map<std::uint32_t, RankState> ranks_;       ///< by rank, of this attempt
  std::map<std::uint64_t, std::size_t> ranks_at_;  ///< number of ranks by their step: a message of a node
                                                   ///< must not cost a walk through all ranks
  std::optional<std::uint64_t> reached_;           ///< the most steps of all ranks in earlier attempts
  std::size_t cause_ = kCauseNames.size() - 1;     ///< of a failure of this attempt
  std::set<std::string> xid_lines_;                ///< that were counted in this attempt, with their nodes
  /// The latest step of all ranks, and two earlier ones: the duration is measured from the older.
  std::array<std::optional<Mark>, 3> marks_;
  SlowRanks slow_ranks_;
  std::deque<double> recent_;  ///< seconds per step in the latest reports of all attempts
};

}  // namespace ddp::launcher
