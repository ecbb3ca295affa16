#include "apps/train/training/training_run.h"
#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("an order replaces the rank assignment of the environment, and nothing else") {
  WorkerEnvironment before;
  before.job_id = "job";
  before.control = "unix:/c";
  before.rank = 3;
  ddp::rendezvous::AttemptOrder order;
  order.attempt = 7;
  order.rank = 1;
  order.world = 6;
  order.local_rank = 1;
  order.local_world = 3;
  order.node_rank = 0;
  order.nodes = 2;
  order.store = "10.0.0.2:29500";
  const auto after = ordered(before, order);
  REQUIRE(after.has_value());
  CHECK(after->rank == 1);
  CHECK(after->world_size == 6);
  CHECK(after->local_rank == 1);
  CHECK(after->local_world_size == 3);
  CHECK(after->node == 0);
  CHECK(after->attempt == 7);
  CHECK(after->master_addr == "10.0.0.2");
  CHECK(after->master_port == 29500);
  CHECK(after->agent_store);
  CHECK(after->job_id == "job");
  CHECK(after->control == "unix:/c");

  order.store = "[fe80::1%eth0]:1";
  CHECK(ordered(before, order)->master_addr == "fe80::1%eth0");
  for (const char* wrong : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x"}) {
    order.store = wrong;
    REQUIRE_FALSE(ordered(before, order).has_value());
    CHECK(ordered(before, order).error().text ==
          "the launcher ordered an attempt with the store \"" + std::string(wrong) + "\"");
  }
  order.world = 1;  // a world of one needs no store
  order.rank = 0;
  CHECK(ordered(before, order).has_value());
}
