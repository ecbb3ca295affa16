#include "apps/train/collectives/communicator.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

using namespace ddp::train;
using ddp::Error;
using ddp::ErrorCode;
using ddp::Result;

namespace {

constexpr int kRanks = 3;

/// Returns each rank's outcome as text; "" for success.
template <class Share>
std::vector<std::string> outcome_texts(ThreadWorld& world, Share share) {
  std::vector<std::string> texts(kRanks);
  world.run([&](ThreadWorld::Rank& rank) {
    const Result<> outcome = share(rank);
    if (!outcome) texts[static_cast<std::size_t>(rank.rank())] = outcome.error().text;
  });
  return texts;
}

}  // namespace

TEST_CASE("the lowest rank's failure is reported on all ranks") {
  for (const int first : {0, 1, kRanks}) {
    ThreadWorld world(kRanks);
    const auto texts = outcome_texts(world, [first](ThreadWorld::Rank& rank) {
      const Result<> bad = Error{ErrorCode::kSystem, "of rank " + std::to_string(rank.rank())};
      return share_outcome(rank, rank.rank() >= first ? bad : Result<>());
    });
    CHECK(texts ==
          std::vector<std::string>(kRanks, first == kRanks ? "" : "of rank " + std::to_string(first)));
  }
}

TEST_CASE("ranks synchronize repeatedly while one of them is at work") {
  using namespace std::chrono_literals;
  for (const int slow : {0, 2}) {
    ThreadWorld world(kRanks);
    const auto texts = outcome_texts(world, [&](ThreadWorld::Rank& rank) {
      const auto work = [&, number = rank.rank()]() -> Result<> {
        while (number == slow && world.gathers < 4 * kRanks)
          std::this_thread::yield();
        if (number == 0) return Error{ErrorCode::kSystem, "full"};
        return {};
      };
      return share_outcome(rank, work, 1ms);
    });
    CHECK(world.gathers >= 4 * kRanks);
    CHECK(texts == std::vector<std::string>(kRanks, "full"));
  }
}

TEST_CASE("ranks wait until the last one is done, and each is asked once per round") {
  using namespace std::chrono_literals;
  ThreadWorld world(kRanks);
  std::vector<int> asked(kRanks);
  const auto texts = outcome_texts(world, [&](ThreadWorld::Rank& rank) {
    const auto number = static_cast<std::size_t>(rank.rank());
    return meet_until(
        rank,
        [&asked, number](std::chrono::milliseconds) { return ++asked[number] > static_cast<int>(number); },
        1ms);
  });
  CHECK(asked == std::vector<int>(kRanks, kRanks));
  CHECK(texts == std::vector<std::string>(kRanks));
}
