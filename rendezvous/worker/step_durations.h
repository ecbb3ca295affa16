#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace ddp {

/// A histogram of the durations of steps (docs/users/metrics.md), with buckets so narrow that percentiles are
/// right within 10 %. Only buckets that count something are kept, and sent.
struct StepDurations {
  /// Buckets of a decade: each bound is 9.6 % above the one before.
  static constexpr int kPerDecade = 25;
  /// Buckets with a bound, from 1 ms to 631 s; one more has the longer steps. The worker protocol names them
  /// (docs/developers/worker_protocol.md).
  static constexpr std::uint32_t kBounds = 146;
  /// More steps or seconds than these in one report cannot be right.
  static constexpr std::uint64_t kMost = 1'000'000'000;

  /// Steps by bucket: of at most bound(i) seconds and more than bound(i - 1). Each at least 1.
  std::map<std::uint32_t, std::uint64_t> counts{};
  double seconds = 0;  ///< of all steps together
  double waited = 0;   ///< the part of `seconds` in which the worker waited for others; 0: not reported

  /// Seconds. `bucket`: less than kBounds.
  static double bound(std::uint32_t bucket) {
    return 0.001 * std::pow(10, static_cast<double>(bucket) / kPerDecade);
  }
  static std::uint32_t bucket_of(double seconds) {
    // A bound itself belongs to its bucket, though its logarithm is rounded.
    const double place = std::ceil(kPerDecade * std::log10(seconds / 0.001) - 1e-9);
    return static_cast<std::uint32_t>(std::clamp(place, 0.0, static_cast<double>(kBounds)));
  }
  /// Counts `steps` (at least 1) that took `together` with their mean. Ignores more than kMost.
  void add(std::chrono::nanoseconds together, std::uint64_t steps) {
    if (steps > kMost) return;
    const double all = std::max(0.0, std::chrono::duration<double>(together).count());
    counts[bucket_of(all / static_cast<double>(steps))] += steps;
    seconds += all;
  }
  /// Counts further steps of a report. Returns false, and counts nothing, if there is no such bucket, or no
  /// such number of steps.
  bool add(std::uint64_t bucket, std::uint64_t steps) {
    if (bucket > kBounds || steps == 0 || steps > kMost) return false;
    counts[static_cast<std::uint32_t>(bucket)] += steps;
    return true;
  }
  void add(const StepDurations& others) {
    for (const auto& [bucket, steps] : others.counts)
      counts[bucket] += steps;
    seconds += others.seconds;
    waited += others.waited;
  }
  std::uint64_t steps() const {
    std::uint64_t sum = 0;
    for (const auto& [bucket, steps] : counts)
      sum += steps;
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
