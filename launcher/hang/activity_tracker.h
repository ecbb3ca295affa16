#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace ddp::launcher {

/// A process of a worker's tree, as one sample saw it.
struct ProcessTime {
  pid_t pid = 0;
  std::uint64_t started = 0;        ///< identifies the process, together with the pid
  std::chrono::nanoseconds cpu{0};  ///< used since its start, by it and by its children that have ended
  bool traced = false;              ///< a debugger has stopped it at the moment
  bool leader = false;              ///< a live worker: nobody has reaped it, so its pid is no stranger's
};

/// Decides on a node whether its workers are active (sans-IO; docs/users/hang.md). Activity is any of: bytes
/// that a worker wrote, CPU time beyond that of an idle process, a debugger at work in a worker, output that
/// the agent holds back. Activity is observed only when sampling.
///
/// The driver's duties, every period():
///   1. Call `begin_sample`.
///   2. Call `add_sample` for the leaders and `pacemakers()`. If that shows no activity, call it for the
///      other processes of the last whole sample. If these show none either and `whole_due`, call it for the
///      whole trees.
///   3. Call `settle`, and notify the master if it returns a change.
/// Between samples the driver calls `record_activity` for activity that it observes.
class ActivityTracker {
 public:
  using Time = std::chrono::nanoseconds;  ///< the node's CLOCK_MONOTONIC

  /// An idle process runs watchdogs and timers: an idle PyTorch worker with its loaders was measured at 0.2 %
  /// of a core, mostly gloo's thread, which wakes 100 times a second.
  static constexpr int kIdleShare = 100;  ///< one hundredth of a core counts as idle

  ActivityTracker(std::chrono::milliseconds timeout, Time now);

  /// Returns the time between two samples: an eighth of the timeout, between 0.2 s and 5 s.
  static std::chrono::milliseconds period(std::chrono::milliseconds timeout);

  /// Records activity at `now`.
  void record_activity(Time now);
  /// Starts a sample. If it comes far too late, this process was stopped, and perhaps the workers, too:
  /// counting then begins anew.
  void begin_sample(Time now);
  /// Returns true if one of the processes was active since the last sample. A sample that is not `whole`
  /// counts only leaders and processes of the last whole one: another pid may be a stranger's by now.
  bool add_sample(std::span<const ProcessTime> processes, bool whole, Time now);
  /// Finding the trees reads every process of the machine. Therefore a quarter of the timeout lies between
  /// two whole samples, a minute at most.
  bool whole_due(Time now) const;
  /// Processes that were seen at work, and were in the trees at the last whole sample. If sampling them first
  /// shows activity, no other process is sampled.
  const std::vector<pid_t>& pacemakers() const { return pacemakers_; }

  struct QuietChange {
    bool quiet = false;
    Time since{0};  ///< time of the last activity
    bool operator==(const QuietChange&) const = default;
  };
  /// Returns the state for the master if it has changed. Quiet is reported after half of the timeout, so that
  /// a short pause of the job causes no traffic.
  std::optional<QuietChange> settle(Time now);

  Time last_activity() const { return last_activity_; }

 private:
  /// A leaky bucket: CPU time flows in, the share of an idle process flows out, and an overflow means
  /// activity.
  struct Meter {
    std::uint64_t started = 0;
    Time seen{0};
    Time cpu{0};
    Time level{0};
  };
  bool fill(Meter& meter, const ProcessTime& process, Time now) const;

  Time timeout_;
  Time burst_;  ///< capacity of the bucket
  Time last_whole_;
  Time last_activity_;
  Time last_sample_;
  bool sampled_whole_ = false;
  std::map<pid_t, Meter> meters_;  ///< of the leaders and the processes of the last whole sample
  std::uint64_t newest_ = 0;       ///< the latest ProcessTime::started of that sample
  std::vector<pid_t> pacemakers_;
  bool reported_quiet_ = false;
};

}  // namespace ddp::launcher
