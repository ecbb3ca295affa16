#include "apps/train/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "apps/train/model/model.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

using namespace ddp::train;

namespace {

/// A model of four layers without arithmetic: backward reports its layers and writes a given value.
template <class T>
class ToyModel final : public Model<T> {
 public:
  ToyModel() : Model<T>(100, 0) {}
  std::string_view name() const override { return "toy"; }
  int image_border() const override { return 0; }
  const std::vector<TensorInfo>& parameter_tensors() const override { return tensors_; }
  const std::vector<TensorInfo>& running_tensors() const override { return none_; }
  std::vector<std::string> counter_names() const override { return {}; }
  kernels::BatchScore forward(const T*, std::span<const std::uint8_t>) override { return {}; }
  void backward(const T*, int, const typename Model<T>::OnReady& on_ready) override {
    for (auto tensor = tensors_.rbegin(); tensor != tensors_.rend(); ++tensor) {
      if (before_layer) before_layer(tensor->name);
      std::fill_n(this->gradients_.at(tensor->offset), tensor->size, value);
      on_ready(tensor->offset);
    }
  }
  kernels::BatchScore evaluate(const T*, std::span<const std::uint8_t>) override { return {}; }

  T value = 1;
  std::function<void(const std::string&)> before_layer;

 private:
  std::vector<TensorInfo> tensors_{{"a", 0, 40}, {"b", 40, 30}, {"c", 70, 20}, {"d", 90, 10}};
  std::vector<TensorInfo> none_;
};

}  // namespace

TEST_CASE("buckets go from the end to the beginning, the first one small, and no tensor is divided") {
  const std::vector<TensorInfo> tensors{{"a", 0, 40}, {"b", 40, 30}, {"c", 70, 20}, {"d", 90, 10}};
  const auto text = [&](std::size_t first, std::size_t cap) {
    std::string result;
    for (const GradientBucket& bucket : plan_buckets(tensors, 1, 4, first, cap))
      result += std::to_string(bucket.begin) + "-" + std::to_string(bucket.end) + " ";
    return result;
  };
  CHECK(text(1 << 20, 1 << 20) == "0-101 ");
  CHECK(text(44, 1 << 20) == "90-101 0-90 ");
  CHECK(text(0, 0) == "90-101 70-90 40-70 0-40 ");
  CHECK(text(44, 200) == "90-101 40-90 0-40 ");  // 50 elements are 200 bytes
  CHECK(text(44, 199) == "90-101 70-90 40-70 0-40 ");
  CHECK(text(124, 100) == "70-101 40-70 0-40 ");  // a tensor larger than the cap has its own bucket
  CHECK(plan_buckets({}, 1, 4, 1, 1).empty());
}

TEST_CASE("a bucket is sent before the backward pass of the next layer, in the last micro-batch only") {
  ThreadWorld(2).run([](ThreadWorld::Rank& rank) {
    ToyModel<float> model;
    GradientSync<float> sync({.bucket_bytes = 200, .first_bucket_bytes = 44}, model, rank);
    model.before_layer = [&](const std::string& name) { rank.events.push_back("backward " + name); };
    sync.begin_step(2);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      model.backward(nullptr, 1, [&](std::size_t begin) { sync.ready(begin); });
      sync.end_of_micro_batch();
    }
    rank.events.push_back("finish");
    const auto reduced = sync.finish();
    const std::vector<std::string> expected{"backward d", "backward c", "backward b", "backward a",
                                            "backward d", "start 11",   "backward c", "backward b",
                                            "start 50",   "backward a", "start 40",   "finish",
                                            "wait 1",     "wait 2",     "wait 3"};
    if (rank.rank() == 0) {
      REQUIRE(reduced.has_value());
      CHECK(rank.events == expected);
      CHECK(std::ranges::all_of(model.gradients(), [](float g) { return g == 1; }));
    }
  });
}

TEST_CASE("the loss and the gradient are means over micro-batches and ranks") {
  for (const bool sharded : {false, true}) {
    for (const bool overlap : {false, true}) {
      ThreadWorld(3).run([&](ThreadWorld::Rank& rank) {
        ToyModel<double> model;
        GradientSync<double> sync({.first_bucket_bytes = 1, .sharded = sharded, .overlap = overlap}, model,
                                  rank);
        double loss = 0;
        for (int step = 0; step < 2; ++step) {
          sync.begin_step(4);
          for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
            model.value = rank.rank() + 10 * micro_batch;
            model.gradients_and_loss().back() = 2 * model.value;  // the loss, known before backward begins
            model.backward(nullptr, 1, [&](std::size_t begin) { sync.ready(begin); });
            sync.end_of_micro_batch();
          }
          const auto reduced = sync.finish();
          loss = reduced.has_value() && reduced->finite ? reduced->loss : -1;
        }
        const auto part = sync.own_part();
        const auto gradients = sync.own_gradients();
        static std::mutex one_at_a_time;
        const std::lock_guard lock(one_at_a_time);
        INFO("sharded " << sharded << " overlap " << overlap);
        CHECK(loss == 32);
        CHECK(gradients.size() == part.end - part.begin);
        CHECK(part.end - part.begin == (sharded ? 34u : 100u));
        for (std::size_t i = 0; i < gradients.size(); ++i)
          CHECK(gradients[i] == (part.begin + i < 100 ? 16 : 0));
      });
    }
  }
}

TEST_CASE("a NaN of one rank drops the step on all ranks, in every mode") {
  for (const bool sharded : {false, true}) {
    for (const std::size_t place : {0, 55, 99}) {
      ThreadWorld(3).run([&](ThreadWorld::Rank& rank) {
        ToyModel<float> model;
        GradientSync<float> sync(
            {.first_bucket_bytes = 1, .sharded = sharded, .clip_value = 1, .clip_norm = 1}, model, rank);
        sync.begin_step(1);
        model.backward(nullptr, 1, [&](std::size_t begin) {
          if (rank.rank() == 1 && begin <= place)
            model.gradients()[place] = std::numeric_limits<float>::quiet_NaN();
          sync.ready(begin);
        });
        sync.end_of_micro_batch();
        const auto reduced = sync.finish();
        static std::mutex one_at_a_time;
        const std::lock_guard lock(one_at_a_time);
        INFO("rank " << rank.rank() << " sharded " << sharded << " place " << place);
        REQUIRE(reduced.has_value());
        CHECK_FALSE(reduced->finite);
      });
    }
  }
}

TEST_CASE("clipping is by value first, then by norm, with and without shards") {
  for (const bool sharded : {false, true}) {
    ThreadWorld(2).run([&](ThreadWorld::Rank& rank) {
      ToyModel<double> model;
      model.value = 4;
      GradientSync<double> sync({.sharded = sharded, .clip_value = 0.5, .clip_norm = 1}, model, rank);
      sync.begin_step(1);
      model.backward(nullptr, 1, [&](std::size_t begin) { sync.ready(begin); });
      sync.end_of_micro_batch();
      const auto reduced = sync.finish();
      static std::mutex one_at_a_time;
      const std::lock_guard lock(one_at_a_time);
      REQUIRE(reduced.has_value());
      CHECK(std::abs(reduced->norm - 5) < 1e-12);  // 100 times 0.5
      CHECK(std::abs(sync.own_gradients()[0] - 0.1) < 1e-6);
    });
  }
}
