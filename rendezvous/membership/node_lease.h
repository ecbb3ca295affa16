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
    proven_ = answered_;
    answered_ = now;
  }
  /// The master gave an order that can only follow a message that this node sent at `sent`.
  void proven(Time sent) { proven_ = std::max(proven_, sent); }

  bool over(Time now) const { return now >= ends_at(); }
  /// The keeper kills the workers at this time, even if the agent no longer runs.
  Time ends_at() const { return proven_ + term_; }

 private:
  Time term_;
  Time proven_;    ///< when the last message that the master certainly received was sent
  Time answered_;  ///< when the last Pong was sent, which the master may not have received yet
};

}  // namespace ddp::rendezvous
