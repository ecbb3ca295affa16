#include "launcher/job/output_credit.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

/// Ranks of one node with waiting output, and a master that gives credit back.
struct Node {
  OutputTurns turns;
  std::map<std::uint32_t, std::size_t> waiting;
  std::map<std::uint32_t, std::size_t> sent;

  /// Runs one round like WorkerPipes. Returns the number of bytes read.
  std::size_t round(std::size_t room) {
    std::vector<OutputTurns::Ready> ready;
    for (const auto& [rank, bytes] : waiting) {
      if (bytes > 0) ready.push_back({rank, bytes});
    }
    std::size_t read = 0;
    for (const auto& turn : turns.round(ready, room)) {
      const std::size_t bytes = std::min(turn.bytes, waiting[turn.who]);
      waiting[turn.who] -= bytes;
      sent[turn.who] += bytes;
      read += bytes;
    }
    CHECK(read <= room);
    return read;
  }
};

TEST_CASE("blocked stdout leaves stderr its credit") {
  OutputCredit credit;
  credit.start(100'000);
  credit.spend(1, 100'000);
  CHECK(credit.room(1) == 0);
  CHECK(credit.room(2) == 100'000);
  credit.spend(2, 30'000);
  credit.add(1, 50'000);
  CHECK(credit.room(1) == 50'000);
  CHECK(credit.room(2) == 70'000);
}

TEST_CASE("small amounts of credit are collected until they are worth a read") {
  OutputCredit credit;
  credit.start(64u << 10);
  credit.spend(1, (64u << 10) - 10);
  CHECK(credit.room(1) == 0);
  credit.add(1, kLeastRead - 11);
  CHECK(credit.room(1) == 0);
  credit.add(1, 1);
  CHECK(credit.room(1) == kLeastRead);
  // The master gives back the consumed bytes in pieces, and never keeps so much that a reader waits for ever.
  CHECK(credit_piece(1'000'000) + kLeastRead <= credit_window(1'000'000));
}

TEST_CASE("bytes sent beyond the credit are a debt, so that the window never grows") {
  OutputCredit credit;
  credit.start(100'000);
  credit.spend(1, 100'000);
  credit.spend(1, 250'000);  // the pipes' content at a stop
  CHECK(credit.room(1) == 0);
  credit.add(1, 250'000);
  CHECK(credit.room(1) == 0);
  credit.add(1, 100'000);
  CHECK(credit.room(1) == 100'000);
  CHECK(credit.room(2) == 100'000);
}

TEST_CASE("credit for an unknown stream is ignored") {
  OutputCredit credit;
  credit.start(10'000);
  credit.add(0, 100);
  credit.add(3, 100);
  CHECK(credit.room(1) == 10'000);
  CHECK(credit.room(2) == 10'000);
}

TEST_CASE("without a master the credit is unlimited, and later credit messages change nothing") {
  OutputCredit credit;
  credit.start(10);
  credit.lift();
  credit.spend(1, 1u << 30);
  credit.add(2, 5);
  credit.start(10);
  CHECK(credit.room(1) == std::numeric_limits<std::size_t>::max());
  CHECK(credit.room(2) == std::numeric_limits<std::size_t>::max());
}

TEST_CASE("all nodes together stay within the limit, and each can send a frame") {
  for (const std::size_t nodes : {1u, 8u, 64u}) {
    CHECK(credit_window(nodes) >= 32u << 10);
    CHECK(credit_window(nodes) <= 1u << 20);
    CHECK(4 * credit_piece(nodes) <= credit_window(nodes));
    CHECK(2 * nodes * credit_window(nodes) <= 8u << 20);
  }
  CHECK(credit_window(10'000) == 32u << 10);
}

TEST_CASE("a single rank may read a whole pipe at once") {
  OutputTurns turns;
  const std::vector<OutputTurns::Ready> ready{{5, 1u << 20}};
  const auto round = turns.round(ready, 1u << 20);
  REQUIRE(round.size() == 1);
  CHECK(round[0].who == 5);
  CHECK(round[0].bytes == OutputTurns::kMost);
}

TEST_CASE("without a ready rank or without credit there is no turn") {
  OutputTurns turns;
  CHECK(turns.round({}, 1000).empty());
  const std::vector<OutputTurns::Ready> ready{{0, 10}, {1, 100'000}};
  CHECK(turns.round(ready, 0).empty());
}

TEST_CASE("a pending end of file gets a turn") {
  OutputTurns turns;
  const std::vector<OutputTurns::Ready> ready{{3, 0}};
  const auto round = turns.round(ready, 1u << 20);
  REQUIRE(round.size() == 1);
  CHECK(round[0].who == 3);
  CHECK(round[0].bytes > 0);
}

TEST_CASE("quiet ranks come before busy ones, and are read completely") {
  OutputTurns turns;
  const std::vector<OutputTurns::Ready> ready{{0, 1u << 20}, {1, 80}, {2, 1u << 20}, {3, 5000}};
  const auto round = turns.round(ready, 300'000);
  REQUIRE(round.size() == 4);
  CHECK(round[0].who == 1);
  CHECK(round[0].bytes == 80);
  CHECK(round[1].who == 3);
  CHECK(round[1].bytes == 5000);
  CHECK(round[2].who == 0);
  CHECK(round[2].bytes == OutputTurns::kMost);
  CHECK(round[3].who == 2);
  CHECK(round[3].bytes == 300'000 - 5080 - OutputTurns::kMost);
}

TEST_CASE("credit for one turn is given to the busy ranks in turns") {
  Node node;
  constexpr std::uint32_t kRanks = 64;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    node.waiting[rank] = 1u << 30;
  for (std::uint32_t round = 0; round < kRanks; ++round)
    CHECK(node.round(64u << 10) == 64u << 10);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    CHECK(node.sent[rank] == 64u << 10);
}

TEST_CASE("quiet ranks with more data than credit take turns as well") {
  Node node;
  constexpr std::uint32_t kRanks = 100;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    node.waiting[rank] = 1000;
  for (int round = 0; round < 10; ++round)
    node.round(10'000);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    CHECK(node.sent[rank] == 1000);
}

TEST_CASE("busy ranks share evenly, for any small amounts of returned credit") {
  const auto seed = 20'261'121u;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  Node node;
  for (std::uint32_t rank = 0; rank < 8; ++rank)
    node.waiting[rank] = 1u << 30;
  for (int round = 0; round < 5000; ++round)
    node.round(1 + random() % (200u << 10));
  const auto [least, most] = std::minmax_element(
      node.sent.begin(), node.sent.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  CHECK(static_cast<double>(most->second) < 1.15 * static_cast<double>(least->second));
}

TEST_CASE("ranks that start and end keep the order of turns valid") {
  std::mt19937 random(11);
  OutputTurns turns;
  for (int round = 0; round < 2000; ++round) {
    std::vector<OutputTurns::Ready> ready;
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < 20; ++rank) {
      if (random() % 3 != 0) continue;
      ready.push_back({rank, random() % 3 == 0 ? random() % 300'000 : random() % 1000});
      ranks.push_back(rank);
    }
    const std::size_t room = random() % (1u << 20);
    std::size_t given = 0;
    std::vector<std::uint32_t> seen;
    for (const auto& turn : turns.round(ready, room)) {
      CHECK(turn.bytes > 0);
      given += turn.bytes;
      seen.push_back(turn.who);
    }
    CHECK(given <= room);
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    CHECK(std::includes(ranks.begin(), ranks.end(), seen.begin(), seen.end()));
  }
}

}  // namespace
}  // namespace ddp::launcher
