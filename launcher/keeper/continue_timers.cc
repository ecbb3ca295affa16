#include "launcher/keeper/continue_timers.h"

#include <chrono>
#include <csignal>

namespace ddp::launcher {
namespace {

/// The longest time that a keeper stays stopped.
constexpr std::chrono::milliseconds kStopTime{500};

}  // namespace

ContinueTimers::ContinueTimers() {
  struct sigaction handler = {};
  handler.sa_handler = [](int) {};  // a timer of an ignored signal would not repeat
  handler.sa_flags = SA_RESTART;
  sigaction(SIGCONT, &handler, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGCONT;
  for (auto& timer : timers_) {
    timer.emplace();
    if (timer_create(CLOCK_MONOTONIC, &event, &*timer) != 0) timer.reset();
  }
  renew();
}

void ContinueTimers::renew() {
  std::chrono::nanoseconds first{0};
  for (const auto& timer : timers_) {
    first += kStopTime;
    const timespec later{first / std::chrono::seconds(1), (first % std::chrono::seconds(1)).count()};
    const itimerspec periodic{later, later};
    if (timer) timer_settime(*timer, 0, &periodic, nullptr);
  }
}

}  // namespace ddp::launcher
