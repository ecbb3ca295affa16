#include "rendezvous/membership/rank_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

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
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
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
