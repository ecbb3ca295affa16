#include "apps/train/collectives/schedule/collective_machine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/collectives/cpu/tcp_communicator.h"
#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

using Parts = std::vector<std::string>;
using Schedules = std::vector<Schedule>;

/// Runs all ranks' schedules without IO; a part is the text of the contributions in it. Every rank runs as
/// far as it can. A schedule that cannot be finished fails the test.
std::vector<Parts> run_schedules(const Schedules& schedules, std::vector<Parts> ranks) {
  struct TestMessage {
    PartRange range;
    Parts parts;
  };
  std::map<std::pair<int, int>, std::vector<TestMessage>> wires;
  const int world = static_cast<int>(schedules.size());
  std::vector<std::size_t> at(schedules.size());
  std::vector<bool> sent(schedules.size());
  const auto numbers = [](const PartRange& range, std::size_t parts) {
    std::vector<std::size_t> result;
    for (int i = 0; i < range.count; ++i)
      result.push_back(static_cast<std::size_t>(range.first + i) % parts);
    return result;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < world; ++rank) {
      if (at[rank] == schedules[rank].size()) continue;
      const CollectiveStep& step = schedules[rank][at[rank]];
      if (!sent[rank] && step.send_to != CollectiveStep::kNobody) {
        TestMessage message{step.sent, {}};
        for (const std::size_t number : numbers(step.sent, ranks[rank].size()))
          message.parts.push_back(ranks[rank][number]);
        wires[{rank, step.send_to}].push_back(message);
      }
      sent[rank] = true;
      if (step.receive_from != CollectiveStep::kNobody) {
        auto& wire = wires[{step.receive_from, rank}];
        if (wire.empty()) continue;
        REQUIRE(wire.front().range == step.received);  // the range received equals the range sent
        std::size_t next = 0;
        for (const std::size_t number : numbers(step.received, ranks[rank].size())) {
          std::string& own = ranks[rank][number];
          own = step.add ? own + wire.front().parts[next] : wire.front().parts[next];
          ++next;
        }
        wire.erase(wire.begin());
      }
      ++at[rank];
      sent[rank] = false;
      moved = true;
    }
  }
  for (int rank = 0; rank < world; ++rank)
    REQUIRE(at[rank] == schedules[rank].size());
  for (const auto& [between, wire] : wires)
    REQUIRE(wire.empty());
  return ranks;
}

std::string letter(int rank) {
  return std::string(1, static_cast<char>('A' + rank));
}

template <class Make>
Schedules of_all(int world, Make make) {
  Schedules schedules;
  for (int rank = 0; rank < world; ++rank)
    schedules.push_back(make(rank));
  return schedules;
}

void check_peers(const Schedules& schedules) {
  const int world = static_cast<int>(schedules.size());
  for (int rank = 0; rank < world; ++rank) {
    const auto peers = peers_of(rank, world);
    for (const CollectiveStep& step : schedules[rank]) {
      for (const int other : {step.send_to, step.receive_from})
        CHECK((other == CollectiveStep::kNobody || std::count(peers.begin(), peers.end(), other) == 1));
    }
  }
}

}  // namespace

TEST_CASE("reduce-scatter gives each rank its part, with every contribution once") {
  for (int world = 1; world <= 26; ++world) {
    for (const auto make : {&ring_reduce_scatter, &halving_reduce_scatter}) {
      const auto schedules = of_all(world, [&](int rank) { return make(rank, world); });
      check_peers(schedules);
      std::vector<Parts> ranks;
      for (int rank = 0; rank < world; ++rank)
        ranks.emplace_back(world, letter(rank));
      const auto result = run_schedules(schedules, ranks);
      for (int rank = 0; rank < world; ++rank) {
        std::string sum = result[rank][rank];
        std::sort(sum.begin(), sum.end());
        std::string all;
        for (int r = 0; r < world; ++r)
          all += letter(r);
        CHECK(sum == all);
      }
    }
  }
}

TEST_CASE("all-gather gives every rank every part") {
  for (int world = 1; world <= 26; ++world) {
    for (const auto make : {&ring_all_gather, &doubling_all_gather}) {
      const auto schedules = of_all(world, [&](int rank) { return make(rank, world); });
      check_peers(schedules);
      std::vector<Parts> ranks(world, Parts(world));
      Parts all;
      for (int rank = 0; rank < world; ++rank) {
        ranks[rank][rank] = letter(rank);
        all.push_back(letter(rank));
      }
      for (const auto& parts : run_schedules(schedules, ranks))
        CHECK(parts == all);
    }
  }
}

TEST_CASE("a gather gives any root every part") {
  for (int world = 1; world <= 26; ++world) {
    for (int root = 0; root < world; ++root) {
      const auto schedules = of_all(world, [&](int rank) { return tree_gather(rank, world, root); });
      check_peers(schedules);
      std::vector<Parts> ranks(world, Parts(world));
      Parts all;
      for (int rank = 0; rank < world; ++rank) {
        ranks[rank][rank] = letter(rank);
        all.push_back(letter(rank));
      }
      CHECK(run_schedules(schedules, ranks)[root] == all);
    }
  }
}

TEST_CASE("a broadcast reaches all ranks from any root, as a tree and as a chain of pieces") {
  for (int world = 1; world <= 9; ++world) {
    for (int root = 0; root < world; ++root) {
      for (const int pieces : {0, 1, 2, 5}) {  // 0: the tree
        const auto schedules = of_all(world, [&](int rank) {
          return pieces == 0 ? tree_broadcast(rank, world, root) : chain_broadcast(rank, world, root, pieces);
        });
        check_peers(schedules);
        Parts whole;
        for (int piece = 0; piece < std::max(pieces, 1); ++piece)
          whole.push_back(letter(piece));
        std::vector<Parts> ranks(world, Parts(whole.size()));
        ranks[root] = whole;
        for (const auto& parts : run_schedules(schedules, ranks))
          CHECK(parts == whole);
      }
    }
  }
}

TEST_CASE("recursive halving takes as many steps as the world size has binary digits") {
  CHECK(halving_distances(1).empty());
  CHECK(halving_distances(2) == std::vector<int>{1});
  CHECK(halving_distances(6) == std::vector<int>{1, 2, 3});
  CHECK(halving_distances(8) == std::vector<int>{1, 2, 4});
  CHECK(halving_distances(1000).size() == 10);
  CHECK(peers_of(0, 6) == std::vector<int>{1, 2, 3, 4, 5});
  CHECK(peers_of(5, 2000).size() == 21);  // for 1000, both directions lead to the same rank
}

TEST_CASE("parts cover the buffer: larger ones first, empty ones last") {
  const auto part = [](std::size_t count, int parts, int n) {
    const PartBounds p = part_bounds(count, parts, n);
    return std::pair(p.begin, p.size);
  };
  using P = std::pair<std::size_t, std::size_t>;
  CHECK(part(7, 3, 0) == P(0, 3));
  CHECK(part(7, 3, 1) == P(3, 2));
  CHECK(part(7, 3, 2) == P(5, 2));
  CHECK(part(2, 3, 2) == P(2, 0));
  CHECK(part(0, 3, 1) == P(0, 0));
}

TEST_CASE("a hello names the program and its version") {
  PeerHello hello{.job = 0x0123456789abcdef, .attempt = 3, .world_size = 4, .rank = 2, .scalar_bytes = 8};
  CHECK(std::memcmp(&hello, "ddptrain", 8) == 0);
  CHECK(hello.is_of_this_version());
  ++hello.version;
  CHECK_FALSE(hello.is_of_this_version());
}
