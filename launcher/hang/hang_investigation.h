#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/hang/hang_detector.h"
#include "launcher/hang/hang_report.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The master's part in hang detection, for one attempt (sans-IO): detects a hang, selects the nodes to
/// inspect, and summarizes their answers as text.
class HangInvestigation {
 public:
  using Time = HangDetector::Time;
  struct NodeShare {
    std::string host;
    std::uint32_t first_rank = 0;
    std::uint32_t ranks = 0;
  };

  /// Time for the nodes to inspect their workers; py-spy and gdb take seconds each.
  static constexpr std::chrono::seconds kInspectTime{14};
  /// Additional time for the answers to arrive.
  static constexpr std::chrono::seconds kInspectSlack{1};

  HangInvestigation() = default;  ///< never finds a hang
  HangInvestigation(std::chrono::milliseconds timeout, std::vector<NodeShare> nodes, Time now);

  void quiet(std::size_t node, Time since) { detector_.quiet(node, since); }
  void alive(std::size_t node) { detector_.alive(node); }
  /// A rank of the node has ended: call it once for each.
  void rank_ended(std::size_t node, Time now) { detector_.rank_ended(node, now); }
  void node_gone(std::size_t node, Time now);

  /// When to call `hangs`; during an inspection, when it is over without the missing answers.
  std::optional<Time> deadline() const { return inspect_due_ ? inspect_due_ : detector_.deadline(); }
  bool hangs(Time now) { return detector_.hangs(now); }

  /// Starts the inspection. Returns the nodes with live workers; the caller sends each of them an Inspect
  /// with kInspectTime. `ended`: ranks that have ended.
  std::vector<std::size_t> begin(const std::set<std::uint32_t>& ended, Time now);
  bool inspecting() const { return inspect_due_.has_value(); }
  void answer(std::size_t node, const rendezvous::Inspection& inspection);
  /// Returns whether the inspection is over: every asked node has answered completely or is lost, or its time
  /// is up.
  bool complete(Time now) const { return inspecting() && (asked_.empty() || now >= *inspect_due_); }
  /// The job makes progress again. Returns false if no inspection runs.
  bool cancel();
  /// Returns when the job hung: at the last activity of a worker.
  Time last_activity() const { return last_activity_; }
  /// Ends the inspection: the job has hung. Returns "the job hung: no worker printed anything or used CPU
  /// time for 60 s", then one line for each group of ranks that do the same, the place of the stacks
  /// (`files`), and a hint if there is one.
  std::string conclude(const std::string& files);
  /// Returns the lines about groups of ranks alone.
  std::vector<std::string> lines() const { return report_.lines(); }
  /// Returns the rank that must be killed, since it alone is behind the others in steps; empty: none, or the
  /// job has not hung. When several ranks are behind, some may only wait for another of them: for the rank
  /// through which their node hears of the others. Ranks that answer a revoke survive; the others are killed
  /// at its deadline.
  const std::vector<std::uint32_t>& hung() const { return hung_; }

 private:
  std::vector<NodeShare> nodes_;
  HangDetector detector_;
  HangReport report_;
  std::optional<Time> inspect_due_;  ///< set while the nodes inspect their workers
  std::set<std::size_t> asked_;      ///< nodes whose answer is not complete
  Time quiet_for_{0};
  Time last_activity_{0};
  std::vector<std::uint32_t> hung_;
};

}  // namespace ddp::launcher
