#include "launcher/supervisor/survivors.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

TEST_CASE("workers can survive once all workers of an attempt have reported it") {
  Survivors survivors;
  survivors.begin(2, 120s, 0s);
  survivors.greeted(0);
  CHECK_FALSE(survivors.can_survive());
  survivors.begin(2, 120s, 10s);  // the next attempt starts from scratch
  survivors.greeted(1);
  CHECK_FALSE(survivors.can_survive());
  survivors.greeted(0);
  CHECK(survivors.can_survive());
  survivors.begin(2, 120s, 20s);
  CHECK(survivors.can_survive());  // for all later attempts
}

TEST_CASE("all workers must be ready in time when workers survive") {
  Survivors survivors;
  survivors.begin(2, 30s, 0s);
  CHECK_FALSE(survivors.deadline());  // it is unknown whether the workers will ever greet
  survivors.greeted(0);
  survivors.greeted(1);
  survivors.begin(2, 30s, 100s);
  REQUIRE(survivors.deadline());
  CHECK(*survivors.deadline() == 130s);
  CHECK_FALSE(survivors.ready(1));
  CHECK_FALSE(survivors.ready(1));  // reported again
  CHECK_FALSE(survivors.verdict(129s));
  CHECK(*survivors.verdict(130s) == "not all ranks took part in the attempt within 30 s (--start-timeout)");
  CHECK(survivors.ended(0));  // its workers exited cleanly: the last node that was awaited
  CHECK_FALSE(survivors.deadline());
  CHECK_FALSE(survivors.verdict(200s));
}

TEST_CASE("a failure report without a death ends the attempt, with the first report as reason") {
  Survivors survivors;
  survivors.begin(1, 30s, 0s);
  survivors.in_trouble("rank 0: lost rank 1", 5s);
  CHECK_FALSE(survivors.verdict(1h));  // as far as known these workers cannot survive, and end by themselves
  survivors.greeted(0);                // the greeting shows that they can
  survivors.ready(0);
  survivors.in_trouble("rank 2: lost rank 1", 6s);
  REQUIRE(survivors.deadline());
  CHECK(*survivors.deadline() == 5s + Survivors::kTroubleTime);
  CHECK_FALSE(survivors.verdict(6s));
  CHECK(*survivors.verdict(7s) == "rank 0: lost rank 1");
  survivors.begin(1, 30s, 8s);
  CHECK_FALSE(survivors.verdict(9s));
}

TEST_CASE("the failure reports of each rank in an attempt are limited") {
  Survivors survivors;
  survivors.begin(1, 30s, 0s);
  for (unsigned i = 0; i < Survivors::kMostTroubles; ++i)
    CHECK(survivors.heeds(3));
  CHECK_FALSE(survivors.heeds(3));
  CHECK(survivors.heeds(4));
  survivors.begin(1, 30s, 1s);
  CHECK(survivors.heeds(3));
}

TEST_CASE("the state comes from the lowest rank with the most steps") {
  rendezvous::World world;
  world.assignments = {{7, 0, 0, 2}, {3, 1, 2, 2}};
  world.world_size = 4;
  CHECK_FALSE(Survivors::source(world, {{}, {}}));
  CHECK_FALSE(Survivors::source(world, {{{0, false, 99}}, {}}));
  const auto source = Survivors::source(world, {{{0, true, 4}, {1, false, 9}}, {{0, true, 5}, {1, true, 5}}});
  REQUIRE(source);
  CHECK(source->rank == 2);
  CHECK(source->step == 5);
}

}  // namespace
}  // namespace ddp::launcher
