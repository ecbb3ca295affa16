#include "apps/train/schedule/schedule.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "apps/train/data/hash.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/train/model/approx.h"

namespace ddp::train {
namespace {

TEST_CASE("the learning rate rises, stays constant, or falls along a cosine") {
  const LrSchedule plain{LrShape::kConstant, 0.5, 0};
  CHECK(plain.rate(0, 0, 0) == 0.5);
  CHECK(plain.rate(1000, 1, 0) == 0.5);

  const LrSchedule warm{LrShape::kConstant, 0.5, 4};
  CHECK(warm.rate(0, 0, 0) == Approx(0.125));
  CHECK(warm.rate(3, 0.1, 0) == Approx(0.5));
  CHECK(warm.rate(4, 0.1, 0.1) == Approx(0.5));

  const LrSchedule cosine{LrShape::kCosine, 0.2, 0};
  CHECK(cosine.rate(0, 0, 0) == 0.2);
  CHECK(cosine.rate(50, 0.5, 0) == Approx(0.1));
  CHECK(cosine.rate(75, 0.75, 0) == Approx(0.2 * 0.146446609).epsilon(1e-7));
  CHECK(cosine.rate(99, 1, 0) == Approx(0).margin(1e-12));
  CHECK(cosine.rate(99, 1.5, 0) == Approx(0).margin(1e-12));
}

TEST_CASE("warm-up and cosine equal PyTorch's SequentialLR and reach the peak") {
  // torch 1.13: SequentialLR([LinearLR(start_factor=1/4, total_iters=3), CosineAnnealingLR(T_max=8)],
  // milestones=[4])
  const double torch[] = {0.050000000000000003, 0.10000000000000001,  0.15000000000000002,
                          0.20000000000000001,  0.20000000000000001,  0.19238795325112867,
                          0.17071067811865476,  0.13826834323650899,  0.10000000000000001,
                          0.06173165676349103,  0.029289321881345254, 0.0076120467488713268};
  const LrSchedule schedule{LrShape::kCosine, 0.2, 4};
  for (int step = 0; step < static_cast<int>(std::size(torch)); ++step) {
    INFO("step " << step);
    CHECK(schedule.rate(step, step / 12.0, 4 / 12.0) == Approx(torch[step]).epsilon(1e-14).margin(1e-16));
  }
  // A warm-up as long as the training leaves no cosine.
  CHECK(schedule.rate(4, 1, 1) == Approx(0).margin(1e-12));
}

std::uint64_t hash_of(const std::vector<std::uint32_t>& numbers) {
  std::uint64_t hash = kFnvStart;
  for (const std::uint32_t number : numbers) {
    const std::byte bytes[] = {std::byte(number), std::byte(number >> 8), std::byte(number >> 16),
                               std::byte(number >> 24)};
    hash = fnv_hash(bytes, hash);
  }
  return hash;
}

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

}  // namespace
}  // namespace ddp::train
