#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace ddp::launcher {

/// How far a node's CLOCK_MONOTONIC is ahead of ours, from exchanges of small messages: the one with the
/// shortest round trip is right to half of it (Cristian's algorithm). All times in nanoseconds.
class ClockOffset {
 public:
  using Time = std::chrono::nanoseconds;

  /// A message from the node, `theirs` on its clock, took at most `round_trip` with the question that led to
  /// it.
  void sample(Time sent, Time received, Time theirs) {
    const Time round_trip = received - sent;
    if (error_ && round_trip / 2 >= *error_) return;
    error_ = round_trip / 2;
    offset_ = theirs - (sent + round_trip / 2);
  }
  /// A message of unknown age: better than nothing.
  void guess(Time received, Time theirs) {
    if (!error_) offset_ = theirs - received;
  }

  Time to_ours(Time theirs) const { return theirs - offset_; }
  std::optional<Time> error() const { return error_; }  ///< ±; unset while only guessed

 private:
  Time offset_{0};
  std::optional<Time> error_;
};

}  // namespace ddp::launcher
