#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ddp::launcher {

/// Decides on the master whether the job hangs (sans-IO): every node that still has workers has said that it
/// is quiet, and the last sign of life of any of them is older than the timeout. One for each attempt.
///
/// The driver's duties: give every event in the order in which it came; call `hangs` no later than
/// `deadline()`; not ask again once it said yes.
class HangDetector {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

  HangDetector() = default;  ///< never finds a hang
  /// `ranks`: how many workers each node starts.
  HangDetector(std::chrono::milliseconds timeout, std::vector<std::uint32_t> ranks, Time now);

  /// `since` by our clock, at the latest.
  void quiet(std::size_t node, Time since);
  void alive(std::size_t node);  ///< until when, its next `quiet` tells
  /// An end is a sign of life too; a node without workers is asked no more.
  void rank_ended(std::size_t node, Time now);
  void node_gone(std::size_t node, Time now);

  /// When the job hangs unless something happens before; unset while it works.
  std::optional<Time> deadline() const;
  /// True: it hangs. A call that comes much too late means that we were stopped ourselves, with messages
  /// unread and output held back: counting begins anew.
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
  Time margin_{0};  ///< a sign of life may be this old before we hear of it
  Time last_activity_{0};
};

}  // namespace ddp::launcher
