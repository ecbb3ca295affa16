#include "launcher/supervisor/survivors.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

/// A world of `nodes` nodes with two ranks each. Participant i is node 10 - i.
rendezvous::World world_of(int nodes) {
  rendezvous::World world;
  for (int i = 0; i < nodes; ++i)
    world.assignments.push_back({static_cast<rendezvous::HostNumber>(10 - i), i, 2 * i, 2});
  world.world_size = 2 * nodes;
  return world;
}

TEST_CASE("workers can survive once all workers of an attempt have reported it") {
  Survivors survivors;
  survivors.begin(world_of(2), 120s, 0s);
  CHECK_FALSE(survivors.greeted(0));
  CHECK_FALSE(survivors.can_survive());
  survivors.begin(world_of(2), 120s, 10s);  // the next attempt starts from scratch
  CHECK_FALSE(survivors.greeted(1));
  CHECK_FALSE(survivors.greeted(1));  // reported again
  CHECK_FALSE(survivors.can_survive());
  CHECK(survivors.greeted(0));
  CHECK(survivors.can_survive());
  CHECK_FALSE(survivors.greeted(0));  // it is known
  survivors.begin(world_of(2), 120s, 20s);
  CHECK(survivors.can_survive());  // for all later attempts
}

TEST_CASE("all workers must be ready in time when workers survive") {
  Survivors survivors;
  survivors.begin(world_of(2), 30s, 0s);
  CHECK_FALSE(survivors.deadline());  // it is unknown whether the workers will ever greet
  survivors.greeted(0);
  survivors.greeted(1);
  survivors.begin(world_of(2), 30s, 100s);
  REQUIRE(survivors.deadline());
  CHECK(*survivors.deadline() == 130s);
  CHECK_FALSE(survivors.ready(1, 110s));
  CHECK_FALSE(survivors.ready(1, 110s));  // reported again
  CHECK_FALSE(survivors.verdict(129s));
  CHECK(*survivors.verdict(130s) == "not all ranks took part in the attempt within 30 s (--start-timeout)");
  CHECK(survivors.ended(0));  // its workers exited cleanly: the last node that was awaited
  CHECK_FALSE(survivors.deadline());
  CHECK_FALSE(survivors.verdict(200s));
}

TEST_CASE("the time to become ready is twice the slowest start, at least the limit") {
  Survivors survivors;
  survivors.begin(world_of(2), 30s, 0s);
  for (const std::size_t participant : {0, 1}) {
    survivors.greeted(participant);
    survivors.ready(participant, 40s);
  }
  survivors.begin(world_of(2), 30s, 100s);
  CHECK(*survivors.deadline() == 180s);
  CHECK(*survivors.verdict(180s) ==
        "not all ranks took part in the attempt within 80 s (twice the slowest start so far)");
  survivors.ended(0);  // no worker is left there, so this was no start
  survivors.ended(1);
  survivors.begin(world_of(2), 90s, 500s);
  CHECK(*survivors.deadline() == 590s);
}

TEST_CASE("the nodes whose workers have not greeted are late, unless no node's have") {
  Survivors survivors;
  survivors.begin(world_of(3), 30s, 0s);
  for (const std::size_t participant : {0, 1, 2})
    survivors.greeted(participant);
  CHECK(survivors.late(1h).empty());  // nobody knew that they can survive when the attempt began
  survivors.begin(world_of(3), 30s, 100s);
  CHECK(survivors.late(130s).empty());
  survivors.greeted(1);
  CHECK(survivors.late(130s - 1ns).empty());
  CHECK(survivors.late(130s) == std::set<std::size_t>{0, 2});
  survivors.ended(0);
  CHECK(survivors.late(130s) == std::set<std::size_t>{2});
  survivors.greeted(2);
  CHECK(survivors.late(130s).empty());  // they wait for each other
}

TEST_CASE("a failure report without a death ends the attempt, with the first report as reason") {
  Survivors survivors;
  survivors.begin(world_of(1), 30s, 0s);
  survivors.in_trouble("rank 0: lost rank 1", 5s);
  CHECK_FALSE(survivors.verdict(1h));  // as far as known these workers cannot survive, and end by themselves
  survivors.greeted(0);                // the greeting shows that they can
  survivors.ready(0, 5s);
  survivors.in_trouble("rank 2: lost rank 1", 6s);
  REQUIRE(survivors.deadline());
  CHECK(*survivors.deadline() == 5s + Survivors::kTroubleTime);
  CHECK_FALSE(survivors.verdict(6s));
  CHECK(*survivors.verdict(7s) == "rank 0: lost rank 1");
  survivors.begin(world_of(1), 30s, 8s);
  CHECK_FALSE(survivors.verdict(9s));
}

TEST_CASE("the failure reports of each rank in an attempt are limited") {
  Survivors survivors;
  survivors.begin(world_of(1), 30s, 0s);
  for (unsigned i = 0; i < Survivors::kMostTroubles; ++i)
    CHECK(survivors.accepts_report(3));
  CHECK_FALSE(survivors.accepts_report(3));
  CHECK(survivors.accepts_report(4));
  survivors.begin(world_of(1), 30s, 1s);
  CHECK(survivors.accepts_report(3));
}

TEST_CASE("the deadline is the earlier one of both limits") {
  Survivors survivors;
  survivors.begin(world_of(1), 30s, 0s);
  survivors.greeted(0);
  survivors.begin(world_of(1), 30s, 0s);
  survivors.in_trouble("rank 0: lost rank 1", 29s);
  CHECK(*survivors.deadline() == 30s);
  survivors.begin(world_of(1), 30s, 0s);
  survivors.in_trouble("rank 0: lost rank 1", 5s);
  CHECK(*survivors.deadline() == 5s + Survivors::kTroubleTime);
}

TEST_CASE("the state comes from the lowest rank with the most steps") {
  Survivors survivors;
  survivors.begin(world_of(2), 30s, 0s);
  CHECK_FALSE(survivors.source());
  survivors.wait(10, {{0, false, 99}}, 2);  // it has no state
  survivors.begin(world_of(2), 30s, 0s);
  CHECK_FALSE(survivors.source());
  survivors.wait(10, {{0, true, 4}, {1, false, 9}}, 2);
  survivors.wait(9, {{0, true, 5}, {1, true, 5}}, 2);
  CHECK_FALSE(survivors.source());  // known when the attempt begins
  survivors.begin(world_of(2), 30s, 0s);
  REQUIRE(survivors.source());
  CHECK(survivors.source()->rank == 2);
  CHECK(survivors.source()->step == 5);
  survivors.begin(world_of(2), 30s, 0s);  // all survivors have joined the last attempt
  CHECK_FALSE(survivors.source());
}

TEST_CASE("only survivors that still wait, on nodes of the attempt, can be the source") {
  Survivors survivors;
  survivors.wait(9, {{0, true, 8}}, 2);
  survivors.begin(world_of(1), 30s, 0s);  // node 9 has no part in it
  CHECK_FALSE(survivors.source());
  survivors.wait(9, {{0, true, 8}}, 2);
  survivors.wait(10, {{1, true, 7}}, 2);
  survivors.forget(9);
  survivors.begin(world_of(2), 30s, 0s);
  REQUIRE(survivors.source());
  CHECK(survivors.source()->rank == 1);
  survivors.wait(10, {{0, true, 7}, {1, true, 9}}, 2);
  survivors.wait(10, {{0, true, 7}}, 2);  // the other one has died
  survivors.begin(world_of(1), 30s, 0s);
  CHECK(survivors.source()->step == 7);
}

TEST_CASE("the user hears whether an attempt continues from a state") {
  Survivors survivors;
  survivors.begin(world_of(1), 30s, 0s);
  CHECK(survivors.lost_state_text(0).empty());
  CHECK(survivors.lost_state_text(1).empty());  // no survivors were announced
  CHECK(survivors.ready_text(1, 2, 9s).empty());
  survivors.greeted(0);
  CHECK(survivors.lost_state_text(0).empty());  // the first attempt has no earlier state
  CHECK(survivors.lost_state_text(1) ==
        "attempt 1: no surviving rank holds the training's state; training starts from the last checkpoint, "
        "or from step 0");
  survivors.revoked(20s);
  survivors.wait(10, {{1, true, 7}}, 2);
  survivors.begin(world_of(1), 30s, 21s);
  CHECK(survivors.lost_state_text(2).empty());
  CHECK(survivors.ready_text(2, 4, 22500ms) ==
        "attempt 2: 4 ranks continue from step 7 (state of rank 1), recovered in 2500 ms");
  CHECK(survivors.ready_text(2, 1, 21s) ==
        "attempt 2: 1 rank continues from step 7 (state of rank 1), recovered in 1000 ms");
}

const std::vector<EarlyExit> kOne{{3, "gpu01", {5s, 5s}}};

TEST_CASE("attempt exits: each rank ends once") {
  AttemptRanks exits;
  CHECK(exits.add(3));
  CHECK_FALSE(exits.add(3));
  CHECK(exits.add(2));
  CHECK(exits.ranks() == std::set<std::uint32_t>{2, 3});
}

TEST_CASE("attempt exits: a node's ranks have all ended only if each of them has") {
  AttemptRanks exits;
  CHECK_FALSE(exits.have_all(2, 2));
  exits.add(1);
  exits.add(2);
  exits.add(4);
  CHECK_FALSE(exits.have_all(2, 2));  // neighbours do not count
  exits.add(3);
  CHECK(exits.have_all(2, 2));
  CHECK(exits.have_all(1, 4));
  CHECK_FALSE(exits.have_all(1, 5));
  CHECK_FALSE(exits.have_all(0, 2));
}

TEST_CASE("attempt exits: a rank runs from its start to its end") {
  AttemptRanks ranks;
  CHECK(ranks.running(0, 4) == 0);
  for (const std::uint32_t rank : {0U, 2U, 3U, 4U})
    ranks.start(rank, 5);
  ranks.add(1);  // it could not be started
  ranks.add(3);
  CHECK(ranks.running(0, 2) == 1);
  CHECK(ranks.ended(0, 2) == 1);
  CHECK(ranks.running(2, 2) == 1);
  CHECK(ranks.running(0, 5) == 3);
  CHECK(ranks.ended(0, 5) == 2);
}

TEST_CASE("attempt exits: nothing is said if no rank runs any more") {
  AttemptRanks exits;
  exits.add(3);
  exits.left_early(kOne, 0s);
  exits.add(4);  // failed
  CHECK(exits.take_notice(kOne, 2, 60s).empty());
  CHECK_FALSE(exits.deadline());
}

TEST_CASE("attempt exits: an exit with 0 after the attempt's stop is not early") {
  AttemptRanks exits;
  exits.add(3);
  exits.left_early({}, 0s);
  CHECK_FALSE(exits.deadline());
}

}  // namespace
}  // namespace ddp::launcher
