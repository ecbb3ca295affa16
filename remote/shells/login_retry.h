#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

namespace ddp::remote {

/// Decides when to reconnect to a server that closed before its greeting, as servers with too many concurrent
/// logins do (MaxStartups). The pauses grow and are random, so that hosts refused together do not come back
/// together. Retry nothing else: servers lock out clients whose logins fail repeatedly.
class LoginRetry {
 public:
  static constexpr int kMostTries = 10;

  /// Returns the pause before the next try, or nullopt after the last try.
  template <typename Random>
  std::optional<std::chrono::nanoseconds> next(Random& random) {
    if (++tries_ >= kMostTries) return std::nullopt;
    const auto pause = std::exchange(pause_, std::min(pause_ * 2, std::chrono::milliseconds(2000)));
    const double jitter = std::uniform_real_distribution<double>(0.5, 1.5)(random);
    return std::chrono::duration_cast<std::chrono::nanoseconds>(pause * jitter);
  }

 private:
  int tries_ = 0;
  std::chrono::milliseconds pause_{50};
};

}  // namespace ddp::remote
