#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "launcher/supervisor/attempt_start.h"
#include "launcher/supervisor/job_events.h"
#include "launcher/supervisor/node_table.h"

namespace ddp::launcher {

/// Decides when to say what a long start waits for (sans-IO): every second for a terminal, at growing
/// intervals for a log.
class StartNotice {
 public:
  using Time = job::Time;
  /// Time until a start that takes long is reported.
  static constexpr std::chrono::seconds kLongStart{3};

  void begin(Time now);
  /// When to call `show`; unset: the start is over.
  std::optional<Time> deadline() const { return check_at_; }
  bool is_due(Time now) const { return check_at_ && now >= *check_at_; }
  /// Shows that the start waits for `awaited`; empty: nothing is shown this time. Call it when due.
  std::optional<job::Waiting> show(const std::string& awaited, Time now);
  /// The start is over. Removes what is shown, if something is. Further calls do nothing.
  std::optional<job::Waiting> end();

 private:
  Time started_at_{0};
  std::optional<Time> check_at_;
  Time log_after_{0};  ///< time from the start to the next line in a log
  bool shown_ = false;
};

/// Returns the step that holds up the start at a node; empty: none. `start`: of the attempt; null: none is
/// being started.
std::string missing_step(const JobSpec& spec, const NodeTable& nodes, const AttemptStart* start,
                         std::size_t node);

/// Returns the nodes that hold up the first start, each with its step: "2 of 64 nodes: gpu07 (connecting),
/// gpu09 (running --setup)". Empty: none.
std::string awaited_text(const JobSpec& spec, const NodeTable& nodes, const AttemptStart* start);

/// Returns why `step` is an error after --start-timeout.
Error late_error(const JobSpec& spec, const std::string& step);

/// Returns the nodes for lack of which the job ends, in the order of their failures. Each has its reason, or
/// the step at which it is if `late`: then it had the time to come. `at_start`: no attempt has begun; else a
/// node of the last attempt was lost and not replaced.
std::vector<std::pair<std::string, Error>> missing_nodes(const JobSpec& spec, const NodeTable& nodes,
                                                         bool at_start, bool late);

/// "2 nodes × 8 workers", or "2 nodes, 12 workers" if the nodes differ.
std::string size_text(const rendezvous::World& world);

}  // namespace ddp::launcher
