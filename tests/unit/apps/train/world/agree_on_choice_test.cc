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

using namespace ddp::train;
using std::chrono::milliseconds;

namespace {

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
  RankAbility ability{"host", "", "", "", "NCCL 2.28.9 (here)", ""};
  std::optional<RunChoice> held = {};
  bool comes = true;
};

/// Runs the ranks as threads. The deciding rank closes the store when it ends, and the others see that.
std::vector<std::string> results(const std::vector<Part>& parts, const TrainOptions& options,
                                 int deciding = 0, milliseconds timeout = milliseconds(20'000)) {
  Board board;
  std::vector<std::string> texts(parts.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      BoardDirectory directory(board);
      const ChoiceRanks ranks{static_cast<int>(rank), static_cast<int>(parts.size()), deciding, timeout};
      if (!parts[rank].comes) return;
      const auto choice = agree_on_choice(ranks, directory, options, parts[rank].ability, parts[rank].held);
      texts[rank] = choice ? to_text(*choice) : "error: " + choice.error().text;
      if (!choice && ranks.rank == deciding) board.close();
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

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
    leave_store({1, 2}, directory, false);
  });
  BoardDirectory directory(board);
  leave_store({0, 2}, directory, true);
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
  CHECK(check_own_gpu({3, 4}, directory, ability, {2, 4}).has_value());  // another node has no such GPU
  CHECK(check_own_gpu({3, 4}, directory, ability, {0, 4}).error().text ==
        "rank 3 on host: its GPU is also that of rank 0, and the job uses NCCL; give it a GPU of its own");
  CHECK(check_own_gpu({0, 4}, directory, ability, {0, 3}).has_value());
  ability.gpu = "";  // --share-gpu
  CHECK(check_own_gpu({3, 4}, directory, ability, {0, 4}).has_value());
}

TEST_CASE("A rank that refuses ends the wait of all others with its reason") {
  Board board;
  BoardDirectory directory(board);
  refuse_choice({1, 2}, directory, "--comm is tcp on rank 1 and auto on rank 0");
  const auto choice = agree_on_choice({0, 2, 0, milliseconds(20'000)}, directory, {}, Part().ability, {});
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
