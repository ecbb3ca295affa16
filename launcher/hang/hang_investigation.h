#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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

  HangInvestigation() = default;  ///< never finds a hang
  HangInvestigation(std::chrono::milliseconds timeout, std::vector<NodeShare> nodes, Time now);

  void quiet(std::size_t node, Time since) { detector_.quiet(node, since); }
  void alive(std::size_t node) { detector_.alive(node); }
  void rank_ended(std::size_t node, std::uint32_t rank, Time now);
  void node_gone(std::size_t node, Time now);

  std::optional<Time> deadline() const { return detector_.deadline(); }
  bool hangs(Time now) { return detector_.hangs(now); }

  /// Starts the inspection. Returns the nodes with live workers; the caller sends each of them an Inspect.
  std::vector<std::size_t> begin(Time now);
  void answer(std::size_t node, const rendezvous::Inspection& inspection);
  /// Returns whether every asked node has answered completely or is lost.
  bool complete() const { return asked_.empty(); }

  /// "the job hung: no worker printed anything or used CPU time for 60 s", then one line for each group of
  /// ranks that do the same.
  std::string text() const;
  std::vector<std::string> lines() const { return report_.lines(); }
  std::string hint() const { return report_.hint(); }
  /// Ranks that have completed fewer steps than others, among the ranks that report steps.
  std::vector<std::uint32_t> behind() const { return report_.behind(); }

 private:
  std::vector<NodeShare> nodes_;
  HangDetector detector_;
  HangReport report_;
  std::set<std::uint32_t> ended_;  ///< ranks
  std::set<std::size_t> asked_;    ///< nodes whose answer is not complete
  Time quiet_for_{0};
};

}  // namespace ddp::launcher
