#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Converts times of the master's monotonic clock to times of day. Repeated calls within a second are cheap.
/// One thread.
class LineClock {
 public:
  using Time = std::chrono::nanoseconds;  ///< since the epoch of CLOCK_MONOTONIC
  /// `ahead` returns how far the wall clock is ahead of the monotonic one. It is asked once a second, because
  /// the wall clock can be set.
  explicit LineClock(std::function<Time()> ahead = real) : ahead_(std::move(ahead)) {}

  /// Returns the local time, "07:18:13.250" (label.h's kTimeWidth). Valid until the next call.
  std::string_view time_of_day(Time time);
  /// Returns the time as RFC 3339 in UTC, "2026-11-21T07:18:13.250Z". Valid until the next call.
  std::string_view date_and_time(Time time);

 private:
  /// The text of one second, into which the milliseconds are written.
  struct Second {
    std::string text;
    std::size_t fraction = 0;  ///< position of the milliseconds
  };
  static Time real();
  std::string_view filled(Second& second, std::int64_t milliseconds);
  void set_second(Time time);

  std::function<Time()> ahead_;
  Time begin_{1};  ///< of the second with prepared texts; end_ before it: none
  Time end_{0};
  Second local_;
  Second utc_;
};

}  // namespace ddp::launcher
