#include "apps/train/world/run_choice.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::train {
namespace {

const std::string kNccl = "NCCL 2.28.9 (/usr/lib/libnccl.so.2)";

RankAbility with_gpu(const std::string& host = "a", const std::string& nccl = kNccl) {
  return {host, "", "", "", nccl, "", "8 GPUs"};
}
RankAbility without_gpu(const std::string& host) {
  return {host, "no NVIDIA driver is installed", "no NVIDIA driver is installed", "", "", "", ""};
}
RankAbility without_nccl(const std::string& host) {
  return {host, "", "NCCL cannot be loaded: no such file", "", "", "", "8 GPUs"};
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

void check_refusal(const TrainOptions& options, const std::vector<RankAbility>& ranks,
                   const std::string& expected) {
  const auto choice = choose_run(options, ranks);
  REQUIRE(choice.has_error());
  CHECK(choice.error().code == ddp::ErrorCode::kUsage);
  CHECK(choice.error().text == expected);
}

constexpr auto kCpu = DeviceKind::kCpu, kGpu = DeviceKind::kGpu;
constexpr auto kAnyDevice = DeviceKind::kAuto;
constexpr auto kAnyComm = CommKind::kAuto, kOverNccl = CommKind::kNccl, kOverTcp = CommKind::kTcp;
const std::string kNoDriver = "no NVIDIA driver is installed";

const std::string kCpuInstead = "use the CPUs with --device cpu";
const std::string kSees = ", and rank 0 on a sees 8 GPUs; ";

TEST_CASE("--device auto uses GPUs and NCCL if every rank has both, and the CPU if no rank sees a GPU") {
  const auto any = options_with(kAnyDevice);
  check_choice(any, {with_gpu()}, {kGpu, kAnyComm, ""});
  check_choice(any, {without_gpu("a")}, {kCpu, kAnyComm, "rank 0 on a: " + kNoDriver});
  check_choice(any, {with_gpu(), with_gpu("b")}, {kGpu, kOverNccl, ""});
  check_choice(any, {without_gpu("a"), without_gpu("b"), without_gpu("c")},
               {kCpu, kAnyComm, "rank 0 on a: " + kNoDriver + "; and 2 more ranks"});
}

TEST_CASE("A visible GPU that cannot be used is an error, on whichever rank") {
  const auto any = options_with(kAnyDevice);
  const std::string usable = "give each rank a GPU that works, or " + kCpuInstead;
  check_refusal(any, {with_gpu(), without_gpu("b")}, "rank 1 on b: " + kNoDriver + kSees + usable);
  check_refusal(any, {without_gpu("b"), with_gpu(), without_gpu("b")},
                "rank 0 on b: " + kNoDriver + "; and 1 more rank, and rank 1 on a sees 8 GPUs; " + usable);
  auto old_driver = without_gpu("a");
  old_driver.visible = "8 GPUs";
  check_refusal(any, {old_driver}, "rank 0 on a: " + kNoDriver + kSees + usable);
  check_refusal(any, {with_gpu(), without_nccl("b")},
                "rank 1 on b: NCCL cannot be loaded: no such file" + kSees +
                    "install NCCL for every rank, or " + kCpuInstead);
}

TEST_CASE("One rank with another version of NCCL ends the job before it starts") {
  const std::vector<RankAbility> ranks{with_gpu("a"), with_gpu("b", "NCCL 2.26.2 (/opt/libnccl.so.2)")};
  const std::string obstacle = "rank 1 on b has NCCL 2.26.2, rank 0 on a has NCCL 2.28.9";
  const std::string remedy =
      "install the same version on all nodes, or name its file by DDPLAUNCH_NCCL_LIBRARY, or ";
  check_refusal(options_with(kAnyDevice), ranks, obstacle + kSees + remedy + kCpuInstead);
  check_refusal(options_with(kGpu), ranks, obstacle + "; " + remedy + "use the slow --comm shm or tcp");
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
  check_refusal(options_with(kAnyDevice), ranks,
                obstacle + kSees + "start one rank per GPU, or " + kCpuInstead);
  CHECK(choose_run(options_with(kAnyDevice, kOverNccl), ranks).error().text ==
        "--comm nccl: " + obstacle + "; start one rank per GPU, or use --share-gpu");
  check_refusal(options_with(kGpu), ranks, obstacle + "; start one rank per GPU, or " + kCpuInstead);
  for (RankAbility& rank : ranks)
    rank.gpu = "";  // --share-gpu
  check_choice(options_with(kAnyDevice), ranks, {kGpu, kOverNccl, ""});
}

TEST_CASE("--device gpu chooses NCCL") {
  check_choice(options_with(kGpu), {with_gpu(), with_gpu("b")}, {kGpu, kOverNccl, ""});
  check_choice(options_with(kGpu), {with_gpu()}, {kGpu, kAnyComm, ""});
  check_refusal(
      options_with(kGpu), {without_nccl("a"), with_gpu("b")},
      "rank 0 on a: NCCL cannot be loaded: no such file; install NCCL for every rank, or use the slow "
      "--comm shm or tcp");
}

TEST_CASE("Given options limit the choice") {
  check_choice(options_with(kAnyDevice, kOverTcp), {without_gpu("a"), without_gpu("b")},
               {kCpu, kOverTcp, "--comm tcp needs the CPU"});
  check_refusal(options_with(kAnyDevice, CommKind::kShm), {with_gpu(), with_gpu("b")},
                "--comm shm needs the CPU" + kSees + kCpuInstead);
  check_choice(options_with(kAnyDevice, kOverNccl), {with_gpu(), with_gpu("b")}, {kGpu, kOverNccl, ""});
  auto sync_bn = options_with(kAnyDevice);
  sync_bn.sync_bn = true;
  check_choice(sync_bn, {without_gpu("a")}, {kCpu, kAnyComm, "--sync-bn needs the CPU"});
  check_refusal(sync_bn, {with_gpu(), with_gpu("b")}, "--sync-bn needs the CPU" + kSees + kCpuInstead);
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
  const RankAbility ability{"host", "", "a\nreason", "GPU", "NCCL", "refused", "2 GPUs"};
  const RankAbility again = read_rank_ability(to_text(ability));
  CHECK(again.host == "host");
  CHECK(again.gpu_obstacle.empty());
  CHECK(again.nccl_obstacle.find('\n') == std::string::npos);
  CHECK(again.nccl_obstacle.starts_with("a"));
  CHECK(again.gpu == "GPU");
  CHECK(again.nccl == "NCCL");
  CHECK(again.refusal == "refused");
  CHECK(again.visible == "2 GPUs");
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

using std::chrono::milliseconds;

/// The store of all ranks. It can be closed, as when the rank that serves it ends.
class Board {
 public:
  ddp::Result<> share(const std::string& name, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (closed_) return ddp::Error{ddp::ErrorCode::kLinkLost, "the store is closed"};
    texts_[name] = text;
    changed_.notify_all();
    return {};
  }
  ddp::Result<std::string> find(const std::string& name, milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return closed_ || texts_.contains(name); });
    if (closed_) return ddp::Error{ddp::ErrorCode::kLinkLost, "the store is closed"};
    if (!texts_.contains(name)) return ddp::Error{ddp::ErrorCode::kTimeout, "no " + name};
    return texts_[name];
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> texts_;
  bool closed_ = false;
};

class BoardDirectory final : public PeerDirectory {
 public:
  explicit BoardDirectory(Board& board) : board_(board) {}
  ddp::Result<std::string> local_address() override { return std::string("127.0.0.1"); }
  ddp::Result<> share(const std::string& name, const std::string& text) override {
    return board_.share(name, text);
  }
  ddp::Result<std::string> find(const std::string& name, milliseconds timeout) override {
    return board_.find(name, timeout);
  }

 private:
  Board& board_;
};

struct Part {
  RankAbility ability{"host", "", "", "", "NCCL 2.28.9 (here)", "", ""};
  std::optional<RunChoice> held = {};
  bool comes = true;
};

GroupConfig one_of(int rank, int world_size) {
  GroupConfig ranks;
  ranks.rank = rank;
  ranks.world_size = world_size;
  return ranks;
}

/// Runs the ranks as threads. The deciding rank closes the store when it ends, and the others see that.
std::vector<std::string> results(const std::vector<Part>& parts, const TrainOptions& options,
                                 int deciding = 0, milliseconds timeout = milliseconds(20'000)) {
  Board board;
  std::vector<std::string> texts(parts.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      BoardDirectory directory(board);
      GroupConfig ranks = one_of(static_cast<int>(rank), static_cast<int>(parts.size()));
      ranks.start_timeout = timeout;
      if (!parts[rank].comes) return;
      const auto choice =
          agree_on_choice(ranks, deciding, directory, options, parts[rank].ability, parts[rank].held);
      texts[rank] = choice ? to_text(*choice) : "error: " + choice.error().text;
      if (!choice && ranks.rank == deciding) board.close();
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return texts;
}

using Texts = std::vector<std::string>;

TEST_CASE("All ranks get the choice of the deciding rank") {
  CHECK(results(std::vector<Part>(3), {}, 1) == Texts(3, "gpu\nnccl\n"));
  std::vector<Part> parts(3);
  parts[2].ability.gpu_obstacle = "no driver";
  CHECK(results(parts, {}) == Texts(3, "cpu\nauto\nrank 2 on host: no driver"));
}

TEST_CASE("All ranks get the same error, although the deciding rank closes the store") {
  TrainOptions options;
  options.dtype = Dtype::kBfloat16;
  std::vector<Part> parts(5);
  parts[1].ability.gpu_obstacle = "no driver";
  CHECK(results(parts, options) ==
        Texts(5, "error: --dtype bfloat16 requires --device gpu: rank 1 on host: no driver"));
}

TEST_CASE("A rank that does not come is named on all others") {
  std::vector<Part> parts(3);
  parts[1].comes = false;
  const std::string text = "error: rank 0: rank 1 has not reached the store in time; check that it started";
  CHECK(results(parts, {}, 0, milliseconds(50)) == Texts{text, "", text});
}

TEST_CASE("A rank that serves the store leaves it last") {
  Board board;
  std::atomic<bool> read = false;
  std::thread other([&] {
    BoardDirectory directory(board);
    read = directory.find("left/0", milliseconds(20'000)).has_value();  // rank 0 waits from here on
    leave_store(one_of(1, 2), directory, false);
  });
  BoardDirectory directory(board);
  leave_store(one_of(0, 2), directory, true);
  CHECK(read);
  other.join();
}

TEST_CASE("A rank that joins a choice of NCCL needs a GPU of its own") {
  Board board;
  BoardDirectory directory(board);
  RankAbility ability = Part().ability;
  for (int rank = 0; rank < 4; ++rank) {
    ability.gpu = "GPU " + std::to_string(rank % 3);
    REQUIRE(directory.share("ability/" + std::to_string(rank), to_text(ability)).has_value());
  }
  ability.gpu = "GPU 0";
  CHECK(check_own_gpu(one_of(3, 4), directory, ability, {2, 4}).has_value());  // another node has no such GPU
  CHECK(check_own_gpu(one_of(3, 4), directory, ability, {0, 4}).error().text ==
        "rank 3 on host: its GPU is also that of rank 0, and the job uses NCCL; give it a GPU of its own");
  CHECK(check_own_gpu(one_of(0, 4), directory, ability, {0, 3}).has_value());
  ability.gpu = "";  // --share-gpu
  CHECK(check_own_gpu(one_of(3, 4), directory, ability, {0, 4}).has_value());
}

TEST_CASE("A rank that refuses ends the wait of all others with its reason") {
  Board board;
  BoardDirectory directory(board);
  refuse_choice(one_of(1, 2), directory, "--comm is tcp on rank 1 and auto on rank 0");
  const auto choice = agree_on_choice(one_of(0, 2), 0, directory, {}, Part().ability, {});
  REQUIRE(choice.has_error());
  CHECK(choice.error().code == ddp::ErrorCode::kUsage);
  CHECK(choice.error().text == "--comm is tcp on rank 1 and auto on rank 0");
}

TEST_CASE("A later attempt keeps the device of the state, and chooses a transport that was left open") {
  std::vector<Part> parts(2);
  parts[1].held = RunChoice{DeviceKind::kCpu, CommKind::kAuto, ""};
  CHECK(results(parts, {}, 1) == Texts(2, "cpu\nauto\n"));
  parts[1].held = RunChoice{DeviceKind::kGpu, CommKind::kNccl, ""};
  parts[0].ability.gpu_obstacle = "no driver";
  CHECK(results(parts, {}, 1) == Texts(2, "gpu\nnccl\n"));
  parts[0].ability.gpu_obstacle = "";
  parts[1].held = RunChoice{DeviceKind::kGpu, CommKind::kAuto, ""};  // of a world of one
  CHECK(results(parts, {}, 1) == Texts(2, "gpu\nnccl\n"));
}

}  // namespace
}  // namespace ddp::train
