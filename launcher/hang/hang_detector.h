#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ddp::launcher {

/// Decides on the master whether the job hangs (sans-IO). It hangs when every node with workers has reported
/// that it is quiet, and the last activity of all nodes is older than the timeout. One object for each
/// attempt.
///
/// The driver's duties: pass every event in the order of arrival; call `hangs` no later than `deadline()`; do
/// not call it again after it returned true.
class HangDetector {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

  HangDetector() = default;  ///< never finds a hang
  /// `ranks`: how many workers each node starts.
  HangDetector(std::chrono::milliseconds timeout, std::vector<std::uint32_t> ranks, Time now);

  /// `since`: the latest possible time of the node's last activity, on the master's clock.
  void quiet(std::size_t node, Time since);
  void alive(std::size_t node);  ///< active again, until a time that its next `quiet` reports
  /// The end of a rank is activity, too. A node without workers is ignored from then on.
  void rank_ended(std::size_t node, Time now);
  void node_gone(std::size_t node, Time now);

  /// When the job counts as hanging without further activity; unset while a node is active.
  std::optional<Time> deadline() const;
  /// True: the job hangs. A call that comes much too late means that the master was stopped, with messages
  /// unread and output held back: counting then begins anew.
  bool hangs(Time now);

  Time last_activity() const { return last_activity_; }
  bool has_ranks(std::size_t node) const { return node < nodes_.size() && nodes_[node].ranks > 0; }

 private:
  struct Node {
    std::uint32_t ranks = 0;
    bool quiet = false;
  };
  std::vector<Node> nodes_;
  Time timeout_{0};
  Time margin_{0};  ///< the master may learn of activity this much later
  Time last_activity_{0};
};

}  // namespace ddp::launcher
