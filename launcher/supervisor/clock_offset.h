#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace ddp::launcher {

/// Estimates how far a node's CLOCK_MONOTONIC is ahead of the master's, from exchanges of small messages. The
/// exchange with the shortest round trip is exact to half of that round trip (Cristian's algorithm). All
/// times are in nanoseconds.
class ClockOffset {
 public:
  using Time = std::chrono::nanoseconds;

  /// Adds an exchange: the question left at `sent`, and the answer, stamped `theirs` by the node's clock,
  /// arrived at `received`. The best sample wins, but its error grows with age, since clocks drift apart.
  void sample(Time sent, Time received, Time theirs) {
    const Time half = (received - sent) / 2;
    if (error_ && half >= *error_ + (received - sampled_) / kDrift) return;
    error_ = half;
    sampled_ = received;
    offset_ = theirs - (sent + half);
  }
  /// A message of unknown age gives a rough offset until the first sample.
  void guess(Time received, Time theirs) {
    if (!error_) offset_ = theirs - received;
  }

  Time to_ours(Time theirs) const { return theirs - offset_; }
  /// Returns the ± of to_ours at `now`: the sample's own error plus the possible drift since.
  Time error(Time now) const { return error_ ? *error_ + (now - sampled_) / kDrift : kUnknown; }

 private:
  static constexpr int kDrift = 10'000;                      ///< 100 ppm
  static constexpr Time kUnknown = std::chrono::seconds(1);  ///< while only guessed

  Time offset_{0};
  Time sampled_{0};
  std::optional<Time> error_;
};

}  // namespace ddp::launcher
