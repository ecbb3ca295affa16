#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ddp::rendezvous {

/// Until when a node may run workers, by its own clock (sans-IO, on the agent; docs/states.md, "Leases").
///
/// The master sends a Ping only when the Pong to the one before has come. So a Ping proves that the master
/// heard that Pong, and the lease runs from the moment when that was sent: whatever the network holds back,
/// it is over, by any clock, no later than `term` after the master last heard of this node.
class NodeLease {
 public:
  using Time =
      std::chrono::nanoseconds;  ///< the node's CLOCK_BOOTTIME, which counts a suspended machine, too

  /// `now`: when the hello is sent.
  NodeLease(Time term, Time now) : term_(term), proven_(now), answered_(now) {}

  /// A Ping has come, and is answered at once.
  void pinged(Time now) {
    proven_ = asleep_ ? now : answered_;
    answered_ = now;
    asleep_ = false;
  }
  /// The master gave an order that only follows on what we sent at `sent`.
  void proven(Time sent) { proven_ = std::max(proven_, sent); }
  /// The master said that its user stops it. Its first Ping then begins a new lease, which is why it counts
  /// that from when it gives us up, if it has heard nothing since.
  void master_asleep() { asleep_ = true; }

  bool over(Time now) const { return !asleep_ && now >= ends_at(); }
  /// For the keeper, which kills the workers then, whatever became of the agent. Without meaning while
  /// asleep().
  Time ends_at() const { return proven_ + term_; }
  bool asleep() const { return asleep_; }

 private:
  Time term_;
  Time proven_;    ///< when we sent the last word that the master is known to have heard
  Time answered_;  ///< when we sent the last Pong, which it may not have heard yet
  bool asleep_ = false;
};

}  // namespace ddp::rendezvous
