// The test between epochs on an emulated GPU: it reads the state where it is, and copies none of it.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/model/model.h"
#include "apps/train/training/trainer.h"
#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::train;

namespace {

constexpr int kBatch = 6, kWidth = 20, kDepth = 1;

/// A training of one rank, made of whole steps on the GPU.
struct Training {
  explicit Training(bool mlp) {
    options.batch_size = kBatch;
    options.epochs = 2;
    auto made = make_device_model<double>(mlp ? mlp_layout(kWidth, kDepth) : conv_net_layout(), {kBatch});
    REQUIRE(made.has_value());
    model = std::move(*made);
    model->initialise(3);
    trainer = std::make_unique<Trainer<double>>(options, Communicators{&alone, nullptr, nullptr, -1, 0},
                                                *model, data);
  }
  void train_epoch() {
    REQUIRE(trainer->train_epoch([](const StepReport&) -> Result<bool> { return true; }).has_value());
  }
  std::uint64_t correct() {
    REQUIRE(trainer->average_running_statistics().has_value());
    const auto tested = trainer->evaluate();
    REQUIRE(tested.has_value());
    CHECK(tested->total == data.test.size());
    return tested->correct;
  }

  TrainOptions options;
  DataSplit data = synthetic_data(40);
  SingleCommunicator alone;
  std::unique_ptr<Model<double>> model;
  std::unique_ptr<Trainer<double>> trainer;
};

bool are_zero(std::span<const double> numbers) {
  return std::ranges::all_of(numbers, [](double number) { return number == 0; });
}

}  // namespace

TEST_CASE("the test after an epoch reads the GPU's state and leaves the host's alone") {
  ::unsetenv("CUDA_VISIBLE_DEVICES");  // the run of all tests hides the machine's own GPUs
  for (const bool mlp : {false, true}) {
    INFO((mlp ? "mlp" : "convnet"));
    Training fetches(mlp), stays(mlp);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (Training* one : {&fetches, &stays})
        one->train_epoch();
      fetches.trainer->model();  // copies the state to the host, so the test sends it back
      const auto host = stays.model->parameters();
      std::ranges::fill(host, 0.0);  // stale; a test that reads or sends it shows
      CHECK(stays.correct() == fetches.correct());
      CHECK(are_zero(host));
    }
    CHECK(stays.trainer->weights_hash() == fetches.trainer->weights_hash());
    // The host has the state now, and may change it.
    std::ranges::fill(stays.trainer->model().parameters(), 0.0);
    const auto zeros = std::ranges::count(stays.data.test.labels, 0);  // all logits are equal: class 0
    CHECK(stays.correct() == static_cast<std::uint64_t>(zeros));
  }
}
