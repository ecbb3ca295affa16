#include "apps/train/world/run_choice.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

const std::string kNccl = "NCCL 2.28.9 (/usr/lib/libnccl.so.2)";

RankAbility with_gpu(const std::string& host = "a", const std::string& nccl = kNccl) {
  return {host, "", "", "", nccl, ""};
}
RankAbility without_gpu(const std::string& host) {
  return {host, "no NVIDIA driver is installed", "no NVIDIA driver is installed", "", "", ""};
}
RankAbility without_nccl(const std::string& host) {
  return {host, "", "NCCL cannot be loaded: no such file", "", "", ""};
}

TrainOptions options_with(DeviceKind device, CommKind comm = CommKind::kAuto) {
  TrainOptions options;
  options.device = device;
  options.comm = comm;
  return options;
}

struct Expected {
  DeviceKind device;
  CommKind comm;
  std::string obstacle;
};
void check_choice(const TrainOptions& options, const std::vector<RankAbility>& ranks,
                  const Expected& expected) {
  const auto choice = choose_run(options, ranks);
  REQUIRE(choice.has_value());
  CHECK(choice->device == expected.device);
  CHECK(choice->comm == expected.comm);
  CHECK(choice->obstacle == expected.obstacle);
}

constexpr auto kCpu = DeviceKind::kCpu, kGpu = DeviceKind::kGpu;
constexpr auto kAnyDevice = DeviceKind::kAuto;
constexpr auto kAnyComm = CommKind::kAuto, kOverNccl = CommKind::kNccl, kOverTcp = CommKind::kTcp;
const std::string kNoDriver = "no NVIDIA driver is installed";

}  // namespace

TEST_CASE("--device auto uses GPUs and NCCL if every rank has both") {
  const auto any = options_with(kAnyDevice);
  check_choice(any, {with_gpu()}, {kGpu, kAnyComm, ""});
  check_choice(any, {without_gpu("a")}, {kCpu, kAnyComm, "rank 0 on a: " + kNoDriver});
  check_choice(any, {with_gpu(), with_gpu("b")}, {kGpu, kOverNccl, ""});
  check_choice(any, {with_gpu(), without_gpu("b")}, {kCpu, kAnyComm, "rank 1 on b: " + kNoDriver});
  check_choice(any, {without_gpu("a"), with_gpu(), without_gpu("b")},
               {kCpu, kAnyComm, "rank 0 on a: " + kNoDriver + "; and 1 more rank"});
  check_choice(any, {without_gpu("a"), without_gpu("b"), without_gpu("c")},
               {kCpu, kAnyComm, "rank 0 on a: " + kNoDriver + "; and 2 more ranks"});
  check_choice(any, {with_gpu(), without_nccl("b")},
               {kCpu, kAnyComm, "rank 1 on b: NCCL cannot be loaded: no such file"});
}

TEST_CASE("Ranks with different versions of NCCL do not use it") {
  const std::vector<RankAbility> ranks{with_gpu("a"), with_gpu("b", "NCCL 2.26.2 (/opt/libnccl.so.2)")};
  const std::string obstacle = "rank 1 on b has NCCL 2.26.2, rank 0 on a has NCCL 2.28.9";
  check_choice(options_with(kAnyDevice), ranks, {kCpu, kAnyComm, obstacle});
  check_choice(options_with(kGpu), ranks, {kGpu, kAnyComm, obstacle});
  // The place of the file does not matter.
  check_choice(options_with(kAnyDevice), {with_gpu("a"), with_gpu("b", "NCCL 2.28.9 (/opt/libnccl.so.2)")},
               {kGpu, kOverNccl, ""});
}

TEST_CASE("Ranks that have one and the same GPU do not use NCCL") {
  std::vector<RankAbility> ranks{with_gpu("a"), with_gpu("a"), with_gpu("b"), with_gpu("a")};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    ranks[rank].gpu = "UUID " + std::to_string(rank);
  check_choice(options_with(kAnyDevice), ranks, {kGpu, kOverNccl, ""});
  ranks[3].gpu = ranks[1].gpu;
  const std::string obstacle = "rank 3 on a: its GPU is also that of rank 1";
  check_choice(options_with(kAnyDevice), ranks, {kCpu, kAnyComm, obstacle});
  CHECK(choose_run(options_with(kAnyDevice, kOverNccl), ranks).error().text ==
        "--comm nccl: " + obstacle + "; start one rank per GPU, or use --share-gpu");
  check_choice(options_with(kGpu), ranks, {kGpu, kAnyComm, obstacle});
  for (RankAbility& rank : ranks)
    rank.gpu = "";  // --share-gpu
  check_choice(options_with(kAnyDevice), ranks, {kGpu, kOverNccl, ""});
}

TEST_CASE("--device gpu chooses NCCL, or falls back to the transports of the CPU") {
  check_choice(options_with(kGpu), {with_gpu(), with_gpu("b")}, {kGpu, kOverNccl, ""});
  check_choice(options_with(kGpu), {with_gpu()}, {kGpu, kAnyComm, ""});
  check_choice(options_with(kGpu), {without_nccl("a"), with_gpu("b")},
               {kGpu, kAnyComm, "rank 0 on a: NCCL cannot be loaded: no such file"});
}

TEST_CASE("Given options limit the choice") {
  check_choice(options_with(kAnyDevice, kOverTcp), {with_gpu(), with_gpu("b")},
               {kCpu, kOverTcp, "--comm tcp needs the CPU"});
  check_choice(options_with(kAnyDevice, CommKind::kShm), {with_gpu(), with_gpu("b")},
               {kCpu, CommKind::kShm, "--comm shm needs the CPU"});
  check_choice(options_with(kAnyDevice, kOverNccl), {with_gpu(), with_gpu("b")}, {kGpu, kOverNccl, ""});
  auto sync_bn = options_with(kAnyDevice);
  sync_bn.sync_bn = true;
  check_choice(sync_bn, {with_gpu(), with_gpu("b")}, {kCpu, kAnyComm, "--sync-bn needs the CPU"});
  auto bf16 = options_with(kAnyDevice);
  bf16.dtype = Dtype::kBfloat16;
  check_choice(bf16, {with_gpu()}, {kGpu, kAnyComm, ""});
  const std::vector<RankAbility> one{without_gpu("a")};
  const auto refused = choose_run(bf16, one);
  REQUIRE(refused.has_error());
  CHECK(refused.error().text == "--dtype bfloat16 requires --device gpu: rank 0 on a: " + kNoDriver);
}

TEST_CASE("A world of one has no transport that needs the CPU") {
  check_choice(options_with(kAnyDevice, kOverTcp), {with_gpu()}, {kGpu, kOverTcp, ""});
}

TEST_CASE("Only auto leaves a choice") {
  CHECK(leaves_choice(options_with(kAnyDevice)));
  CHECK(leaves_choice(options_with(kAnyDevice, kOverTcp)));
  CHECK(leaves_choice(options_with(kGpu)));
  CHECK_FALSE(leaves_choice(options_with(kGpu, kOverNccl)));
  CHECK_FALSE(leaves_choice(options_with(kCpu)));
}

TEST_CASE("Abilities and choices survive the store") {
  const RankAbility ability{"host", "", "a\nreason", "GPU", "NCCL", "refused"};
  const RankAbility again = read_rank_ability(to_text(ability));
  CHECK(again.host == "host");
  CHECK(again.gpu_obstacle.empty());
  CHECK(again.nccl_obstacle.find('\n') == std::string::npos);
  CHECK(again.nccl_obstacle.starts_with("a"));
  CHECK(again.gpu == "GPU");
  CHECK(again.nccl == "NCCL");
  CHECK(again.refusal == "refused");
  for (const DeviceKind device : {kCpu, kGpu}) {
    for (const CommKind comm : {kAnyComm, kOverTcp, CommKind::kShm, kOverNccl}) {
      const auto choice = read_run_choice(to_text(RunChoice{device, comm, "why"}));
      REQUIRE(choice.has_value());
      CHECK(choice->device == device);
      CHECK(choice->comm == comm);
      CHECK(choice->obstacle == "why");
    }
  }
  for (const char* text : {"", "cpu", "auto\nauto\n", "cpu\nmpi\n", "0\n0\n"}) {
    CAPTURE(text);
    CHECK(read_run_choice(text).has_error());
  }
}

TEST_CASE("An error survives the store with its kind") {
  for (const ddp::ErrorCode code : {ddp::ErrorCode::kUsage, ddp::ErrorCode::kTimeout}) {
    const auto read = read_run_choice(to_text(ddp::Error{code, "why"}));
    REQUIRE(read.has_error());
    CHECK(read.error().code == code);
    CHECK(read.error().text == "why");
  }
}

TEST_CASE("One line tells what was chosen and why") {
  CHECK(choice_line({kGpu, kOverNccl, ""}, kNccl) == "device gpu, " + kNccl);
  CHECK(choice_line({kGpu, kAnyComm, ""}, "none") == "device gpu");
  CHECK(choice_line({kCpu, kAnyComm, "rank 1 on b: why"}, "shm+tcp") ==
        "device cpu, shm+tcp (rank 1 on b: why)");
}
