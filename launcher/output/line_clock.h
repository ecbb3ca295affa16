#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Times on our monotonic clock as times of day. Cheap to ask again and again within a second. One thread.
class LineClock {
 public:
  using Time = std::chrono::nanoseconds;  ///< since the epoch of CLOCK_MONOTONIC
  /// `ahead`: how far the wall clock is ahead of the monotonic one; asked once a second, since it can be set.
  explicit LineClock(std::function<Time()> ahead = real) : ahead_(std::move(ahead)) {}

  /// Local time, "07:18:13.250" (label.h's kTimeWidth). Valid until the next call.
  std::string_view time_of_day(Time time);
  /// RFC 3339 in UTC, "2026-11-21T07:18:13.250Z". Valid until the next call.
  std::string_view date_and_time(Time time);

 private:
  /// The texts of one second, whose milliseconds are filled in.
  struct Second {
    std::string text;
    std::size_t fraction = 0;  ///< where they stand
  };
  static Time real();
  std::string_view filled(Second& second, std::int64_t milliseconds);
  void set_second(Time time);

  std::function<Time()> ahead_;
  Time begin_{1};  ///< of the second whose texts are made; end_ before it: none
  Time end_{0};
  Second local_;
  Second utc_;
};

}  // namespace ddp::launcher
