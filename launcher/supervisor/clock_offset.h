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
  /// it. The best sample wins, but grows worse with age, since clocks drift apart.
  void sample(Time sent, Time received, Time theirs) {
    const Time half = (received - sent) / 2;
    if (error_ && half >= *error_ + (received - sampled_) / kDrift) return;
    error_ = half;
    sampled_ = received;
    offset_ = theirs - (sent + half);
  }
  /// A message of unknown age: better than nothing.
  void guess(Time received, Time theirs) {
    if (!error_) offset_ = theirs - received;
  }

  Time to_ours(Time theirs) const { return theirs - offset_; }
  /// ± of to_ours at `now`: the sample's own, and what the clocks may have drifted since.
  Time error(Time now) const { return error_ ? *error_ + (now - sampled_) / kDrift : kUnknown; }

 private:
  static constexpr int kDrift = 10'000;                      ///< 100 ppm
  static constexpr Time kUnknown = std::chrono::seconds(1);  ///< while only guessed

  Time offset_{0};
  Time sampled_{0};
  std::optional<Time> error_;
};

}  // namespace ddp::launcher
