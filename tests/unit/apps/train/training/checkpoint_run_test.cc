#include "apps/train/training/checkpoint_run.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/model/model.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

using namespace ddp::train;

namespace {

/// Wraps a communicator whose last operations fail: with the same error on all ranks, as after a revoke.
class Ending final : public Communicator {
 public:
  Ending(Communicator& inner, int good) : inner_(inner), left_(good) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  ddp::Result<> all_reduce_sum(NumberSpan values) override {
    return values.typed([this](auto numbers) { return sum(numbers); });
  }
  ddp::Result<> broadcast(std::span<std::byte> data, int root) override {
    if (auto fails = ends()) return *fails;
    return inner_.broadcast(data, root);
  }
  ddp::Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override {
    if (auto fails = ends()) return *fails;
    return inner_.all_gather(mine);
  }
  ddp::Result<> barrier() override { return inner_.barrier(); }

 private:
  std::optional<ddp::Error> ends() {
    if (left_-- > 0) return std::nullopt;
    return ddp::Error{ddp::ErrorCode::kCancelled, "rank was revoked during it"};
  }
  template <class T>
  ddp::Result<> sum(std::span<T> values) {
    if (auto fails = ends()) {
      std::ranges::fill(values, T(-7));  // buffers are undefined after an error
      return *fails;
    }
    return inner_.all_reduce_sum(values);
  }

  Communicator& inner_;
  int left_;
};

TrainOptions small_options() {
  TrainOptions options;
  options.batch_size = 4;
  options.rejoin = true;
  options.update.kind = OptimizerKind::kAdamw;
  return options;
}

/// A rank's training, with everything that survives in the process.
struct Rank {
  Rank(const TrainOptions& options, const DataSplit& data)
      : model(options.batch_size, threads), trainer(options, model, data) {
    model.initialise(1);
  }
  /// Trains in a world of one.
  void train(std::uint64_t steps) {
    trainer.attach({&alone, nullptr, nullptr});
    REQUIRE(trainer
                .train_epoch([&](const StepReport& report) -> ddp::Result<bool> {
                  marks.last = report;
                  return report.total < steps;
                })
                .has_value());
    trainer.detach();
    marks.world_size = 1;
  }
  std::vector<double> numbers() {
    const auto parameters = model.parameters();
    std::vector<double> all(parameters.begin(), parameters.end());
    for (const auto& one : trainer.optimizer().state())
      all.insert(all.end(), one.values.begin(), one.values.end());
    return all;
  }
  std::vector<double> running() {
    return {model.running_statistics().begin(), model.running_statistics().end()};
  }

  ThreadPool threads{1};
  SingleCommunicator alone;
  ConvNet<double> model;
  Trainer<double> trainer;
  TrainingMarks marks;
};

}  // namespace

TEST_CASE("a new rank and a rank that is behind take the state of the most advanced rank") {
  const DataSplit data = synthetic_data(64);
  const TrainOptions options = small_options();
  Rank fresh(options, data), behind(options, data), ahead(options, data), same(options, data);
  behind.train(2);
  ahead.train(3);
  same.train(3);
  same.model.running_statistics()[0] = 42;  // from its own batches
  ahead.marks.tested_epochs = 5;
  Rank* ranks[] = {&fresh, &behind, &ahead, &same};
  std::vector<std::string> errors(4);
  ThreadWorld(4).run([&](ThreadWorld::Rank& world) {
    Rank& rank = *ranks[world.rank()];
    rank.trainer.attach({&world, nullptr, nullptr});
    const auto done =
        share_state(options, world, 2, &rank != &fresh, data.training.size(), rank.trainer, rank.marks);
    if (!done) errors[static_cast<std::size_t>(world.rank())] = done.error().text;
  });
  CHECK(errors == std::vector<std::string>(4));
  for (Rank* rank : ranks) {
    CHECK(rank->numbers() == ahead.numbers());
    CHECK(rank->trainer.optimizer().steps() == 3);
    CHECK(rank->trainer.position().step == 3);
    // One rank had used 12 samples; four ranks continue behind them.
    CHECK(rank->trainer.position().segment_begin == 12);
    CHECK(rank->trainer.position().segment_step == 0);
    CHECK(rank->marks.world_size == 4);
    CHECK(rank->marks.tested_epochs == 5);
    CHECK(rank->marks.last.loss == ahead.marks.last.loss);
    if (rank != &same) CHECK(rank->running() == ahead.running());
  }
  CHECK(same.running()[0] == 42);
}

TEST_CASE("with an unchanged number of ranks the segment continues") {
  const DataSplit data = synthetic_data(64);
  const TrainOptions options = small_options();
  Rank fresh(options, data), ahead(options, data);
  ahead.train(3);
  ahead.marks.world_size = 2;
  Rank* ranks[] = {&fresh, &ahead};
  ThreadWorld(2).run([&](ThreadWorld::Rank& world) {
    Rank& rank = *ranks[world.rank()];
    rank.trainer.attach({&world, nullptr, nullptr});
    const auto done =
        share_state(options, world, 1, &rank == &ahead, data.training.size(), rank.trainer, rank.marks);
    if (!done) rank.marks.world_size = -1;
  });
  for (Rank* rank : ranks) {
    CHECK(rank->marks.world_size == 2);
    CHECK(rank->trainer.position().segment_begin == 0);
    CHECK(rank->trainer.position().segment_step == 3);
  }
}

TEST_CASE("a hand-over that is revoked at any point changes nothing") {
  const DataSplit data = synthetic_data(64);
  const TrainOptions options = small_options();
  for (int good = 0; good < 3; ++good) {
    INFO("after " << good << " operations");
    Rank behind(options, data), ahead(options, data);
    behind.train(2);
    ahead.train(3);
    const auto numbers = behind.numbers(), running = behind.running();
    Rank* ranks[] = {&ahead, &behind};
    std::vector<ddp::ErrorCode> codes(2, ddp::ErrorCode::kInternal);
    ThreadWorld(2).run([&](ThreadWorld::Rank& world) {
      Rank& rank = *ranks[world.rank()];
      Ending ending(world, good);
      rank.trainer.attach({&ending, nullptr, nullptr});
      const auto done = share_state(options, ending, 0, true, data.training.size(), rank.trainer, rank.marks);
      if (!done) codes[static_cast<std::size_t>(world.rank())] = done.error().code;
      rank.trainer.detach();
    });
    CHECK(codes == std::vector<ddp::ErrorCode>(2, ddp::ErrorCode::kCancelled));
    CHECK(behind.numbers() == numbers);
    CHECK(behind.running() == running);
    CHECK(behind.trainer.position().step == 2);
    CHECK(behind.trainer.optimizer().steps() == 2);
    CHECK(behind.marks.world_size == 1);
  }
}

TEST_CASE("unequal weights of one step, and a source without a state, are errors") {
  const DataSplit data = synthetic_data(64);
  const TrainOptions options = small_options();
  Rank one(options, data), other(options, data);
  one.train(1);
  other.train(1);
  other.model.parameters()[5] += 1;
  Rank* ranks[] = {&one, &other};
  for (const bool held : {true, false}) {
    std::vector<ddp::Error> errors(2);
    ThreadWorld(2).run([&](ThreadWorld::Rank& world) {
      Rank& rank = *ranks[world.rank()];
      rank.trainer.attach({&world, nullptr, nullptr});
      const auto done = share_state(options, world, 0, held || &rank == &other, data.training.size(),
                                    rank.trainer, rank.marks);
      if (!done) errors[static_cast<std::size_t>(world.rank())] = done.error();
    });
    for (const ddp::Error& error : errors) {
      CHECK(error.code == (held ? ddp::ErrorCode::kInternal : ddp::ErrorCode::kProtocol));
      CHECK(error.text ==
            (held ? "weights differ after step 1: those of rank 1 are not those of rank 0"
                  : "rank 0 holds no state of the training, although the launcher chose it as the source"));
    }
  }
}

#ifndef __SANITIZE_THREAD__  // there is one thread, and every revoke takes minutes
TEST_CASE("a step that is revoked at any point leaves no trace") {
  const DataSplit data = synthetic_data(64);
  for (const int kind : {0, 1, 2, 3}) {
    TrainOptions options = small_options();
    options.accumulate = kind == 1 ? 2 : 1;
    options.sync_bn = kind == 2;
    options.sync_every_inter = kind == 3 ? 2 : 1;
    options.first_bucket_mb = options.bucket_cap_mb = 0;  // each tensor has its own all-reduce
    for (int good = 0;; ++good) {
      INFO("kind " << kind << " after " << good << " operations");
      Rank rank(options, data), undisturbed(options, data);
      rank.train(1);
      undisturbed.train(1);
      Ending ending(rank.alone, good);
      Communicators communicators{&ending, nullptr, nullptr};
      if (kind == 3) communicators = {&rank.alone, nullptr, &ending};
      rank.trainer.attach(communicators);
      const auto done =
          rank.trainer.train_epoch([](const StepReport&) -> ddp::Result<bool> { return false; });
      if (done) break;
      REQUIRE(good < 100);
      const std::uint64_t step = kind == 3 ? 2 : 1;  // the nodes' average follows the update
      rank.trainer.detach();
      CHECK(rank.trainer.position().step == step);
      if (step == 1) {
        CHECK(rank.numbers() == undisturbed.numbers());
        CHECK(rank.running() == undisturbed.running());
      }
      CHECK(std::ranges::count(rank.numbers(), -7.0) == 0);
      CHECK(std::ranges::count(rank.running(), -7.0) == 0);
      // The training can continue.
      Rank whole(options, data);
      whole.train(3);
      rank.train(3);
      CHECK(rank.numbers() == whole.numbers());
      CHECK(rank.running() == whole.running());
    }
  }
}
#endif
