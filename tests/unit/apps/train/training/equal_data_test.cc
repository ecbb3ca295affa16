#include "apps/train/training/equal_data.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

using namespace ddp::train;

TEST_CASE("ranks with other data are named with their hosts and the file; what most have is right") {
  char host[256] = {};
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  const auto told = [](std::vector<std::array<std::uint32_t, 4>> checksums) {
    const int ranks = static_cast<int>(checksums.size());
    ThreadWorld world(ranks);
    std::vector<std::string> said(checksums.size());
    world.run([&](ThreadWorld::Rank& rank) {
      DataSplit data;
      data.checksums = checksums[static_cast<std::size_t>(rank.rank())];
      const auto done = check_equal_data(rank, data);
      said[static_cast<std::size_t>(rank.rank())] = done ? "" : done.error().text;
    });
    CHECK(said == std::vector<std::string>(checksums.size(), said[0]));
    return said[0];
  };
  CHECK(told({{1, 2, 3, 4}, {1, 2, 3, 4}}).empty());
  const std::string here = std::string(" (") + host + ")";
  CHECK(told({{1, 9, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4}, {1, 8, 3, 4}}) ==
        "the training labels (train-labels-idx1-ubyte) of rank 0" + here + ", rank 3" + here +
            " are not those of rank 1" + here + "; give all nodes the same data");
  std::vector<std::array<std::uint32_t, 4>> many(21, {1, 2, 3, 4});
  std::fill_n(many.begin() + 11, 10, std::array<std::uint32_t, 4>{1, 2, 0, 4});
  const std::string text = told(many);
  CHECK(text.starts_with("the test images (t10k-images-idx3-ubyte) of rank 11 ("));
  CHECK(text.find(", rank 18" + here + " and 2 more are not those of rank 0" + here) != std::string::npos);
}
