#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

namespace ddp::remote {

/// When to connect again to a server that closed before its greeting, as one does that has too many logins
/// under way (MaxStartups). Growing, random pauses, so that those who were refused together do not come back
/// together. For nothing else: servers lock out who fails to log in again and again.
class LoginRetry {
 public:
  static constexpr int kMostTries = 10;

  /// The pause before the next try; unset: there is none.
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
