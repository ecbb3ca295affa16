#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace ddp {

/// A histogram of the durations of steps (docs/users/metrics.md).
struct StepDurations {
  /// Seconds. The worker protocol names them (docs/developers/worker_protocol.md).
  static constexpr std::array<double, 12> kBounds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};
  /// More steps or seconds than these in one report cannot be right.
  static constexpr std::uint64_t kMost = 1'000'000'000;

  /// Steps of at most kBounds[i], the longest last. Not summed up.
  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  double seconds = 0;  ///< of all steps together

  /// Counts `steps` (at least 1) that took `together` with their mean. Ignores more than kMost.
  void add(std::chrono::nanoseconds together, std::uint64_t steps) {
    if (steps > kMost) return;
    const double all = std::chrono::duration<double>(together).count();
    const auto bound = std::ranges::lower_bound(kBounds, all / static_cast<double>(steps));
    counts[static_cast<std::size_t>(bound - kBounds.begin())] += steps;
    seconds += all;
  }
  void add(const StepDurations& others) {
    for (std::size_t i = 0; i < counts.size(); ++i)
      counts[i] += others.counts[i];
    seconds += others.seconds;
  }
  std::uint64_t steps() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : counts)
      sum += count;
    return sum;
  }
  bool operator==(const StepDurations&) const = default;
};

/// Measures the steps of one worker from reports of how many are complete (sans-IO). Times are of one
/// monotonic clock.
class StepTimer {
 public:
  /// The first report after forget() begins the measurement.
  void at(std::uint64_t step, std::chrono::nanoseconds now) {
    if (last_ && last_->first == step) return;
    if (last_ && last_->first < step) durations_.add(now - last_->second, step - last_->first);
    last_ = {step, now};
  }
  /// The time until the next report belongs to no step.
  void forget() { last_.reset(); }
  /// Adds steps that the worker has measured itself.
  void add(const StepDurations& measured) { durations_.add(measured); }
  /// Returns the steps since the last call.
  StepDurations take() { return std::exchange(durations_, {}); }

 private:
  std::optional<std::pair<std::uint64_t, std::chrono::nanoseconds>> last_;  ///< steps that were complete
  StepDurations durations_;
};

}  // namespace ddp
