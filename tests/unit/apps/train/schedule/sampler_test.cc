#include "apps/train/schedule/schedule.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "apps/train/data/hash.h"
#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

std::uint64_t hash_of(const std::vector<std::uint32_t>& numbers) {
  std::uint64_t hash = kFnvStart;
  for (const std::uint32_t number : numbers) {
    const std::byte bytes[] = {std::byte(number), std::byte(number >> 8), std::byte(number >> 16),
                               std::byte(number >> 24)};
    hash = fnv_hash(bytes, hash);
  }
  return hash;
}

}  // namespace

TEST_CASE("the order equals that of PyTorch's DistributedSampler") {
  std::ifstream file(DDP_SOURCE_DIR "/tests/unit/apps/train/testdata/sampler_vectors.txt");
  REQUIRE(file);
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    SamplerConfig config;
    std::int64_t epoch = 0;
    std::size_t count = 0;
    std::string colon, hash;
    words >> config.samples >> config.world_size >> config.rank >> config.seed >> epoch >> colon >> count >>
        hash;
    REQUIRE(colon == ":");
    INFO(line);
    const auto order = sample_order(config, epoch);
    REQUIRE(order.has_value());
    REQUIRE(order->size() == count);
    CHECK(samples_per_rank(config) == count);
    std::uint32_t first = 0;
    for (std::size_t i = 0; words >> first; ++i)
      CHECK((*order)[i] == first);
    CHECK(hash_of(*order) == std::stoull(hash, nullptr, 16));
    ++cases;
  }
  CHECK(cases > 150);
}

TEST_CASE("all ranks together see every sample, and padding repeats at most world - 1 samples") {
  std::vector<int> seen(101);
  for (int rank = 0; rank < 8; ++rank) {
    const auto order = sample_order({.samples = 101, .world_size = 8, .rank = rank, .seed = 5}, 2);
    REQUIRE(order.has_value());
    CHECK(order->size() == 13);
    for (const auto sample : *order)
      ++seen[sample];
  }
  CHECK(std::ranges::count(seen, 1) == 101 - 3);
  CHECK(std::ranges::count(seen, 2) == 3);
}

TEST_CASE("no samples and too many samples are errors") {
  CHECK(sample_order({.samples = 0}, 0).error().text == "the data set has no samples");
  CHECK(sample_order({.samples = 214'748'364}, 0).error().text ==
        "the data set has 214748364 samples; the sampler's limit is 214748363");
  CHECK(sample_order({.samples = 5, .begin = 6}, 0).error().text ==
        "sample 6 of 5 is not a valid first sample");
  CHECK(samples_per_rank({.samples = 5, .begin = 6}) == 0);
  CHECK(sample_order({.samples = 5, .begin = 5}, 0)->empty());
}
