#include "rendezvous/membership/rank_plan.h"

#include <algorithm>
#include <climits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
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
  for (const RankAssignment& ranks : plan.assignments) {
    text += std::to_string(ranks.local_world_size) + "@" + std::to_string(ranks.first_rank) + " ";
  }
  return text + "= " + std::to_string(plan.world_size);
}

TEST_CASE("unequal slots give ranks by prefix sum in hostfile order") {
  const auto plan = plan_ranks({node("z", 2), node("a", 4), node("m", 1)}, {});
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "2@0 4@2 1@6 = 7");
  CHECK(plan->assignments[1].node_rank == 1);
  CHECK(plan->assignments[1].host == 1);
  CHECK(plan->reasons[1] == "slots=4");
}

TEST_CASE("a host without slots has no limit") {
  const auto plan = plan_ranks({node("a"), node("b", 8)}, number(8));
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "8@0 8@8 = 16");
  CHECK(plan->reasons[0] == "--nproc-per-node 8");
  CHECK(shape(*plan_ranks({node("a")}, number(1))) == "1@0 = 1");
}

TEST_CASE("without slots and --nproc-per-node the GPUs count, else one worker, as the plan notes") {
  const auto plan = plan_ranks({node("a", {}, 4), node("b", {}, 0, 64), node("c", {}, 1)}, {});
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "4@0 1@4 1@5 = 6");
  CHECK(plan->reasons[0] == "4 GPUs");
  CHECK(plan->reasons[1] == "one worker: no slots, no GPU, no --nproc-per-node");
  CHECK(plan->reasons[2] == "1 GPU");
}

TEST_CASE("chosen devices override slots and the GPU count") {
  const auto plan = plan_ranks({node("a", 8, 8, 1, 2), node("b", {}, 8, 1, 3), node("c", 1, 8, 1, 2)}, {});
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "2@0 3@2 1@5 = 6");
  CHECK(plan->reasons[0] == "2 chosen devices");
  CHECK(plan->reasons[2] == "slots=1 of 2 chosen devices");
}

TEST_CASE("auto counts GPUs, or CPUs on a node without GPUs") {
  const auto plan = plan_ranks({node("a", {}, 8, 64), node("b", {}, 0, 16)}, rule(ProcsRule::kAuto));
  REQUIRE(plan.has_value());
  CHECK(shape(*plan) == "8@0 16@8 = 24");
  CHECK(plan->reasons[1] == "16 CPUs");
  CHECK(plan_ranks({node("a", {}, 0, 1)}, rule(ProcsRule::kAuto))->reasons[0] == "1 CPU");
  CHECK(plan_ranks({node("a", {}, 1, 64)}, rule(ProcsRule::kAuto))->reasons[0] == "1 GPU");
  CHECK(shape(*plan_ranks({node("a", {}, 0, 0)}, rule(ProcsRule::kCpu))) == "1@0 = 1");
}

TEST_CASE("a node's own count is limited to its slots, unless --oversubscribe") {
  const std::vector<NodeSlots> nodes{node("a", 4, 8, 64)};
  CHECK(shape(*plan_ranks(nodes, rule(ProcsRule::kGpu))) == "4@0 = 4");
  CHECK(plan_ranks(nodes, rule(ProcsRule::kGpu))->reasons[0] == "slots=4 of 8 GPUs");
  CHECK(plan_ranks({node("a", 8, 8)}, rule(ProcsRule::kGpu))->reasons[0] == "8 GPUs");
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
    for (std::size_t i = 0; i < plan->assignments.size(); ++i) {
      REQUIRE(plan->assignments[i].node_rank == static_cast<int>(i));
      REQUIRE(plan->assignments[i].first_rank == next);
      REQUIRE(plan->assignments[i].local_world_size >= 1);
      if (nodes[i].slots) REQUIRE(plan->assignments[i].local_world_size <= *nodes[i].slots);
      next += plan->assignments[i].local_world_size;
    }
    REQUIRE(plan->world_size == next);
  }
}

using Candidates = std::vector<SlotTable::Candidate>;

std::vector<HostNumber> hosts_of(const World& world) {
  std::vector<HostNumber> hosts;
  for (const RankAssignment& assignment : world.assignments)
    hosts.push_back(assignment.host);
  return hosts;
}

using Hosts = std::vector<HostNumber>;

TEST_CASE("a failed comparison of structs shows their fields") {
  CHECK(Catch::Detail::stringify(RankAssignment{1, 2, 3, 4}) == "{1, 2, 3, 4}");
  CHECK(Catch::Detail::stringify(World{{{0, 1, 2, 3}}, 4}) == "{{ {0, 1, 2, 3} }, 4}");
}

TEST_CASE("slots: the first fill creates them in order, and ranks are prefix sums") {
  SlotTable slot_table(3);
  slot_table.fill({{0, 8}, {1, 4}, {2, 2}, {3, 8}});
  const World world = slot_table.world();
  CHECK(world.world_size == 14);
  CHECK(world.assignments == std::vector<RankAssignment>{{0, 0, 0, 8}, {1, 1, 8, 4}, {2, 2, 12, 2}});
}

TEST_CASE("slots: a spare inherits the node rank and the size of the slot") {
  SlotTable slot_table(3, true);
  slot_table.fill({{0, 8}, {1, 4}, {2, 8}, {3, 8}});
  slot_table.fill({{0, 8}, {2, 8}, {3, 8}});
  CHECK(slot_table.world().assignments ==
        std::vector<RankAssignment>{{0, 0, 0, 8}, {3, 1, 8, 4}, {2, 2, 12, 8}});
}

TEST_CASE("slots: a spare that is too small does not replace; a fixed world then lacks a node") {
  SlotTable fixed(2, true);
  fixed.fill({{0, 8}, {1, 8}, {2, 4}});
  fixed.fill({{0, 8}, {2, 4}});
  CHECK(hosts_of(fixed.world()) == Hosts{0});
  SlotTable elastic(2);
  elastic.fill({{0, 8}, {1, 8}, {2, 4}});
  elastic.fill({{0, 8}, {2, 4}});
  CHECK(elastic.world().assignments ==
        std::vector<RankAssignment>{{0, 0, 0, 8}, {2, 1, 8, 4}});  // a new slot at the end
}

TEST_CASE("slots: a shrink closes them in order, and a host that returns takes its own") {
  SlotTable slot_table(4);
  slot_table.fill({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  slot_table.fill({{0, 1}, {2, 1}, {3, 1}});
  CHECK(hosts_of(slot_table.world()) == Hosts{0, 2, 3});
  slot_table.fill({{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  CHECK(hosts_of(slot_table.world()) == Hosts{0, 1, 2, 3});
}

TEST_CASE("slots: a host that returns to a taken slot is a spare, and the holder keeps the slot") {
  SlotTable slot_table(2);
  slot_table.fill({{0, 1}, {1, 1}});
  slot_table.fill({{1, 1}, {5, 1}});
  CHECK(hosts_of(slot_table.world()) == Hosts{5, 1});
  slot_table.fill({{0, 1}, {1, 1}, {5, 1}});
  CHECK(hosts_of(slot_table.world()) == Hosts{5, 1});
  slot_table.fill({{0, 1}, {5, 1}});
  CHECK(hosts_of(slot_table.world()) == Hosts{5, 0});
}

TEST_CASE("slots: the owner comes before a spare that is earlier in order") {
  SlotTable slot_table(2);
  slot_table.fill({{1, 1}, {2, 1}});
  slot_table.fill({{1, 1}});
  slot_table.fill({{0, 1}, {1, 1}, {2, 1}});
  CHECK(hosts_of(slot_table.world()) == Hosts{1, 2});
}

TEST_CASE("slots: growth is at the end, up to the maximum") {
  SlotTable slot_table(3);
  slot_table.fill({{4, 2}});
  slot_table.fill({{0, 1}, {1, 1}, {2, 1}, {4, 2}});
  CHECK(slot_table.world().assignments ==
        std::vector<RankAssignment>{{4, 0, 0, 2}, {0, 1, 2, 1}, {1, 2, 3, 1}});
}

// Invariants for any history of joining and leaving hosts.
TEST_CASE("slots: invariants hold over random histories") {
  for (std::uint32_t seed = 0; seed < 800; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
    const int hosts = 1 + pick(8);
    const int most = 1 + pick(6);
    const bool fixed = pick(2) == 0;
    SlotTable slot_table(most, fixed);
    std::map<HostNumber, int> slots;
    for (int host = 0; host < hosts; ++host)
      slots[static_cast<HostNumber>(host)] = 1 + pick(3);
    World before;
    int slots_at_first = 0;
    for (int round = 0; round < 8; ++round) {
      INFO("seed " << seed << ", round " << round);
      // A host may come back with other slots.
      for (auto& [host, count] : slots)
        if (pick(4) == 0) count = 1 + pick(3);
      Candidates candidates;
      for (const auto& [host, count] : slots)
        if (pick(4) != 0) candidates.push_back({host, count});
      slot_table.fill(candidates);
      const World world = slot_table.world();

      int first_rank = 0;
      std::set<HostNumber> seen;
      for (std::size_t i = 0; i < world.assignments.size(); ++i) {
        const RankAssignment& assignment = world.assignments[i];
        REQUIRE(assignment.node_rank == static_cast<int>(i));
        REQUIRE(assignment.first_rank == first_rank);
        first_rank += assignment.local_world_size;
        REQUIRE(assignment.local_world_size >= 1);
        REQUIRE(assignment.local_world_size <= slots[assignment.host]);
        REQUIRE(seen.insert(assignment.host).second);
        REQUIRE(std::any_of(candidates.begin(), candidates.end(),
                            [&](const auto& c) { return c.host == assignment.host; }));
      }
      REQUIRE(first_rank == world.world_size);
      REQUIRE(slot_table.filled() == static_cast<int>(world.assignments.size()));
      REQUIRE(slot_table.filled() <= most);

      // Living holders stay, in order, if they have the slots still.
      Hosts stayed;
      for (const RankAssignment& assignment : before.assignments)
        if (std::any_of(candidates.begin(), candidates.end(), [&](const auto& c) {
              return c.host == assignment.host && c.slots >= assignment.local_world_size;
            }))
          stayed.push_back(assignment.host);
      Hosts kept = hosts_of(world);
      std::erase_if(kept,
                    [&](HostNumber h) { return std::find(stayed.begin(), stayed.end(), h) == stayed.end(); });
      REQUIRE(kept == stayed);
      // A host that stays in a slot keeps the size of that slot.
      for (const RankAssignment& old : before.assignments)
        for (const RankAssignment& assignment : world.assignments)
          if (assignment.host == old.host && slots[old.host] >= old.local_world_size)
            REQUIRE(assignment.local_world_size == old.local_world_size);
      // No slot stays empty beside a spare if the world may grow.
      if (!fixed || slots_at_first == 0)
        REQUIRE(slot_table.filled() == std::min(most, static_cast<int>(candidates.size())));
      if (slots_at_first == 0) slots_at_first = slot_table.filled();
      if (fixed) REQUIRE(slot_table.filled() <= slots_at_first);
      // Filling again changes nothing, and neither does the order of the candidates.
      SlotTable again = slot_table;
      again.fill(candidates);
      REQUIRE(again.world() == world);
      before = world;
    }
  }
}

TEST_CASE("an owner that comes back with fewer slots does not get its slot again") {
  SlotTable slot_table(2, true);
  slot_table.fill({{0, 8}, {1, 8}, {2, 8}});
  slot_table.fill({{0, 4}, {1, 8}, {2, 8}});
  CHECK(slot_table.world().assignments == std::vector<RankAssignment>{{2, 0, 0, 8}, {1, 1, 8, 8}});
  // With more slots than its slot has, the owner gets it and keeps its size.
  SlotTable same(1, true);
  same.fill({{0, 4}});
  same.fill({{0, 8}});
  CHECK(same.world().assignments == std::vector<RankAssignment>{{0, 0, 0, 4}});
}

}  // namespace
}  // namespace ddp::rendezvous
