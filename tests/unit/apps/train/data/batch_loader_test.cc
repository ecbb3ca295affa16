#include "apps/train/data/dataset.h"

#include <numeric>

#include "apps/train/data/image_size.h"
#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("batches come in the given order, the last one smaller") {
  const DataSplit data = synthetic_data(50);
  std::vector<std::uint32_t> order(23);
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<std::uint32_t>(i * 7 % 50);
  BatchLoader<float> loader(data.training, order, 4, 2);
  REQUIRE(loader.batches() == 6);
  std::vector<float> expected(4 * kPaddedPixels);
  std::vector<std::uint8_t> labels(4);
  for (std::size_t batch = 0; batch < 6; ++batch) {
    const auto& got = loader.next();
    const auto samples = std::span(order).subspan(batch * 4, batch == 5 ? 3 : 4);
    REQUIRE(std::vector(got.samples.begin(), got.samples.end()) ==
            std::vector(samples.begin(), samples.end()));
    const std::size_t size = samples.size();
    fill_batch<float>(data.training, samples, 2, expected.data(), std::span(labels).first(size));
    CHECK(got.labels == std::vector<std::uint8_t>(labels.begin(), labels.begin() + static_cast<long>(size)));
    CHECK(std::equal(got.images.data(), got.images.data() + size * kPaddedPixels, expected.data()));
  }
}

TEST_CASE("a loader may be destroyed in the middle") {
  const DataSplit data = synthetic_data(50);
  std::vector<std::uint32_t> order(50);
  std::iota(order.begin(), order.end(), 0u);
  BatchLoader<double> untouched(data.training, order, 1, 0);
  BatchLoader<double> begun(data.training, order, 1, 0);
  CHECK(begun.next().samples[0] == 0);
}

TEST_CASE("images that are generated on demand equal those in memory") {
  const DataSplit stored = synthetic_data(2'000), drawn = synthetic_data(300'000'000);
  REQUIRE_FALSE(stored.training.draw);
  REQUIRE(drawn.training.draw);
  CHECK(drawn.training.size() == 300'000'000);
  CHECK(drawn.test.size() == 10'000);
  const std::vector<std::uint32_t> samples{0, 1'999, 17};
  std::vector<float> a(3 * kImagePixels), b(3 * kImagePixels);
  std::vector<std::uint8_t> of_a(3), of_b(3);
  fill_batch<float>(stored.training, samples, 0, a.data(), of_a);
  fill_batch<float>(drawn.training, samples, 0, b.data(), of_b);
  CHECK(a == b);
  CHECK(of_a == of_b);
  fill_batch<float>(drawn.training, std::vector<std::uint32_t>{299'999'999}, 0, b.data(),
                    std::span(of_b).first(1));
  CHECK(a != b);
}
