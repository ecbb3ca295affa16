#include "launcher/output/merged_output.h"

#include <cstdlib>
#include <ctime>

#include "launcher/lines/label.h"
#include "tests/support/catch.h"

using ddp::launcher::kTimeWidth;
using ddp::launcher::LineClock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST_CASE("monotonic times are shown as times of day") {
  ::setenv("TZ", "UTC-2", 1);  // two hours east
  ::tzset();
  int asked = 0;
  seconds set{1'795'245'490};  // 2026-11-21T07:18:10Z
  LineClock clock([&] {
    ++asked;
    return nanoseconds(set);
  });
  CHECK(clock.date_and_time(milliseconds(3'250)) == "2026-11-21T07:18:13.250Z");
  CHECK(clock.time_of_day(milliseconds(3'250)) == "09:18:13.250");
  CHECK(clock.time_of_day(milliseconds(3'999)) == "09:18:13.999");
  CHECK(clock.time_of_day(milliseconds(3'000)) == "09:18:13.000");
  CHECK(clock.time_of_day(milliseconds(3'001)).size() == kTimeWidth);
  CHECK(asked == 1);
  CHECK(clock.time_of_day(milliseconds(4'000)) == "09:18:14.000");
  CHECK(clock.time_of_day(milliseconds(2'005)) == "09:18:12.005");
  set += seconds(3600);  // the system clock was set
  CHECK(clock.time_of_day(milliseconds(5'000)) == "10:18:15.000");
  ::unsetenv("TZ");
  ::tzset();
}

TEST_CASE("a wall clock with another fraction of a second than the monotonic one") {
  LineClock clock([] { return seconds(1'795'245'490) + milliseconds(700); });
  CHECK(clock.date_and_time(milliseconds(100)) == "2026-11-21T07:18:10.800Z");
  CHECK(clock.time_of_day(milliseconds(100)).ends_with(".800"));
  CHECK(clock.date_and_time(milliseconds(299)) == "2026-11-21T07:18:10.999Z");
  CHECK(clock.date_and_time(milliseconds(300)) == "2026-11-21T07:18:11.000Z");
  CHECK(clock.date_and_time(milliseconds(0)) == "2026-11-21T07:18:10.700Z");
}

TEST_CASE("the real clock") {
  LineClock clock;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const std::time_t wall = std::time(nullptr);
  const std::string text(clock.date_and_time(now));
  std::tm parts{};
  REQUIRE(::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) != nullptr);
  CHECK(std::abs(std::difftime(::timegm(&parts), wall)) <= 1);
}
