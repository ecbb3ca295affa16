#include "apps/train/options/options.h"

#include <set>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

using namespace ddp::train;

namespace {

std::string difference_text(const TrainOptions& mine, const TrainOptions& of_rank_0) {
  const DataSplit data;
  return difference(equal_options(mine, data), 2, to_text(equal_options(of_rank_0, data)));
}

}  // namespace

TEST_CASE("an option that differs is named with both values and the rank") {
  TrainOptions zero, mine;
  CHECK(difference_text(mine, zero).empty());
  mine.seed = 4;
  CHECK(difference_text(mine, zero) ==
        "--seed is 4 on rank 2 and 0 on rank 0; give all ranks the same value");
  zero.lr.peak = 0.1;
  zero.seed = 4;
  CHECK(difference_text(mine, zero) ==
        "--lr is 0.01 on rank 2 and 0.1 on rank 0; give all ranks the same value");
  zero = mine;
  zero.device = DeviceKind::kGpu;
  zero.dtype = Dtype::kBfloat16;
  CHECK(difference_text(mine, zero) ==
        "--device is auto on rank 2 and gpu on rank 0; give all ranks the same value");
  mine.device = zero.device;
  CHECK(difference_text(mine, zero) ==
        "--dtype is float32 on rank 2 and bfloat16 on rank 0; give all ranks the same value");
  zero = mine;
  zero.checkpoint_dir = mine.checkpoint_dir = "/c";
  zero.resume = "/c";
  mine.resume = "auto";
  CHECK(difference_text(mine, zero) ==
        "--resume is auto on rank 2 and a path on rank 0; give all ranks the same value");
  mine.resume = "/another/place";
  CHECK(difference_text(mine, zero).empty());
  mine.resume = zero.resume = "";
  zero = mine;
  zero.export_to = "w";
  CHECK(difference_text(mine, zero) ==
        "--export is not given on rank 2 and a path on rank 0; give all ranks the same value");
}

TEST_CASE("a value has one text, however it was written") {
  const auto list_of = [](const char* rate) {
    const char* argv[] = {"train", "--lr", rate, "--sync-bn"};
    return to_text(equal_options(*parse_options(4, argv).options, DataSplit()));
  };
  CHECK(list_of("0.10") == list_of("0.1"));
  CHECK(list_of("0.1").find("--lr\n0.1\n") != std::string::npos);
  CHECK(list_of("0.1").find("--sync-bn\ngiven\n") != std::string::npos);
}

TEST_CASE("options of one rank or one node may differ") {
  TrainOptions zero, mine;
  mine.threads = 3;
  mine.log_interval = 1;
  mine.metrics_file = "m";
  mine.data = "/elsewhere";
  mine.kernels = "generic";
  zero.init_from = "/a/w";
  mine.init_from = "/b/w";
  CHECK(difference_text(mine, zero).empty());
}

TEST_CASE("option names are unique, and a rank with other option names is reported") {
  const auto list = equal_options(TrainOptions(), DataSplit());
  std::set<std::string> names;
  for (const EqualOption& option : list)
    CHECK(names.insert(option.name).second);
  CHECK(difference(list, 1, "--none\n1\n") ==
        "rank 1 has other options than rank 0; check that both run the same version of train");
  CHECK(difference(list, 1, "") ==
        "rank 1 has other options than rank 0; check that both run the same version of train");
}

TEST_CASE("a rank that joins a training with other options alone gets the error") {
  ThreadWorld world(3);
  std::vector<std::string> said(3);
  world.run([&](ThreadWorld::Rank& rank) {
    const auto done = check_equal(rank, {{"--seed", rank.rank() == 0 ? "1" : "2"}}, 1);
    said[static_cast<std::size_t>(rank.rank())] = done ? "" : done.error().text;
  });
  CHECK(said == std::vector<std::string>{
                    "--seed is 1 on rank 0 and 2 on rank 1; give all ranks the same value", "", ""});
}

TEST_CASE("all ranks report the first rank that differs") {
  ThreadWorld world(3);
  std::vector<std::string> said(3);
  world.run([&](ThreadWorld::Rank& rank) {
    const auto done = check_equal(rank, {{"--seed", rank.rank() == 0 ? "1" : "2"}});
    said[static_cast<std::size_t>(rank.rank())] = done ? "" : done.error().text;
  });
  CHECK(said ==
        std::vector<std::string>(3, "--seed is 2 on rank 1 and 1 on rank 0; give all ranks the same value"));
}
