#include "apps/train/ring_schedule.h"

#include <string>
#include <utility>
#include <vector>

#include "apps/train/peer_hello.h"
#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

/// Runs a schedule of all ranks without IO: part p of rank r is a text of the contributions in it.
std::vector<std::vector<std::string>> play(const std::vector<std::vector<RingStep>>& schedules,
                                           std::vector<std::vector<std::string>> parts) {
  const int world = static_cast<int>(schedules.size());
  for (std::size_t s = 0; s < schedules[0].size(); ++s) {
    const auto before = parts;
    for (int rank = 0; rank < world; ++rank) {
      const RingStep& step = schedules[rank][s];
      const RingStep& from = schedules[(rank + world - 1) % world][s];
      REQUIRE(step.receive == from.send);  // what comes is what the previous rank sends
      const std::string& arrived = before[(rank + world - 1) % world][from.send];
      parts[rank][step.receive] = step.add ? arrived + parts[rank][step.receive] : arrived;
    }
  }
  return parts;
}

}  // namespace

TEST_CASE("all-reduce gives every rank every part, each summed in one order") {
  for (int world = 1; world <= 7; ++world) {
    std::vector<std::vector<RingStep>> schedules;
    std::vector<std::vector<std::string>> parts;
    for (int rank = 0; rank < world; ++rank) {
      schedules.push_back(ring_all_reduce(rank, world));
      CHECK(schedules.back().size() == static_cast<std::size_t>(2 * (world - 1)));
      parts.emplace_back(world, std::string(1, static_cast<char>('a' + rank)));
    }
    const auto result = play(schedules, parts);
    for (int rank = 0; rank < world; ++rank) {
      CHECK(result[rank] == result[0]);
      for (const auto& part : result[rank]) {
        CHECK(part.size() == static_cast<std::size_t>(world));  // every rank once
        for (int r = 0; r < world; ++r)
          CHECK(part.find(static_cast<char>('a' + r)) != std::string::npos);
      }
    }
  }
}

TEST_CASE("all-gather gives every rank every part") {
  for (int world = 1; world <= 5; ++world) {
    std::vector<std::vector<RingStep>> schedules;
    std::vector<std::vector<std::string>> parts(world, std::vector<std::string>(world));
    for (int rank = 0; rank < world; ++rank) {
      schedules.push_back(ring_all_gather(rank, world));
      parts[rank][rank] = std::to_string(rank);
    }
    for (const auto& all : play(schedules, parts)) {
      for (int rank = 0; rank < world; ++rank)
        CHECK(all[rank] == std::to_string(rank));
    }
  }
}

TEST_CASE("a broadcast passes each rank once and stops before its root") {
  CHECK(ring_broadcast(2, 4, 2) == std::vector<RingStep>{{0, RingStep::kNothing, false}});
  CHECK(ring_broadcast(3, 4, 2) ==
        std::vector<RingStep>{{RingStep::kNothing, 0, false}, {0, RingStep::kNothing, false}});
  CHECK(ring_broadcast(1, 4, 2) == std::vector<RingStep>{{RingStep::kNothing, 0, false}});
  CHECK(ring_broadcast(0, 1, 0).empty());
}

TEST_CASE("parts cover the buffer, larger ones first, empty ones last") {
  const auto part = [](std::size_t count, int parts, int n) {
    const RingPart p = ring_part(count, parts, n);
    return std::pair(p.begin, p.size);
  };
  using P = std::pair<std::size_t, std::size_t>;
  CHECK(part(7, 3, 0) == P(0, 3));
  CHECK(part(7, 3, 1) == P(3, 2));
  CHECK(part(7, 3, 2) == P(5, 2));
  CHECK(part(2, 3, 2) == P(2, 0));
  CHECK(part(0, 3, 1) == P(0, 0));
}

TEST_CASE("a hello survives its encoding; a stray one does not") {
  const PeerHello hello{job_number("job-1"), 3, 4, 2, 8};
  auto bytes = encode_hello(hello);
  REQUIRE(decode_hello(bytes).has_value());
  CHECK(*decode_hello(bytes) == hello);
  bytes[8] = std::byte{9};  // another version
  CHECK_FALSE(decode_hello(bytes).has_value());
  bytes = encode_hello(hello);
  bytes[0] = std::byte{'G'};
  CHECK_FALSE(decode_hello(bytes).has_value());
}
