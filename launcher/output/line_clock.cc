#include "launcher/output/line_clock.h"

#include <ctime>

#include "base/clock.h"

namespace ddp::launcher {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

}  // namespace

LineClock::Time LineClock::real() {
  return read_clock(CLOCK_REALTIME) - read_clock(CLOCK_MONOTONIC);
}

void LineClock::set_second(Time time) {
  const Time wall = time + ahead_();
  const auto whole = std::chrono::floor<seconds>(wall);
  begin_ = time - (wall - whole);
  end_ = begin_ + seconds(1);
  const auto second = static_cast<std::time_t>(whole.count());
  std::tm parts{};
  char text[64];
  ::localtime_r(&second, &parts);
  local_.fraction = std::strftime(text, sizeof text, "%H:%M:%S.", &parts);
  local_.text = std::string(text) + "000";
  ::gmtime_r(&second, &parts);
  utc_.fraction = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.", &parts);
  utc_.text = std::string(text) + "000Z";
}

std::string_view LineClock::filled(Second& second, std::int64_t milliseconds) {
  for (std::size_t digit = 3; digit-- > 0; milliseconds /= 10)
    second.text[second.fraction + digit] = static_cast<char>('0' + milliseconds % 10);
  return second.text;
}

std::string_view LineClock::time_of_day(Time time) {
  if (time < begin_ || time >= end_) set_second(time);
  return filled(local_, duration_cast<milliseconds>(time - begin_).count());
}

std::string_view LineClock::date_and_time(Time time) {
  if (time < begin_ || time >= end_) set_second(time);
  return filled(utc_, duration_cast<milliseconds>(time - begin_).count());
}

}  // namespace ddp::launcher
