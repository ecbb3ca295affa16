#include "apps/train/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/model/model.h"
#include "apps/train/schedule/schedule.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

namespace ddp::train {
namespace {

struct End {
  std::vector<double> losses;
  std::vector<double> parameters, running;
  std::vector<bool> dropped;
};

/// Trains one epoch on `ranks` threads; returns each rank's result, in rank order.
template <class T = double>
std::vector<End> train(const TrainOptions& options, int ranks, const DataSplit& data) {
  std::vector<End> ends(ranks);
  ThreadWorld(ranks).run([&](ThreadWorld::Rank& rank) {
    ThreadPool threads(options.threads);
    ConvNet<T> model(options.batch_size, threads);
    model.initialise(static_cast<std::uint64_t>(options.seed));
    Trainer<T> trainer(options, {&rank, nullptr, nullptr}, model, data);
    End& end = ends[rank.rank()];
    const auto done = trainer.train_epoch([&](const StepReport& report) -> ddp::Result<bool> {
      end.losses.push_back(report.loss);
      end.dropped.push_back(report.dropped);
      return options.max_steps == 0 || report.total < options.max_steps;
    });
    if (!done) end.losses.clear();
    end.parameters.assign(model.parameters().begin(), model.parameters().end());
    end.running.assign(model.running_statistics().begin(), model.running_statistics().end());
  });
  return ends;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// A world of one with slow operations that record their time.
class SlowCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  ddp::Result<> all_reduce_sum(NumberSpan) override { return dawdle(); }
  ddp::Result<> broadcast(std::span<std::byte>, int) override { return dawdle(); }
  ddp::Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override {
    dawdle();
    return std::vector<std::uint64_t>(mine.begin(), mine.end());
  }
  ddp::Result<> barrier() override { return dawdle(); }

  double seconds = 0;

 private:
  ddp::Result<> dawdle() {
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {};
  }
};

/// A world with another node, which is lost.
class LostCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  ddp::Result<> all_reduce_sum(NumberSpan) override { return lost(); }
  ddp::Result<> broadcast(std::span<std::byte>, int) override { return lost(); }
  ddp::Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t>) override {
    return lost().error();
  }
  ddp::Result<> barrier() override { return lost(); }

 private:
  static ddp::Result<> lost() {
    return ddp::Error{ddp::ErrorCode::kLinkLost, "rank 0 lost rank 1 during all-reduce"};
  }
};

TEST_CASE("ranks end with equal weights, and accumulation equals more ranks except for the order of sums") {
  const DataSplit data = synthetic_data(48);
  TrainOptions options;
  options.batch_size = 4;
  const auto two = train(options, 2, data);
  REQUIRE(two[0].losses.size() == 6);
  CHECK(two[0].parameters == two[1].parameters);
  CHECK(two[0].losses == two[1].losses);

  options.zero = true;
  const auto sharded = train(options, 2, data);
  CHECK(sharded[0].parameters == sharded[1].parameters);
  CHECK(sharded[0].parameters == two[0].parameters);
  CHECK(largest_difference(sharded[0].losses, two[0].losses) < 1e-12);
}

TEST_CASE("ZeRO-1 equals plain AdamW, also with uneven shards and with clipping") {
  const DataSplit data = synthetic_data(30);
  TrainOptions options;
  options.batch_size = 2;
  options.update.kind = OptimizerKind::kAdamw;
  options.update.weight_decay = 0.01;
  options.lr.peak = 1e-3;
  options.update.clip_norm = 0.5;
  options.update.clip_value = 0.1;
  const auto plain = train(options, 3, data);
  options.zero = true;
  const auto sharded = train(options, 3, data);
  REQUIRE(plain[0].losses.size() == 5);
  CHECK(largest_difference(sharded[0].parameters, plain[0].parameters) <
        1e-9);  // the norm is summed in another order
  CHECK(sharded[0].parameters == sharded[2].parameters);
}

TEST_CASE("an injected NaN drops its step on all ranks and leaves all state unchanged") {
  const DataSplit data = synthetic_data(48);
  TrainOptions options;
  options.batch_size = 4;
  for (const bool zero : {false, true}) {
    options.zero = zero;
    options.inject_nan = InjectedNan{1, 3};
    options.max_steps = 2;
    const auto before = train(options, 2, data);
    options.max_steps = 3;
    const auto after = train(options, 2, data);
    for (const End& end : after)
      CHECK(end.dropped == std::vector<bool>{false, false, true});
    CHECK(after[0].parameters == before[0].parameters);
    CHECK(after[0].running == before[0].running);
    CHECK(after[1].parameters == before[0].parameters);
    options.max_steps = 0;
    const auto end = train(options, 2, data);
    CHECK(end[0].parameters == end[1].parameters);
    CHECK(std::isfinite(end[0].losses.back()));
  }
}

TEST_CASE("SyncBN over ranks equals one rank with the whole batch") {
  const DataSplit data = synthetic_data(48);
  TrainOptions options;
  options.max_steps = 4;
  options.batch_size = 12;
  const auto whole = train(options, 1, data);
  options.batch_size = 4;
  options.sync_bn = true;
  const auto parts = train(options, 3, data);
  CHECK(parts[0].running == parts[2].running);
  CHECK(largest_difference(parts[0].parameters, whole[0].parameters) < 1e-11);
  CHECK(largest_difference(parts[0].running, whole[0].running) < 1e-11);
  CHECK(largest_difference(parts[0].losses, whole[0].losses) < 1e-11);
  options.sync_bn = false;
  CHECK(largest_difference(train(options, 3, data)[0].parameters, whole[0].parameters) > 1e-6);
}

TEST_CASE("with --sync-every-inter ranks of a node are always equal, nodes after every K steps") {
  const DataSplit data = synthetic_data(256);
  TrainOptions options;
  options.batch_size = 8;
  options.sync_every_inter = 3;
  // Four ranks on two nodes: 0 and 1, 2 and 3.
  ThreadWorld world(4);
  ThreadWorld nodes[] = {ThreadWorld(2), ThreadWorld(2)}, between[] = {ThreadWorld(2), ThreadWorld(2)};
  std::vector<std::vector<std::vector<float>>> weights(4);  // by rank and step
  world.run([&](ThreadWorld::Rank& rank) {
    const int node = rank.rank() / 2, place = rank.rank() % 2;
    ThreadWorld::Rank in_node(nodes[node], place), across(between[place], node);
    ThreadPool threads(1);
    Mlp<float> model(16, 1, 8, threads);
    model.initialise(1);
    Trainer<float> trainer(options, {&rank, &in_node, &across}, model, data);
    const auto done = trainer.train_epoch([&](const StepReport&) -> ddp::Result<bool> {
      weights[rank.rank()].emplace_back(model.parameters().begin(), model.parameters().end());
      return true;
    });
    if (!done) weights[rank.rank()].clear();
    weights[rank.rank()].emplace_back(model.parameters().begin(), model.parameters().end());
  });
  REQUIRE(weights[0].size() == 9);
  for (std::size_t step = 0; step < 9; ++step) {
    INFO("after step " << step + 1);
    CHECK(weights[0][step] == weights[1][step]);
    CHECK(weights[2][step] == weights[3][step]);
    // Steps 3 and 6, and the end of the epoch.
    CHECK((weights[0][step] == weights[2][step]) == (step == 2 || step == 5 || step == 8));
  }
}

TEST_CASE("the average of the nodes is weighted by their ranks") {
  const DataSplit data = synthetic_data(16);
  TrainOptions options;
  options.sync_every_inter = 2;
  // Three ranks on the first node, one on the second.
  ThreadWorld world(4), nodes[] = {ThreadWorld(3), ThreadWorld(1)};
  std::vector<std::vector<double>> before(2), after(2);
  ThreadWorld(2).run([&](ThreadWorld::Rank& across) {
    const int node = across.rank();
    ThreadWorld::Rank in_world(world, 3 * node), in_node(nodes[node], 0);
    ThreadPool threads(1);
    Mlp<double> model(16, 1, 4, threads);
    model.initialise(static_cast<std::uint64_t>(node));
    before[node].assign(model.parameters().begin(), model.parameters().end());
    Trainer<double> trainer(options, {&in_world, &in_node, &across}, model, data);
    if (trainer.average_nodes()) after[node].assign(model.parameters().begin(), model.parameters().end());
  });
  REQUIRE(after[0].size() == before[0].size());
  CHECK(after[0] == after[1]);
  for (std::size_t i = 0; i < before[0].size(); ++i)
    before[0][i] = (3 * before[0][i] + before[1][i]) / 4;
  CHECK(largest_difference(after[0], before[0]) < 1e-15);
}

TEST_CASE("a step is reported even when the nodes' average after it fails") {
  const DataSplit data = synthetic_data(64);
  TrainOptions options;
  options.batch_size = 4;
  options.sync_every_inter = 3;
  options.rejoin = true;
  ThreadWorld world(2), node(1);
  ThreadPool threads(1);
  ConvNet<double> model(options.batch_size, threads);
  model.initialise(1);
  ThreadWorld::Rank in_world(world, 0), in_node(node, 0);
  LostCommunicator across;
  Trainer<double> trainer(options, {&in_world, &in_node, &across}, model, data);
  std::vector<std::uint64_t> reported;
  const auto done = trainer.train_epoch([&](const StepReport& report) -> ddp::Result<bool> {
    reported.push_back(report.total);
    return true;
  });
  CHECK(done.error().text == "rank 0 lost rank 1 during all-reduce of the nodes' average after step 3");
  CHECK(trainer.position().step == 3);
  CHECK(reported == std::vector<std::uint64_t>{1, 2, 3});
}

TEST_CASE("num_batches_tracked counts forward passes, as PyTorch does, without dropped steps") {
  const DataSplit data = synthetic_data(21);
  TrainOptions options;
  options.batch_size = 4;
  options.accumulate = 4;
  options.inject_nan = InjectedNan{0, 3};
  ThreadPool threads(1);
  ConvNet<double> model(options.batch_size, threads);
  model.initialise(1);
  model.batches() = 100;  // as after --init-from
  SingleCommunicator alone;
  Trainer<double> trainer(options, {&alone, nullptr, nullptr}, model, data);
  const auto go_on = [](const StepReport&) -> ddp::Result<bool> { return true; };
  // Six batches per epoch: a step of four and one of two. The third step is dropped with its statistics.
  REQUIRE(trainer.train_epoch(go_on).has_value());
  CHECK(model.batches() == 106);
  REQUIRE(trainer.train_epoch(go_on).has_value());
  CHECK(model.batches() == 108);
  CHECK(trainer.position().step == 4);
}

TEST_CASE("with warm-up the cosine starts at the peak, also after a change of the number of ranks") {
  const DataSplit data = synthetic_data(48);
  TrainOptions options;
  options.batch_size = 4;
  options.epochs = 2;
  options.lr = {LrShape::kCosine, 0.2, 4};
  ThreadPool threads(1);
  ConvNet<double> model(options.batch_size, threads);
  model.initialise(1);
  SingleCommunicator alone;
  std::vector<double> rates;
  Trainer<double> trainer(options, {&alone, nullptr, nullptr}, model, data);
  const auto until = [&rates](std::uint64_t last) {
    return [&rates, last](const StepReport& report) -> ddp::Result<bool> {
      rates.push_back(report.lr);
      return report.total < last;
    };
  };
  REQUIRE(trainer.train_epoch(until(6)).has_value());
  CHECK(trainer.position().warmed_up == 4.0 / 24);
  // Half of the first epoch is done; from here on two ranks share each step.
  trainer.position().segment_begin = 24;
  trainer.position().segment_step = 0;
  trainer.detach();
  ThreadWorld two(2);
  std::vector<double> rest[2];
  two.run([&](ThreadWorld::Rank& rank) {
    ThreadPool own(1);
    ConvNet<double> other(options.batch_size, own);
    other.initialise(1);
    Trainer<double> one(options, {&rank, nullptr, nullptr}, other, data);
    one.position() = trainer.position();
    std::vector<double>& mine = rest[rank.rank()];
    const auto note = [&mine](const StepReport& report) -> ddp::Result<bool> {
      mine.push_back(report.lr);
      return true;
    };
    if (!one.train_epoch(note) || !one.train_epoch(note)) mine.clear();
  });
  REQUIRE(rates.size() == 6);
  REQUIRE(rest[0].size() == 3 + 6);
  const auto cosine = [](double samples) {  // of 96, including 16 of warm-up
    return 0.1 * (1 + std::cos(std::acos(-1.0) * (samples - 16) / 80));
  };
  const double first[] = {0.05, 0.1, 0.15, 0.2, 0.2, cosine(20)};
  for (std::size_t i = 0; i < 6; ++i)
    CHECK(std::abs(rates[i] - first[i]) < 1e-15);
  for (std::size_t i = 0; i < 9; ++i)
    CHECK(std::abs(rest[0][i] - cosine(24 + 8 * static_cast<double>(i))) < 1e-15);
}

TEST_CASE("a change of the number of ranks gives every sample out exactly once") {
  std::vector<std::uint32_t> given;
  // Two steps of 4 ranks, then the rest with 3.
  for (int rank = 0; rank < 4; ++rank) {
    const auto order = sample_order({.samples = 103, .world_size = 4, .rank = rank, .seed = 3}, 1);
    REQUIRE(order.has_value());
    given.insert(given.end(), order->begin(), order->begin() + 2 * 7);
  }
  for (int rank = 0; rank < 3; ++rank) {
    const auto order =
        sample_order({.samples = 103, .world_size = 3, .rank = rank, .seed = 3, .begin = 56}, 1);
    REQUIRE(order.has_value());
    CHECK(order->size() == 16);  // 47 left, one repeated
    given.insert(given.end(), order->begin(), order->end());
  }
  std::vector<int> seen(103);
  for (const auto sample : given)
    ++seen[sample];
  CHECK(std::ranges::count(seen, 1) == 102);
  CHECK(std::ranges::count(seen, 2) == 1);
}

TEST_CASE("time in the communicator during forward and backward counts as communication") {
  const DataSplit data = synthetic_data(4);
  for (const bool sync_bn : {false, true}) {
    TrainOptions options;
    options.batch_size = 4;
    options.sync_bn = sync_bn;
    options.first_bucket_mb = options.bucket_cap_mb = 0;  // each tensor on its own
    ThreadPool threads(1);
    ConvNet<float> model(options.batch_size, threads);
    model.initialise(1);
    SlowCommunicator world;
    Trainer<float> trainer(options, {&world, nullptr, nullptr}, model, data);
    StepTimes times{};
    double slow = 0;
    const auto done = trainer.train_epoch([&](const StepReport& report) -> ddp::Result<bool> {
      times = report.times;
      slow = world.seconds;
      return false;
    });
    REQUIRE(done.has_value());
    REQUIRE(slow >= (sync_bn ? 0.08 : 0.04));
    CHECK(times[static_cast<std::size_t>(Phase::kCommunication)] >= slow);
  }
}

/// A model of four layers without arithmetic: backward reports its layers and writes a given value.
template <class T>
class ToyModel final : public Model<T> {
 public:
  ToyModel() : Model<T>({"toy", 0, {{"a", 0, 40}, {"b", 40, 30}, {"c", 70, 20}, {"d", 90, 10}}}) {}
  kernels::BatchScore forward(const T*, std::span<const std::uint8_t>) override { return {}; }
  void backward(const T*, int, const typename Model<T>::OnReady& on_ready) override {
    for (const TensorInfo& tensor : this->parameter_tensors() | std::views::reverse) {
      if (before_layer) before_layer(tensor.name);
      std::fill_n(this->gradients_.at(tensor.offset), tensor.size, value);
      on_ready(tensor.offset);
    }
  }
  kernels::BatchScore evaluate(const T*, std::span<const std::uint8_t>) override { return {}; }

  T value = 1;
  std::function<void(const std::string&)> before_layer;
};

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

constexpr double kMib = 1 << 20;

TEST_CASE("a bucket is sent before the backward pass of the next layer, in the last micro-batch only") {
  ThreadWorld(2).run([](ThreadWorld::Rank& rank) {
    ToyModel<float> model;
    TrainOptions options;
    options.bucket_cap_mb = 200 / kMib;
    options.first_bucket_mb = 44 / kMib;
    GradientSync<float> sync(options, model, rank);
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
        TrainOptions options;
        options.first_bucket_mb = 1 / kMib;
        options.zero = sharded;
        options.sync_bn = !overlap;
        GradientSync<double> sync(options, model, rank);
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
        TrainOptions options;
        options.first_bucket_mb = 1 / kMib;
        options.zero = sharded;
        options.update.clip_value = options.update.clip_norm = 1;
        GradientSync<float> sync(options, model, rank);
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
      TrainOptions options;
      options.zero = sharded;
      options.update.clip_value = 0.5;
      options.update.clip_norm = 1;
      GradientSync<double> sync(options, model, rank);
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

}  // namespace
}  // namespace ddp::train
