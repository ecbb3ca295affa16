#pragma once

#include <time.h>

#include <array>
#include <optional>

namespace ddp::launcher {

/// Continues a stopped keeper, which would guard no worker and hold its SSH session open. A periodic timer of
/// the kernel sends SIGCONT; a running keeper only handles the signal. A SIGSTOP that arrives between the
/// expiry of a timer and the handler discards the signal, and that timer stays silent: hence the second one.
class ContinueTimers {
 public:
  /// Call before the fork: the keeper is the parent, and a child inherits no timers.
  ContinueTimers();
  ContinueTimers(const ContinueTimers&) = delete;
  ContinueTimers& operator=(const ContinueTimers&) = delete;

  /// Starts both timers anew. While the keeper runs, only the first one expires.
  void renew();

 private:
  std::array<std::optional<timer_t>, 2> timers_;
};

}  // namespace ddp::launcher
