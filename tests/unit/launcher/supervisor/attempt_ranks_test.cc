#include "launcher/supervisor/survivors.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

const std::vector<EarlyExit> kOne{{3, "gpu01", {5s, 5s}}};
const std::vector<EarlyExit> kTwo{{3, "gpu01", {5s, 5s}}, {4, "gpu01", {6s, 6s}}};

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

TEST_CASE("attempt exits: ranks that left early are named once, a minute after the first one") {
  AttemptRanks exits;
  CHECK_FALSE(exits.deadline());
  CHECK(exits.take_notice({}, 8, 1h).empty());
  exits.add(3);
  exits.left_early(kOne, 10s);
  CHECK(*exits.deadline() == 70s);
  exits.add(4);
  exits.left_early(kTwo, 20s);  // the first one counts
  CHECK(*exits.deadline() == 70s);
  CHECK(exits.take_notice(kTwo, 8, 70s - 1ns).empty());
  CHECK(exits.take_notice(kTwo, 8, 70s) ==
        "2 of 8 ranks have exited with 0 (ranks 3-4 on gpu01); the others still run");
  CHECK_FALSE(exits.deadline());
  CHECK(exits.take_notice(kTwo, 8, 2h).empty());
}

TEST_CASE("attempt exits: one rank that left early is named in the singular") {
  AttemptRanks exits;
  exits.add(3);
  exits.left_early(kOne, 0s);
  CHECK(exits.take_notice(kOne, 2, 60s) ==
        "1 of 2 ranks has exited with 0 (rank 3 on gpu01); the others still run");
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
