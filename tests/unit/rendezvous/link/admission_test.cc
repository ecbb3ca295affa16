#include "rendezvous/link/link_hello.h"

#include <string>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using Time = AdmissionLimiter::Time;

AdmissionLimits small() {
  AdmissionLimits limits;
  limits.waiting = 4;
  limits.silent_per_address = 3;
  limits.deadline = 10s;
  limits.grace = 1s;
  limits.failures = 3;
  limits.window = 10s;
  limits.ban = 2s;
  return limits;
}

TEST_CASE("one address cannot exceed its share") {
  AdmissionLimiter limiter(small());
  const Time now{};
  CHECK_FALSE(limiter.admit(1, "a", now));
  CHECK_FALSE(limiter.admit(2, "a", now));
  CHECK_FALSE(limiter.admit(3, "a", now));
  CHECK(limiter.admit(4, "a", now) == LinkRefusal::kTooMany);
  CHECK_FALSE(limiter.admit(5, "b", now));
  CHECK(limiter.full());
  limiter.ended(2);
  limiter.ended(2);
  CHECK_FALSE(limiter.full());
  CHECK_FALSE(limiter.admit(6, "a", now));
  CHECK(limiter.waiting() == 4);
}

TEST_CASE("silent connections of one address cannot keep others of this address out") {
  AdmissionLimiter limiter(small());
  const Time start{};
  (void)limiter.admit(1, "a", start);
  (void)limiter.admit(2, "b", start);
  (void)limiter.admit(3, "a", start + 100ms);
  limiter.greeted(1);
  (void)limiter.admit(4, "a", start + 200ms);
  limiter.ended(1);
  (void)limiter.admit(5, "a", start + 300ms);
  CHECK(limiter.full());
  CHECK(limiter.take_overdue(start + 300ms).empty());
  limiter.ended(2);
  // No connection of this address is older than the grace period yet.
  CHECK(limiter.admit(6, "a", start + 1099ms) == LinkRefusal::kTooMany);
  CHECK(limiter.next_turn() == start + 10'100ms);
  // Each later connection takes the place of the oldest.
  CHECK_FALSE(limiter.admit(7, "a", start + 1100ms));
  CHECK(limiter.next_turn() < start);
  CHECK_FALSE(limiter.admit(8, "a", start + 1200ms));
  CHECK(limiter.admit(9, "a", start + 1200ms) == LinkRefusal::kTooMany);
  CHECK(limiter.waiting() == 3);
  const auto overdue = limiter.take_overdue(start + 1200ms);
  REQUIRE(overdue.size() == 2);
  CHECK(overdue[0].id == 3);
  CHECK(overdue[0].why == LinkRefusal::kEvicted);
  CHECK(overdue[1].id == 4);
  limiter.ended(3);  // a later event for it changes nothing
  CHECK(limiter.waiting() == 3);
  CHECK(limiter.next_turn() == start + 10'300ms);
}

TEST_CASE("a connection with a valid hello counts globally, not in its address's share") {
  AdmissionLimiter limiter(small());
  const Time now{};
  for (AdmissionLimiter::Id id = 1; id <= 4; ++id) {
    CHECK_FALSE(limiter.admit(id, "a", now));
    limiter.greeted(id);
    limiter.greeted(id);
  }
  CHECK(limiter.full());
  for (AdmissionLimiter::Id id = 1; id <= 4; ++id)
    limiter.ended(id);
  limiter.greeted(1);
  for (AdmissionLimiter::Id id = 5; id <= 7; ++id)
    CHECK_FALSE(limiter.admit(id, "a", now));
  CHECK(limiter.admit(8, "a", now) == LinkRefusal::kTooMany);
}

TEST_CASE("connections that do not authenticate in time are closed, oldest first") {
  AdmissionLimiter limiter(small());
  const Time start{};
  CHECK_FALSE(limiter.next_turn());
  (void)limiter.admit(1, "a", start);
  (void)limiter.admit(2, "b", start + 1s);
  CHECK(limiter.next_turn() == start + 10s);
  CHECK(limiter.take_overdue(start + 9s).empty());
  const auto overdue = limiter.take_overdue(start + 10s);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].id == 1);
  CHECK(overdue[0].why == LinkRefusal::kSilent);
  CHECK(limiter.next_turn() == start + 11s);
}

TEST_CASE("when full, the oldest connection of the busiest address is closed after its grace") {
  AdmissionLimiter limiter(small());
  const Time start{};
  (void)limiter.admit(1, "honest", start);
  (void)limiter.admit(2, "flood", start + 100ms);
  (void)limiter.admit(3, "flood", start + 200ms);
  CHECK(limiter.next_turn() == start + 10s);
  (void)limiter.admit(4, "flood", start + 300ms);
  CHECK(limiter.full());
  CHECK(limiter.next_turn() == start + 1100ms);
  CHECK(limiter.take_overdue(start + 1s).empty());
  const auto overdue = limiter.take_overdue(start + 1100ms);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].id == 2);
  CHECK(overdue[0].why == LinkRefusal::kEvicted);
  CHECK_FALSE(limiter.full());
}

TEST_CASE("a valid hello gives more time, and is closed after silent connections") {
  AdmissionLimiter limiter(small());
  const Time start{};
  for (AdmissionLimiter::Id id = 1; id <= 3; ++id) {
    (void)limiter.admit(id, "a", start);
    limiter.greeted(id);
  }
  (void)limiter.admit(4, "b", start);
  REQUIRE(limiter.take_overdue(start + 1s).size() == 1);
  (void)limiter.admit(5, "b", start + 1s);
  limiter.greeted(5);
  CHECK(limiter.next_turn() == start + 8s);
  const auto overdue = limiter.take_overdue(start + 8s);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].id == 1);
}

TEST_CASE("an address with repeated failures is closed unread for a while") {
  AdmissionLimiter limiter(small());
  const Time start{};
  limiter.failed("a", start);
  limiter.failed("a", start + 11s);  // the first failure has expired
  limiter.failed("a", start + 12s);
  CHECK_FALSE(limiter.admit(1, "a", start + 12s));
  limiter.failed("a", start + 13s);
  CHECK(limiter.admit(2, "a", start + 13s) == LinkRefusal::kTooMany);
  CHECK_FALSE(limiter.admit(3, "b", start + 13s));
  CHECK_FALSE(limiter.admit(4, "a", start + 15s));
}

TEST_CASE("the memory of failures is bounded") {
  AdmissionLimiter limiter(small());
  const Time start{};
  for (int i = 0; i < 10'000; ++i)
    limiter.failed("address" + std::to_string(i), start);
  for (int i = 0; i < 3; ++i)
    limiter.failed("late", start + 20s);  // expired failures make room
  CHECK(limiter.admit(1, "late", start + 20s) == LinkRefusal::kTooMany);
}

TEST_CASE("the log of refusals is limited, and reports the omitted ones") {
  RefusalLog log;
  const Time start{};
  const auto pass = [&](const std::string& address, Time now) {
    return log.pass(LinkRefusal::kHttp, address, "line of " + address, now);
  };
  CHECK(pass("a", start + 100s) == "line of a");
  CHECK_FALSE(pass("a", start + 101s));
  CHECK_FALSE(pass("a", start + 102s));
  CHECK(log.pass(LinkRefusal::kPlain, "a", "other", start + 103s) == "other");
  CHECK(pass("b", start + 104s) == "line of b (2 more of this kind were not logged)");
  std::size_t lines = 0;
  for (int i = 0; i < 1000; ++i)
    lines += pass("c" + std::to_string(i), start + 105s).has_value() ? 1 : 0;
  CHECK(lines == RefusalLog::kLines - 3);
  CHECK(pass("a", start + 160s) == "line of a (983 more of this kind were not logged)");
}

}  // namespace
}  // namespace ddp::rendezvous
