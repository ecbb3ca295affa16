#include "rendezvous/identity/listen_guard.h"

#include <string>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using Time = ListenGuard::Time;

GuardLimits small() {
  GuardLimits limits;
  limits.waiting = 4;
  limits.silent_per_address = 3;
  limits.deadline = 10s;
  limits.grace = 1s;
  limits.failures = 3;
  limits.window = 10s;
  limits.ban = 2s;
  return limits;
}

TEST_CASE("one address cannot hold more than its share") {
  ListenGuard guard(small());
  const Time now{};
  CHECK_FALSE(guard.admit(1, "a", now));
  CHECK_FALSE(guard.admit(2, "a", now));
  CHECK_FALSE(guard.admit(3, "a", now));
  CHECK(guard.admit(4, "a", now) == LinkRefusal::kTooMany);
  CHECK_FALSE(guard.admit(5, "b", now));
  CHECK(guard.full());
  guard.ended(2);
  guard.ended(2);
  CHECK_FALSE(guard.full());
  CHECK_FALSE(guard.admit(6, "a", now));
  CHECK(guard.waiting() == 4);
}

TEST_CASE("the silent of one address cannot keep others of it out") {
  ListenGuard guard(small());
  const Time start{};
  (void)guard.admit(1, "a", start);
  (void)guard.admit(2, "b", start);
  (void)guard.admit(3, "a", start + 100ms);
  guard.greeted(1);
  (void)guard.admit(4, "a", start + 200ms);
  guard.ended(1);
  (void)guard.admit(5, "a", start + 300ms);
  CHECK(guard.full());
  CHECK(guard.take_overdue(start + 300ms).empty());
  guard.ended(2);
  // Nobody of it is older than the grace yet.
  CHECK(guard.admit(6, "a", start + 1099ms) == LinkRefusal::kTooMany);
  CHECK(guard.next_turn() == start + 10'100ms);
  // Each that comes later has the oldest's place.
  CHECK_FALSE(guard.admit(7, "a", start + 1100ms));
  CHECK(guard.next_turn() < start);
  CHECK_FALSE(guard.admit(8, "a", start + 1200ms));
  CHECK(guard.admit(9, "a", start + 1200ms) == LinkRefusal::kTooMany);
  CHECK(guard.waiting() == 3);
  const auto overdue = guard.take_overdue(start + 1200ms);
  REQUIRE(overdue.size() == 2);
  CHECK(overdue[0].id == 3);
  CHECK(overdue[0].why == LinkRefusal::kGaveWay);
  CHECK(overdue[1].id == 4);
  guard.ended(3);  // the driver's word changes nothing any more
  CHECK(guard.waiting() == 3);
  CHECK(guard.next_turn() == start + 10'300ms);
}

TEST_CASE("who has sent a good hello counts in all, not in its address's share") {
  ListenGuard guard(small());
  const Time now{};
  for (ListenGuard::Id id = 1; id <= 4; ++id) {
    CHECK_FALSE(guard.admit(id, "a", now));
    guard.greeted(id);
    guard.greeted(id);
  }
  CHECK(guard.full());
  for (ListenGuard::Id id = 1; id <= 4; ++id)
    guard.ended(id);
  guard.greeted(1);
  for (ListenGuard::Id id = 5; id <= 7; ++id)
    CHECK_FALSE(guard.admit(id, "a", now));
  CHECK(guard.admit(8, "a", now) == LinkRefusal::kTooMany);
}

TEST_CASE("who proves nothing in time is closed, oldest first") {
  ListenGuard guard(small());
  const Time start{};
  CHECK_FALSE(guard.next_turn());
  (void)guard.admit(1, "a", start);
  (void)guard.admit(2, "b", start + 1s);
  CHECK(guard.next_turn() == start + 10s);
  CHECK(guard.take_overdue(start + 9s).empty());
  const auto overdue = guard.take_overdue(start + 10s);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].id == 1);
  CHECK(overdue[0].why == LinkRefusal::kSilent);
  CHECK(guard.next_turn() == start + 11s);
}

TEST_CASE("when full, the oldest of the address with the most gives way after its grace") {
  ListenGuard guard(small());
  const Time start{};
  (void)guard.admit(1, "honest", start);
  (void)guard.admit(2, "flood", start + 100ms);
  (void)guard.admit(3, "flood", start + 200ms);
  CHECK(guard.next_turn() == start + 10s);
  (void)guard.admit(4, "flood", start + 300ms);
  CHECK(guard.full());
  CHECK(guard.next_turn() == start + 1100ms);
  CHECK(guard.take_overdue(start + 1s).empty());
  const auto overdue = guard.take_overdue(start + 1100ms);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].id == 2);
  CHECK(overdue[0].why == LinkRefusal::kGaveWay);
  CHECK_FALSE(guard.full());
}

TEST_CASE("a good hello gives more time, and goes after the silent") {
  ListenGuard guard(small());
  const Time start{};
  for (ListenGuard::Id id = 1; id <= 3; ++id) {
    (void)guard.admit(id, "a", start);
    guard.greeted(id);
  }
  (void)guard.admit(4, "b", start);
  REQUIRE(guard.take_overdue(start + 1s).size() == 1);
  (void)guard.admit(5, "b", start + 1s);
  guard.greeted(5);
  CHECK(guard.next_turn() == start + 8s);
  const auto overdue = guard.take_overdue(start + 8s);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].id == 1);
}

TEST_CASE("an address that fails again and again is closed unread for a while") {
  ListenGuard guard(small());
  const Time start{};
  guard.failed("a", start);
  guard.failed("a", start + 11s);  // the first has been forgotten
  guard.failed("a", start + 12s);
  CHECK_FALSE(guard.admit(1, "a", start + 12s));
  guard.failed("a", start + 13s);
  CHECK(guard.admit(2, "a", start + 13s) == LinkRefusal::kTooMany);
  CHECK_FALSE(guard.admit(3, "b", start + 13s));
  CHECK_FALSE(guard.admit(4, "a", start + 15s));
}

TEST_CASE("the memory of failures is bounded") {
  ListenGuard guard(small());
  const Time start{};
  for (int i = 0; i < 10'000; ++i)
    guard.failed("address" + std::to_string(i), start);
  for (int i = 0; i < 3; ++i)
    guard.failed("late", start + 20s);  // room is made of what is over
  CHECK(guard.admit(1, "late", start + 20s) == LinkRefusal::kTooMany);
}

TEST_CASE("the log of refusals is limited, and says what it left out") {
  RefusalLog log;
  const Time start{};
  const auto pass = [&](const std::string& address, Time now) {
    return log.pass(LinkRefusal::kHttp, address, "line of " + address, now);
  };
  CHECK(pass("a", start + 100s) == "line of a");
  CHECK_FALSE(pass("a", start + 101s));
  CHECK_FALSE(pass("a", start + 102s));
  CHECK(log.pass(LinkRefusal::kPlain, "a", "other", start + 103s) == "other");
  CHECK(pass("b", start + 104s) == "line of b (2 more like it were not logged)");
  std::size_t lines = 0;
  for (int i = 0; i < 1000; ++i)
    lines += pass("c" + std::to_string(i), start + 105s).has_value() ? 1 : 0;
  CHECK(lines == RefusalLog::kLines - 3);
  CHECK(pass("a", start + 160s) == "line of a (983 more like it were not logged)");
}

}  // namespace
}  // namespace ddp::rendezvous
