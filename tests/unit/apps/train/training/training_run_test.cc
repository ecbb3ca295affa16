#include "apps/train/training/training_run.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

using namespace ddp::train;

namespace {

std::string host() {
  char name[256] = {};
  REQUIRE(::gethostname(name, sizeof name - 1) == 0);
  return std::string(" (") + name + ")";
}

/// Returns each rank's error text.
std::vector<std::string> errors_by_rank(const std::vector<std::array<std::uint32_t, 4>>& checksums,
                                        std::optional<int> from = {}) {
  ThreadWorld world(static_cast<int>(checksums.size()));
  std::vector<std::string> said(checksums.size());
  world.run([&](ThreadWorld::Rank& rank) {
    DataSplit data;
    data.checksums = checksums[static_cast<std::size_t>(rank.rank())];
    const auto done = check_equal_data(rank, data, from);
    said[static_cast<std::size_t>(rank.rank())] = done ? "" : done.error().text;
  });
  return said;
}

}  // namespace

TEST_CASE("The default training keeps its number of steps on any number of ranks") {
  const TrainOptions options;  // 600 steps of 100 images on one rank
  for (const auto& [ranks, epochs] :
       std::map<int, int>{{1, 1}, {2, 1}, {4, 1}, {5, 2}, {8, 2}, {64, 15}, {512, 75}})
    CHECK(kept_epochs(60'000, ranks, options) == epochs);
  CHECK(kept_epochs(400, 1, options) == 1);  // never more steps than one rank makes
  CHECK(kept_epochs(400, 4, options) == 4);
  CHECK(kept_epochs(1, 8, options) == 1);
}

TEST_CASE("when a rank has the state, only ranks with other data are named, with both checksums") {
  const std::string here = host();
  const std::string first = "the training labels (train-labels-idx1-ubyte) of rank ";
  const std::string state =
      here + ", with which the training was begun, 00000002; give all nodes the same data";
  using Texts = std::vector<std::string>;
  CHECK(errors_by_rank({{1, 2, 3, 4}, {1, 2, 3, 4}}, 1) == Texts{"", ""});
  // The majority does not decide here.
  CHECK(errors_by_rank({{1, 9, 3, 4}, {1, 0xabcdef, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 5}}, 2) ==
        Texts{first + "0" + here + " have the CRC-32 00000009, and those of rank 2" + state,
              first + "1" + here + " have the CRC-32 00abcdef, and those of rank 2" + state, "",
              "the test labels (t10k-labels-idx1-ubyte) of rank 3" + here +
                  " have the CRC-32 00000005, and those of rank 2" + here +
                  ", with which the training was begun, 00000004; give all nodes the same data"});
}

TEST_CASE("ranks with other data are named with host and file; the majority counts as right") {
  const auto mismatch_text = [](const std::vector<std::array<std::uint32_t, 4>>& checksums) {
    const auto said = errors_by_rank(checksums);
    CHECK(said == std::vector<std::string>(checksums.size(), said[0]));
    return said[0];
  };
  CHECK(mismatch_text({{1, 2, 3, 4}, {1, 2, 3, 4}}).empty());
  const std::string here = host();
  CHECK(mismatch_text({{1, 9, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4}, {1, 8, 3, 4}}) ==
        "the training labels (train-labels-idx1-ubyte) of rank 0" + here + ", rank 3" + here +
            " are not those of rank 1" + here + "; give all nodes the same data");
  std::vector<std::array<std::uint32_t, 4>> many(21, {1, 2, 3, 4});
  std::fill_n(many.begin() + 11, 10, std::array<std::uint32_t, 4>{1, 2, 0, 4});
  const std::string text = mismatch_text(many);
  CHECK(text.starts_with("the test images (t10k-images-idx3-ubyte) of rank 11 ("));
  CHECK(text.find(", rank 18" + here + " and 2 more are not those of rank 0" + here) != std::string::npos);
}
