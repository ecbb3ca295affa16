#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "base/asio.h"
#include "base/result.h"
#include "remote/shells/remote_shell.h"

namespace ddp::remote {

/// Limits the concurrent logins at one place (address and port, or a jump host): servers drop connections
/// beyond MaxStartups, 10 by default. Loop thread only.
class LoginWindow {
 private:
  struct Queue;

 public:
  LoginWindow(asio::any_io_executor loop, unsigned limit) : loop_(std::move(loop)), limit_(limit) {}

  /// The right to log in; its destructor releases it.
  class Slot {
   public:
    explicit Slot(std::shared_ptr<Queue> queue);
    Slot(Slot&& other) noexcept = default;
    Slot(const Slot&) = delete;
    Slot& operator=(Slot&&) = delete;
    ~Slot();

   private:
    std::shared_ptr<Queue> queue_;
  };

  /// Waits for a slot, in order of arrival. Errors: kTimeout at the deadline, kCancelled. `label` is the
  /// host's name in their text.
  Awaitable<Result<Slot>> acquire(std::string place, std::string label, Deadline deadline);

 private:
  asio::any_io_executor loop_;
  unsigned limit_;
  std::map<std::string, std::shared_ptr<Queue>> queues_;
};

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
