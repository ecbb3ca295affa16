#include "launcher/master/node_link.h"

#include "tests/support/catch.h"

using ddp::launcher::ClockOffset;
using namespace std::chrono_literals;

TEST_CASE("the shortest round trip gives the offset, with an error of half the round trip") {
  ClockOffset clock;
  CHECK(clock.error(0s) == 1s);
  clock.guess(10s, 12s);
  CHECK(clock.to_ours(13s) == 11s);
  CHECK(clock.error(10s) == 1s);
  // The node is 2 s ahead; this message was delayed for 9 ms on its way back.
  clock.sample(10s, 10s + 10ms, 12s + 1ms);
  CHECK(clock.error(10s + 10ms) == 5ms);
  CHECK(clock.to_ours(13s) == 11s + 4ms);
  clock.sample(11s, 11s + 200us, 13s + 100us);
  CHECK(clock.error(11s + 200us) == 100us);
  CHECK(clock.to_ours(14s) == 12s);
  // A longer round trip shortly afterwards adds nothing, and neither does a guess.
  clock.sample(12s, 12s + 10ms, 14s + 1ms);
  clock.guess(12s, 20s);
  CHECK(clock.to_ours(14s) == 12s);
}

TEST_CASE("a sample gets worse with age until a newer one is better") {
  ClockOffset clock;
  clock.sample(0s, 200us, 100us);
  CHECK(clock.error(200us) == 100us);
  CHECK(clock.error(10s + 200us) == 100us + 1ms);
  // 10 s later, a round trip of 2 ms is better than the old one, which may be off by 1.1 ms.
  clock.sample(10s, 10s + 2ms, 11s + 1ms);
  CHECK(clock.error(10s + 2ms) == 1ms);
  CHECK(clock.to_ours(11s) == 10s);
}
