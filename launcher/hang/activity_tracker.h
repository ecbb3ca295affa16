#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace ddp::launcher {

/// A process of a worker's tree, as one look saw it.
struct ProcessTime {
  pid_t pid = 0;
  std::uint64_t started = 0;        ///< with the pid: which process this is
  std::chrono::nanoseconds cpu{0};  ///< used since its start, by it and by its children that have ended
  bool traced = false;              ///< a debugger holds it at this moment
};

/// Decides on a node whether its workers still do anything (sans-IO; docs/hang.md). Activity is: bytes
/// that a worker wrote; CPU time beyond what an idle process uses; a debugger at work in it; output that we
/// ourselves hold back. Activity is observed only when sampling.
///
/// The driver's duties, every period():
///   1. `begin_sample`;
///   2. `add_sample` of the leaders and of `pacemakers()`; when that showed no activity, of the other
///      processes known from the last whole sample; when that showed none either and `whole_due`, of the
///      whole trees, however they are found;
///   3. `settle`, and tell the master when it gives a change.
/// Between samples it calls `record_activity` for what it hears of.
class ActivityTracker {
 public:
  using Time = std::chrono::nanoseconds;  ///< the node's CLOCK_MONOTONIC

  /// Watchdogs and timers of an idle process: an idle PyTorch worker with its loaders was measured at 0.2 %
  /// of a core, most of it gloo's thread, which wakes 100 times a second.
  static constexpr int kIdleShare = 100;  ///< one hundredth of a core is idleness
  static constexpr int kMeters = 16'384;  ///< processes remembered

  ActivityTracker(std::chrono::milliseconds timeout, Time now);

  /// How often a sample is due: an eighth of the timeout, between 0.2 s and 5 s.
  static std::chrono::milliseconds period(std::chrono::milliseconds timeout);

  /// Something was done just now.
  void record_activity(Time now);
  /// A sample that comes far too late means that we were stopped ourselves, and the workers perhaps with us:
  /// counting begins anew.
  void begin_sample(Time now);
  /// True: one of them has done something since the last look.
  bool add_sample(std::span<const ProcessTime> processes, bool whole, Time now);
  /// To find the trees costs a look at every process of the machine; a quarter of the timeout lies between
  /// two of them, a minute at most.
  bool whole_due(Time now) const;
  /// Those that were seen at work: looking at them first saves the look at all.
  const std::vector<pid_t>& pacemakers() const { return pacemakers_; }

  struct QuietChange {
    bool quiet = false;
    Time since{0};  ///< of the last sign of life
    bool operator==(const QuietChange&) const = default;
  };
  /// What the master is to know, when that has changed. Quiet is said after half of the timeout, so that a
  /// pause of the job makes no traffic.
  std::optional<QuietChange> settle(Time now);

  Time last_activity() const { return last_activity_; }

 private:
  /// A bucket with a leak: CPU time flows in, the share of an idle process flows out, and what overflows is
  /// work.
  struct Meter {
    std::uint64_t started = 0;
    Time seen{0};
    Time cpu{0};
    Time level{0};
  };
  bool fill(Meter& meter, const ProcessTime& process, Time now) const;

  Time timeout_;
  Time burst_;  ///< what the bucket holds
  Time last_whole_;
  Time last_activity_;
  Time last_sample_;
  bool sampled_whole_ = false;
  std::map<pid_t, Meter> meters_;
  std::vector<pid_t> pacemakers_;
  bool reported_quiet_ = false;
};

}  // namespace ddp::launcher
