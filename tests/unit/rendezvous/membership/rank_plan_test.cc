#include "rendezvous/membership/rank_plan.h"

#include <climits>
#include <random>

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::rendezvous;

namespace {

NodeSlots node(const std::string& name, std::optional<int> slots = {}, int gpus = 0, int cpus = 1,
               std::optional<int> devices = {}) {
  NodeSlots made;
  made.name = name;
  made.slots = slots;
  made.devices = devices;
  made.gpus = gpus;
  made.cpus = cpus;
  return made;
}

ProcsWanted number(int n, bool oversubscribe = false) {
  return {ProcsRule::kNumber, n, oversubscribe};
}
ProcsWanted rule(ProcsRule r, bool oversubscribe = false) {
  return {r, 0, oversubscribe};
}

// Returns "2@0 4@2 = 6": processes@first_rank of each node, and the world size.
std::string shape(const RankPlan& plan) {
  std::string text;
  for (const NodeRanks& ranks : plan.nodes) {
    text += std::to_string(ranks.local_world_size) + "@" + std::to_string(ranks.first_rank) + " ";
  }
  return text + "= " + std::to_string(plan.world_size);
}

}  // namespace

TEST_CASE("unequal slots give ranks by prefix sum in hostfile order") {
  const auto plan = plan_ranks({node("z", 2), node("a", 4), node("m", 1)}, {});
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "2@0 4@2 1@6 = 7");
  CHECK(plan->nodes[1].node_rank == 1);
  CHECK(plan->nodes[1].reason == "slots=4");
}

TEST_CASE("a host without slots has no limit") {
  const auto plan = plan_ranks({node("a"), node("b", 8)}, number(8));
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "8@0 8@8 = 16");
  CHECK(plan->nodes[0].reason == "--nproc-per-node 8");
  CHECK(shape(*plan_ranks({node("a")}, number(1))) == "1@0 = 1");
}

TEST_CASE("without slots and --nproc-per-node the GPUs count, else one worker, as the plan notes") {
  const auto plan = plan_ranks({node("a", {}, 4), node("b", {}, 0, 64), node("c", {}, 1)}, {});
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "4@0 1@4 1@5 = 6");
  CHECK(plan->nodes[0].reason == "4 GPUs");
  CHECK(plan->nodes[1].reason == "one worker: no slots, no GPU, no --nproc-per-node");
  CHECK(plan->nodes[2].reason == "1 GPU");
}

TEST_CASE("chosen devices override slots and the GPU count") {
  const auto plan = plan_ranks({node("a", 8, 8, 1, 2), node("b", {}, 8, 1, 3), node("c", 1, 8, 1, 2)}, {});
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "2@0 3@2 1@5 = 6");
  CHECK(plan->nodes[0].reason == "2 chosen devices");
  CHECK(plan->nodes[2].reason == "slots=1 of 2 chosen devices");
}

TEST_CASE("auto counts GPUs, or CPUs on a node without GPUs") {
  const auto plan = plan_ranks({node("a", {}, 8, 64), node("b", {}, 0, 16)}, rule(ProcsRule::kAuto));
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "8@0 16@8 = 24");
  CHECK(plan->nodes[1].reason == "16 CPUs");
  CHECK(plan_ranks({node("a", {}, 0, 1)}, rule(ProcsRule::kAuto))->nodes[0].reason == "1 CPU");
  CHECK(plan_ranks({node("a", {}, 1, 64)}, rule(ProcsRule::kAuto))->nodes[0].reason == "1 GPU");
  CHECK(shape(*plan_ranks({node("a", {}, 0, 0)}, rule(ProcsRule::kCpu))) == "1@0 = 1");
}

TEST_CASE("a node's own count is limited to its slots, unless --oversubscribe") {
  const std::vector<NodeSlots> nodes{node("a", 4, 8, 64)};
  CHECK(shape(*plan_ranks(nodes, rule(ProcsRule::kGpu))) == "4@0 = 4");
  CHECK(plan_ranks(nodes, rule(ProcsRule::kGpu))->nodes[0].reason == "slots=4 of 8 GPUs");
  CHECK(plan_ranks({node("a", 8, 8)}, rule(ProcsRule::kGpu))->nodes[0].reason == "8 GPUs");
  CHECK(shape(*plan_ranks(nodes, rule(ProcsRule::kCpu))) == "4@0 = 4");
  CHECK(shape(*plan_ranks(nodes, rule(ProcsRule::kGpu, true))) == "8@0 = 8");
  CHECK(shape(*plan_ranks(nodes, rule(ProcsRule::kCpu, true))) == "64@0 = 64");
}

TEST_CASE("more workers than slots are an error that names every such host") {
  const std::vector<NodeSlots> nodes{node("gpu01", 4), node("gpu02", 8), node("gpu03", 2)};
  const auto plan = plan_ranks(nodes, number(8));
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().code == ErrorCode::kUsage);
  CHECK(plan.error().text ==
        "gpu01: --nproc-per-node 8 is more than its slots=4; ask for fewer, raise slots in the hostfile, or "
        "add "
        "--oversubscribe\n"
        "gpu03: --nproc-per-node 8 is more than its slots=2; ask for fewer, raise slots in the hostfile, or "
        "add "
        "--oversubscribe");
  CHECK(check_slots(nodes, number(8)).error().text == plan.error().text);
  CHECK(shape(*plan_ranks(nodes, number(8, true))) == "8@0 8@8 8@16 = 24");
}

TEST_CASE("--nproc-per-node gpu on nodes without a GPU is an error that names them") {
  const auto plan =
      plan_ranks({node("gpu01", {}, 2), node("login", 4, 0), node("old", {}, 0)}, rule(ProcsRule::kGpu));
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().code == ErrorCode::kRefused);
  CHECK(plan.error().text ==
        "--nproc-per-node gpu: no GPU visible on login, old; check nvidia-smi and CUDA_VISIBLE_DEVICES "
        "there, or give a "
        "number");
}

TEST_CASE("impossible numbers of ranks are errors") {
  CHECK(check_slots({node("a")}, number(0)).error().text == "--nproc-per-node 0: give at least 1");
  CHECK(plan_ranks({node("a", 0)}, {}).error().text ==
        "a: slots=0 allows no worker on this host; remove the host or give it at least 1");
  CHECK(plan_ranks({}, {}).error().code == ErrorCode::kInternal);
  const auto huge = plan_ranks({node("a"), node("b"), node("c")}, number(INT_MAX));
  REQUIRE_FALSE(huge.has_value());
  CHECK(huge.error().text == "the plan has 6442450941 ranks; at most 1000000 are possible");
  CHECK(plan_ranks({node("a")}, number(kMaxWorldSize))->world_size == kMaxWorldSize);
}

TEST_CASE("property: ranks are a gapless sequence for any nodes") {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<NodeSlots> nodes;
    const int count = 1 + static_cast<int>(random() % 40);
    for (int i = 0; i < count; ++i) {
      nodes.push_back(node("n" + std::to_string(i), {}, static_cast<int>(random() % 9),
                           1 + static_cast<int>(random() % 9)));
      if (random() % 2) nodes.back().slots = 1 + static_cast<int>(random() % 9);
      if (random() % 4 == 0) nodes.back().devices = 1 + static_cast<int>(random() % 4);
    }
    const auto plan = plan_ranks(nodes, rule(random() % 2 ? ProcsRule::kUnset : ProcsRule::kAuto));
    REQUIRE(plan.has_value());
    int next = 0;
    for (std::size_t i = 0; i < plan->nodes.size(); ++i) {
      REQUIRE(plan->nodes[i].node_rank == static_cast<int>(i));
      REQUIRE(plan->nodes[i].first_rank == next);
      REQUIRE(plan->nodes[i].local_world_size >= 1);
      if (nodes[i].slots) REQUIRE(plan->nodes[i].local_world_size <= *nodes[i].slots);
      next += plan->nodes[i].local_world_size;
    }
    REQUIRE(plan->world_size == next);
  }
}
