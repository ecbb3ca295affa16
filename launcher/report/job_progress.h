#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "launcher/report/journal.h"

namespace ddp::launcher {

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
    kHang,    ///< nothing moves
    kWait,    ///< workers stop, or the next attempt waits
  };
  static constexpr std::array<const char*, 5> kPhaseNames{"start", "train", "rework", "hang", "wait"};
  /// Causes of a failed attempt.
  static constexpr std::array<const char*, 4> kCauseNames{"rank", "node", "hang", "other"};

  struct Figures {
    std::optional<std::uint64_t> step;       ///< completed by all ranks that report steps
    std::optional<std::uint64_t> last_step;  ///< completed by the foremost rank
    std::optional<double> step_seconds;      ///< duration of a recent step
    std::array<Time, kPhaseNames.size()> spent{};
    std::array<int, kCauseNames.size()> failures{};
    int nodes_lost = 0;
    /// Returns the part of the time in which the job made progress: kTrain over all; 0 at the begin.
    double goodput() const;
  };

  /// `hang_timeout`: how long nothing has moved when a hang is found.
  JobProgress(Time began, Time hang_timeout) : hang_timeout_(hang_timeout), since_(began) {}

  void take(const JournalEvent& event, Time now);
  /// `steps`: how many each of `ranks` has completed, of the same size. Ignored unless `attempt` is the
  /// present one.
  void take_steps(std::uint32_t attempt, std::span<const std::uint32_t> ranks,
                  std::span<const std::uint64_t> steps, Time now);

  /// Unset: the rank has reported none in this attempt.
  std::optional<std::uint64_t> step_of(std::uint32_t rank) const;
  Figures figures(Time now) const;

 private:
  struct Mark {
    std::uint64_t step = 0;
    Time time{0};
  };
  void enter(Phase phase, Time now);
  void measure(std::uint64_t lowest, Time now);

  Time hang_timeout_;
  Phase phase_ = Phase::kStart;
  Time since_;    ///< begin of the phase
  Figures sums_;  ///< all but the present phase and the steps
  std::uint32_t attempt_ = 0;
  std::map<std::uint32_t, std::uint64_t> steps_;   ///< by rank, of this attempt
  std::map<std::uint64_t, std::size_t> ranks_at_;  ///< number of ranks by their step: a message of a node
                                                   ///< must not cost a walk through all ranks
  std::optional<std::uint64_t> reached_;           ///< the most steps that all ranks had completed
  std::size_t cause_ = kCauseNames.size() - 1;     ///< of a failure of this attempt
  /// The latest step of all ranks, and two earlier ones: the duration is measured from the older.
  std::array<std::optional<Mark>, 3> marks_;
};

}  // namespace ddp::launcher
