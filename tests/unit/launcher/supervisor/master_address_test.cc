#include "launcher/supervisor/net_choice.h"

#include <deque>
#include <random>
#include <set>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using Texts = std::vector<std::string>;

/// Answers like a node that reaches `open`: with the first address in it, or with none.
std::vector<MasterAddress::AddressProbe> answer(MasterAddress& master,
                                                const MasterAddress::AddressProbe& probe,
                                                const std::set<std::string>& open) {
  for (const std::string& address : probe.addresses) {
    if (open.count(address) > 0) return master.reached(probe.node, address);
  }
  return master.failed(probe.node);
}

TEST_CASE("the first candidate is taken when all nodes reach it") {
  MasterAddress master;
  const auto probes = master.begin({"A", "B"}, 3);
  REQUIRE(probes.size() == 2);
  CHECK(probes[1].addresses == Texts{"A", "B"});
  CHECK(master.reached(1, "A").empty());
  CHECK_FALSE(master.settled());
  CHECK_FALSE(master.reaches(2));
  CHECK(master.reached(2, "A").empty());
  CHECK(master.settled());
  CHECK(master.chosen() == "A");
}

TEST_CASE("a node that answers late with a better address is asked for the remaining one") {
  MasterAddress master;
  (void)master.begin({"A", "B"}, 3);
  CHECK(master.reached(2, "B").empty());  // node 1 has not answered yet
  const auto again = master.reached(1, "A");
  REQUIRE(again.size() == 1);
  CHECK(again[0].node == 1);
  CHECK(again[0].addresses == Texts{"B"});
  CHECK_FALSE(master.settled());
  CHECK(master.reached(1, "B").empty());
  CHECK(master.settled());
  CHECK(master.chosen() == "B");
}

TEST_CASE("a third address is taken when each of two is unreachable for a node") {
  MasterAddress master;
  (void)master.begin({"A", "B", "C"}, 3);
  CHECK(master.reached(1, "A").empty());
  auto again = master.reached(2, "B");
  REQUIRE(again.size() == 1);
  CHECK(again[0].addresses == Texts{"B"});
  again = master.failed(1);
  REQUIRE(again.size() == 2);
  CHECK(again[0].addresses == Texts{"C"});
  CHECK(master.cut_off("A") == 2);
  CHECK(master.cut_off("B") == 1);
  CHECK(master.cut_off("C") == 0);
  CHECK(master.reached(1, "C").empty());
  CHECK(master.failed(2).empty());
  CHECK(master.is_exhausted());
  CHECK_FALSE(master.settled());
  CHECK(master.chosen() == "C");
}

TEST_CASE("a new attempt starts over") {
  MasterAddress master;
  (void)master.begin({"A", "B"}, 2);
  CHECK(master.reached(1, "B").empty());
  CHECK(master.chosen() == "B");
  (void)master.begin({"A", "B"}, 2);
  CHECK(master.reached(1, "A").empty());
  CHECK(master.settled());
  CHECK(master.chosen() == "A");
}

TEST_CASE("a single node needs no probe") {
  MasterAddress master;
  CHECK(master.begin({"A", "B"}, 1).empty());
  CHECK(master.settled());
  CHECK(master.chosen() == "A");
}

TEST_CASE("an answer without a question changes nothing") {
  MasterAddress master;
  (void)master.begin({"A", "B"}, 2);
  CHECK(master.reached(1, "A").empty());
  CHECK(master.failed(1).empty());
  CHECK(master.settled());
}

TEST_CASE("any order of answers gives the best address that all nodes reach, or none") {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const Texts candidates{"A", "B", "C", "D"};
    const std::size_t nodes = 2 + random() % 5;
    std::vector<std::set<std::string>> open(nodes);
    for (auto& reachable : open) {
      for (const std::string& candidate : candidates) {
        if (random() % 4 != 0) reachable.insert(candidate);
      }
    }
    std::string best;
    for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
      bool all = true;
      for (std::size_t i = 1; i < nodes; ++i)
        all = all && open[i].count(*candidate) > 0;
      if (all) best = *candidate;
    }

    MasterAddress master;
    auto asked = master.begin(candidates, nodes);
    while (!asked.empty()) {
      const std::size_t pick = random() % asked.size();
      const MasterAddress::AddressProbe probe = asked[pick];
      asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(pick));
      for (auto& more : answer(master, probe, open[probe.node]))
        asked.push_back(std::move(more));
    }
    REQUIRE(master.settled() == !best.empty());
    REQUIRE(master.is_exhausted() == best.empty());
    if (!best.empty()) REQUIRE(master.chosen() == best);
  }
}

}  // namespace
}  // namespace ddp::launcher
