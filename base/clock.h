#pragma once

#include <time.h>

#include <chrono>

namespace ddp {

/// Returns the time of a clock of the system as a duration, the form in which cores take times. It fails for
/// no clock that this program names: CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME, CLOCK_BOOTTIME.
inline std::chrono::nanoseconds read_clock(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// Returns the time since 1970 (Unix time).
inline std::chrono::milliseconds unix_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(read_clock(CLOCK_REALTIME));
}

/// Returns the time of CLOCK_MONOTONIC, which is also that of std::chrono::steady_clock.
inline std::chrono::nanoseconds steady_now() {
  return read_clock(CLOCK_MONOTONIC);
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the time of CLOCK_BOOTTIME, which counts suspended time, too.
inline std::chrono::nanoseconds boot_now() {
  return read_clock(CLOCK_BOOTTIME);
}

}  // namespace ddp
