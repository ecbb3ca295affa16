#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ddp::rendezvous {

/// Counts how long a node may run workers, by its own clock (sans-IO, on the agent;
/// docs/developers/states.md, "Leases").
///
/// The master sends a Ping only after the Pong to the previous Ping has arrived. So a Ping proves that the
/// master received that Pong, and the lease runs from the moment when the Pong was sent. However long the
/// network delays messages, the lease ends, by any clock, no later than `term` after the master last heard
/// this node.
class NodeLease {
 public:
  using Time = std::chrono::nanoseconds;  ///< the node's CLOCK_BOOTTIME, which includes suspension

  /// `now`: when the hello is sent.
  NodeLease(Time term, Time now) : term_(term), proven_(now), answered_(now) {}

  /// A Ping has arrived, and is answered at once.
  void pinged(Time now) {
    proven_ = asleep_ ? now : answered_;
    answered_ = now;
    asleep_ = false;
  }
  /// The master gave an order that can only follow a message that this node sent at `sent`.
  void proven(Time sent) { proven_ = std::max(proven_, sent); }
  /// The master announced that its user suspends it. Its first Ping afterwards begins a new lease. The master
  /// does so only while no other attempt can begin.
  void master_asleep() { asleep_ = true; }

  bool over(Time now) const { return !asleep_ && now >= ends_at(); }
  /// The keeper kills the workers at this time, even if the agent no longer runs. Meaningless while asleep().
  Time ends_at() const { return proven_ + term_; }
  bool asleep() const { return asleep_; }

 private:
  Time term_;
  Time proven_;    ///< when the last message that the master certainly received was sent
  Time answered_;  ///< when the last Pong was sent, which the master may not have received yet
  bool asleep_ = false;
};

}  // namespace ddp::rendezvous
