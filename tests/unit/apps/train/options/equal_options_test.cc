#include "apps/train/options/options.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/options/option_table.h"
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

TEST_CASE("each option that may change the result is named as unusual, also a new one") {
  const auto unusual = [](const std::vector<std::string>& words) {
    TrainOptions options;
    options.keeps_steps = true;
    ddp::OptionTable table("");
    declare_options(table, options);
    const auto errors = table.fill(words);
    return errors.empty() ? std::optional(unusual_options(options)) : std::nullopt;
  };
  CHECK(unusual({}) == std::vector<std::string>{});
  CHECK(*unusual({"--warmup-steps", "100000", "--weight-decay", "0.50", "--inject-nan", "1:4"}) ==
        std::vector<std::string>{"--warmup-steps 100000", "--weight-decay 0.5", "--inject-nan 1:4"});
  TrainOptions defaults;
  ddp::OptionTable table("");
  declare_options(table, defaults);
  std::string silent;
  for (const ddp::OptionGroup& group : table.groups()) {
    for (const ddp::Option& option : group.options) {
      const std::string name = ddp::split_names(option.names).front();
      std::vector<std::vector<std::string>> values{{}};
      if (option.takes_value()) values = {{"3"}, {"0.3"}, {"3:3"}, {"3s"}, {"x"}};
      for (std::size_t at = 0, end = 0; option.takes_value() && at < option.value.size(); at = end + 1) {
        end = std::min(option.value.find('|', at), option.value.size());
        values.push_back({option.value.substr(at, end - at)});
      }
      bool is_named = false;
      for (auto words : values) {
        words.insert(words.begin(), name);
        const auto found = unusual(words);
        is_named = is_named || (found && found->size() == 1 && found->front().starts_with(name)) ||
                   (found && name == "--model" && found->size() == 3);  // sizes and rate of the other model
      }
      if (!is_named) silent += name + ' ';
    }
  }
  // The length is open here. Of the rest, name an option only if it cannot change what is learnt.
  CHECK(silent ==
        "--read-flight-recorder --data --device --epochs --threads --kernels --bucket-cap-mb "
        "--first-bucket-mb --zero "
        "--comm --share-gpu --comm-timeout --export --checkpoint-dir --checkpoint-every --checkpoint-keep "
        "--log-interval --bar --metrics-file --profile --sample-log --flight-recorder -h -V ");
}

TEST_CASE("the MLP has a known result with one size and rate") {
  const auto unusual = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"train", "--model", "mlp"});
    return unusual_options(*parse_options(static_cast<int>(words.size()), words.data()).options);
  };
  using Names = std::vector<std::string>;
  CHECK(unusual({}) == Names{"--mlp-width 512", "--mlp-depth 2", "--lr 0.01"});
  CHECK(unusual({"--mlp-width", "2560", "--mlp-depth", "3", "--lr", "0.1"}).empty());
  CHECK(unusual({"--mlp-width", "2560", "--mlp-depth", "3", "--lr", "0.1", "--matmul-precision", "high"}) ==
        Names{"--matmul-precision high"});
}

TEST_CASE("--model auto is the MLP with a known result on GPUs, and the ConvNet on a CPU") {
  const auto taken = [](DeviceKind device, std::vector<const char*> words) {
    words.insert(words.begin(), "train");
    TrainOptions options = *parse_options(static_cast<int>(words.size()), words.data()).options;
    const std::string line = take_device(device, options);
    CHECK(options.device == device);
    return std::pair(options, line);
  };
  const auto [on_gpu, line] = taken(DeviceKind::kGpu, {});
  CHECK(on_gpu.model == ModelKind::kMlp);
  CHECK(line == "model mlp (--mlp-width 2560 --mlp-depth 3 --lr 0.1), the default on GPUs");
  CHECK(unusual_options(on_gpu).empty());
  const auto [on_cpu, no_line] = taken(DeviceKind::kCpu, {});
  CHECK(on_cpu.model == ModelKind::kConvNet);
  CHECK(on_cpu.lr.peak == 0.01);
  CHECK(no_line.empty());
  CHECK(unusual_options(on_cpu).empty());

  // What the user names stays.
  CHECK(unusual_options(taken(DeviceKind::kGpu, {"--lr", "0.01"}).first) ==
        std::vector<std::string>{"--lr 0.01"});
  const auto [named, says_nothing] = taken(DeviceKind::kGpu, {"--model", "convnet"});
  CHECK(named.model == ModelKind::kConvNet);
  CHECK(named.lr.peak == 0.01);
  CHECK(says_nothing.empty());
  CHECK(unusual_options(named).empty());
  CHECK(taken(DeviceKind::kGpu, {"--model", "mlp", "--mlp-width", "8"}).first.mlp_width == 8);
}

TEST_CASE("a chosen length of the training is unusual, also the default's") {
  const auto unusual = [](std::vector<const char*> words) {
    words.insert(words.begin(), "train");
    return unusual_options(*parse_options(static_cast<int>(words.size()), words.data()).options);
  };
  using Names = std::vector<std::string>;
  CHECK(unusual({}).empty());
  CHECK(unusual({"--epochs", "1"}) == Names{"--epochs 1"});
  CHECK(unusual({"--epochs", "3"}) == Names{"--epochs 3"});
  CHECK(unusual({"--limit", "400", "--max-steps", "6"}) == Names{"--limit 400", "--max-steps 6"});
  TrainOptions agreed;
  agreed.keeps_steps = true;
  agreed.epochs = 75;
  CHECK(unusual_options(agreed).empty());
}

TEST_CASE("a result below the known one is an error, where one is known") {
  constexpr std::array<std::uint32_t, 4> kFashion{0xae65dccd, 0x2ed6e46a, 0x12728439, 0x242bc73f};
  TrainOptions usual;
  usual.keeps_steps = true;
  for (const int world : {1, 10000}) {
    CHECK(judge_training(usual, kFashion, world, 80).text ==
          "80.0 % of the test images are right, at least 80 % are expected");
    CHECK(judge_training(usual, kFashion, world, 80).known.has_value());
    REQUIRE(!judge_training(usual, kFashion, world, 79.9).known.has_value());
    CHECK(judge_training(usual, kFashion, world, 79.9).known.error().text ==
          "79.9 % of the test images are right, and this training reaches 80 % on sound hardware: a device "
          "or the "
          "network of a rank is faulty");
  }
  TrainOptions large = usual;
  large.model = ModelKind::kMlp;
  large.mlp_width = 2560;
  large.mlp_depth = 3;
  large.lr.peak = 0.1;
  CHECK(!judge_training(large, kFashion, 64, 74.9).known.has_value());
  CHECK(judge_training(large, kFashion, 64, 75).known.has_value());

  const auto unknown = [&](const TrainOptions& options, int world, auto checksums) {
    const TrainingVerdict verdict = judge_training(options, checksums, world, 10);
    CHECK(verdict.known.has_value());
    return verdict.text.substr(verdict.text.find(';'));
  };
  CHECK(unknown(large, 65, kFashion) ==
        "; no known result for more than 64 ranks; --model convnet has one for any number");
  CHECK(unknown(usual, 1, std::array<std::uint32_t, 4>{1, 2, 3, 4}) ==
        "; no known result of images that are not Fashion-MNIST's");
  usual.lr.peak = 0.5;
  CHECK(unknown(usual, 1, kFashion) == "; no known result with --lr 0.5");
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

TEST_CASE("all ranks report the first rank that differs; one that joins a training is told alone") {
  for (const std::optional<int> from : {std::optional<int>(), std::optional(1)}) {
    ThreadWorld world(3);
    std::vector<std::string> said(3);
    world.run([&](ThreadWorld::Rank& rank) {
      const auto done = check_equal(rank, {{"--seed", rank.rank() == 0 ? "1" : "2"}}, from);
      said[static_cast<std::size_t>(rank.rank())] = done ? "" : done.error().text;
    });
    const std::string end = "; give all ranks the same value";
    CHECK(said == (from ? std::vector<std::string>{"--seed is 1 on rank 0 and 2 on rank 1" + end, "", ""}
                        : std::vector<std::string>(3, "--seed is 2 on rank 1 and 1 on rank 0" + end)));
  }
}
