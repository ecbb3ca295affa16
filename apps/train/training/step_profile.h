#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddp::train {

/// What a step's time goes to. Communication is what a rank spends in a communicator's calls, during the
/// backward pass too: sums that run while it computes cost nothing here.
enum class Phase : std::uint8_t { kData, kForward, kBackward, kCommunication, kOptimizer };
inline constexpr std::size_t kPhases = 5;
inline constexpr std::string_view kPhaseNames[kPhases] = {"data", "forward", "backward", "communication",
                                                          "optimizer"};

/// Seconds by phase.
using StepTimes = std::array<double, kPhases>;

/// Measures phases, one at a time, and keeps every step's times; with `trace` also every phase's begin and
/// end, up to a million. One thread.
class StepProfile {
 public:
  using Clock = std::chrono::steady_clock;
  explicit StepProfile(bool trace);
  /// Is told each phase that begins.
  void watch(std::function<void(Phase)> on_phase) { on_phase_ = std::move(on_phase); }

  void begin_step(std::uint64_t step);
  /// Ends the phase before.
  void enter(Phase phase);
  const StepTimes& end_step();
  /// The one that lasts, to go back to it.
  Phase phase() const { return phase_; }

  /// Steps that were ended.
  std::size_t steps() const { return steps_.size(); }
  /// Number of the first of them; 0 without one. Greater than 1 where the process was started in the middle
  /// of a training.
  std::uint64_t first_step() const { return first_step_; }

  /// Nearest rank; 0 without a step. `part` 0.5: the median.
  double percentile(Phase phase, double part) const;
  /// The same of what this rank computes itself: forward, backward and optimizer. A slow rank shows here; in
  /// its peers only the waiting grows.
  double compute_percentile(double part) const;

  /// A file for chrome://tracing and Perfetto, times by the wall clock. `rank` is the process there.
  Result<> write_trace(const std::string& path, int rank) const;

 private:
  struct Event {
    Phase phase;
    std::uint64_t step;
    Clock::time_point begin, end;
  };

  bool trace_;
  std::function<void(Phase)> on_phase_;
  Clock::time_point started_ = Clock::now();
  std::chrono::system_clock::time_point started_wall_ = std::chrono::system_clock::now();
  std::uint64_t step_ = 0;
  std::uint64_t first_step_ = 0;
  bool in_phase_ = false;
  Phase phase_ = Phase::kData;
  Clock::time_point phase_begin_;
  StepTimes now_{};
  std::vector<StepTimes> steps_;
  std::vector<Event> events_;
};

}  // namespace ddp::train
