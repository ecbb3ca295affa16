// Compares training steps on an emulated GPU with the CPU's trainer.

#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/gpu/device_net.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"
#include "tests/support/catch.h"
#include "tests/support/fake_cuda.h"

using namespace ddp;
using namespace ddp::train;

namespace {

constexpr std::size_t kBatch = 6, kImages = 20;  // four steps, the last of two images
constexpr double kRate = 0.05;

/// An all-reduce over two equal ranks, which doubles the numbers. If `lost` is set, it writes wrong numbers
/// and wait() fails.
class TwoEqualRanks final : public SingleCommunicator {
 public:
  int world_size() const override { return 2; }
  bool has_device_operations() const override { return true; }
  Result<> enqueue_on_device(const DeviceOperation& operation, void* stream) override {
    REQUIRE((operation.kind == CollectiveKind::kAllReduce && operation.type == NumberType::kFloat64));
    ++enqueued;
    stream_of_sums = stream;
    fake_cuda_enqueue(
        static_cast<cudaStream_t>(stream), [this] { return !hangs; }, nullptr);
    return cuda_check(fake_cuda_call(static_cast<cudaStream_t>(stream),
                                     [this, operation] {
                                       const auto end = std::chrono::steady_clock::now() + duration;
                                       while (std::chrono::steady_clock::now() < end) {
                                       }
                                       auto* const values = static_cast<double*>(operation.data);
                                       for (std::size_t i = 0; i < operation.count; ++i)
                                         values[i] = lost ? 7e30 : values[i] + values[i];
                                     }),
                      "fake_cuda_call");
  }
  void launched(const DeviceOperation& operation) override {
    bytes_launched += operation.count * sizeof(double);
  }
  Result<> wait_for_device(const IsDeviceDone& done, std::string_view operation) override {
    if (lost) return Error{ErrorCode::kLinkLost, "a rank is lost during " + std::string(operation)};
    for (;;) {
      const auto complete = done();
      if (!complete) return complete.error();
      if (*complete) return {};
    }
  }
  void on_end(GraphOwner owner) override { owners.push_back(std::move(owner)); }

  std::chrono::milliseconds duration{0};  ///< of an all-reduce, at least
  bool lost = false;
  bool hangs = false;  ///< the stream stands still in the all-reduce
  int enqueued = 0;
  void* stream_of_sums = nullptr;
  std::size_t bytes_launched = 0;
  std::vector<GraphOwner> owners;
};

/// One rank's model on the GPU, and the model and optimizer that its trainer keeps on the host.
struct TestRank {
  explicit TestRank(OptimizerSettings settings = {}) : optimizer(settings, ConvNet<double>::kParameters) {
    auto made = DeviceNet<double>::make(conv_net_on_device<double>(kBatch));
    REQUIRE(made.has_value());
    net = std::move(*made);
    model.initialise(3);
    auto own = NetSteps<double>::make(*net, model);
    REQUIRE(own.has_value());
    steps = std::move(*own);
  }
  std::vector<double> weights() {
    REQUIRE(steps->move_state_to_host(optimizer).has_value());
    const auto all = model.parameters();
    std::vector<double> numbers(all.begin(), all.end());
    for (const auto& one : optimizer.state())
      numbers.insert(numbers.end(), one.values.begin(), one.values.end());
    numbers.insert(numbers.end(), model.running_statistics().begin(), model.running_statistics().end());
    return numbers;
  }

  ThreadPool one{1};
  ConvNet<double> model{static_cast<int>(kBatch), one};
  Optimizer<double> optimizer;
  std::unique_ptr<DeviceNet<double>> net;
  std::unique_ptr<NetSteps<double>> steps;
};

Dataset images() {
  return synthetic_data(kImages).training;
}

/// Returns the images of `all`, generated on demand.
Dataset drawn_images(const Dataset& all) {
  Dataset drawn = all;
  drawn.draw = [&all](std::size_t number, std::uint8_t* image) {
    std::copy_n(all.images.data() + number * kImagePixels, kImagePixels, image);
    return all.labels[number];
  };
  drawn.drawn = kImages;
  drawn.images = {};
  drawn.labels = {};
  return drawn;
}

std::vector<std::uint32_t> backwards() {
  std::vector<std::uint32_t> order(kImages);
  std::iota(order.rbegin(), order.rend(), 0u);
  return order;
}

/// Trains one epoch with at most `most` steps in flight, and returns the loss of each step. The step
/// `nan_step` gets a NaN.
std::vector<double> train_epoch(TestRank& rank, const Dataset& data, std::size_t most,
                                std::uint64_t until_read, std::uint64_t nan_step = 1000,
                                std::size_t batches = 1) {
  auto epoch = DeviceEpoch<double>::begin(*rank.steps, data, backwards(), kBatch, batches,
                                          rank.model.image_border(), most);
  REQUIRE(epoch.has_value());
  std::vector<double> losses;
  std::size_t images = 0;
  while ((*epoch)->steps_left() != 0) {
    const std::uint64_t step = losses.size();
    const auto plan = [&](std::uint64_t ahead, std::span<const std::uint32_t> samples) {
      CHECK(samples.front() == kImages - 1 - (step + ahead) * kBatch * batches);
      const bool injected = step + ahead == nan_step;
      return DeviceStep{
          .lr = kRate / static_cast<double>(1 + step + ahead), .as_graph = !injected, .inject_nan = injected};
    };
    REQUIRE((*epoch)->launch_ahead(until_read, plan).has_value());
    CHECK(rank.steps->in_flight() <= most);
    const auto outcome = (*epoch)->finish();
    REQUIRE(outcome.has_value());
    CHECK(outcome->finite == (step != nan_step));
    losses.push_back(outcome->loss);
    images += (*epoch)->images();
  }
  CHECK(images == kImages);
  return losses;
}

/// Trains the same epoch on the CPU as the trainer does, and returns the loss of each step.
std::vector<double> train_on_host(TestRank& rank, const Dataset& data, double clip_norm = 0,
                                  std::size_t batches = 1) {
  const auto order = backwards();
  std::vector<double> losses;
  AlignedBuffer<double> batch(kBatch * kPaddedPixels);
  std::vector<std::uint8_t> labels(kBatch);
  for (std::size_t first = 0; first < kImages; first += kBatch * batches) {
    const auto step = std::span(order).subspan(first, std::min(kBatch * batches, kImages - first));
    std::vector<double> sum(ConvNet<double>::kParameters + 1);
    double count = 0;
    for (auto rest = step; !rest.empty(); rest = rest.subspan(std::min(kBatch, rest.size()))) {
      const auto samples = rest.first(std::min(kBatch, rest.size()));
      fill_batch<double>(data, samples, kImageBorder, batch.data(), std::span(labels).first(samples.size()));
      rank.model.forward_backward(batch.data(), std::span(labels).first(samples.size()));
      kernels::add<double>(sum, rank.model.gradients_and_loss());
      ++count;
    }
    std::ranges::copy(sum, rank.model.gradients_and_loss().begin());
    kernels::average<double>(rank.model.gradients_and_loss(), 1 / count);
    losses.push_back(rank.model.gradients_and_loss().back());
    if (clip_norm > 0) {
      const double norm = std::sqrt(kernels::squared_norm<double>(rank.model.gradients()));
      const double factor = clip_norm / (norm + 1e-6);
      if (factor < 1) kernels::average<double>(rank.model.gradients(), factor);
    }
    rank.optimizer.step(rank.model.parameters(), rank.model.gradients(),
                        kRate / static_cast<double>(losses.size()));
  }
  return losses;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]);
    worst = error <= worst ? worst : error;
  }
  return worst;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

DeviceStepSettings settings_of(TestRank&, Communicator* ranks = nullptr, bool undo = false) {
  DeviceStepSettings settings;
  settings.ranks = ranks;
  settings.undo = undo;
  return settings;
}

/// Returns, for each node of a graph, which nodes must be done before it.
std::vector<std::vector<bool>> ancestors(const std::vector<FakeCudaNode>& graph) {
  std::vector<std::vector<bool>> before(graph.size(), std::vector<bool>(graph.size()));
  for (std::size_t i = 0; i < graph.size(); ++i) {
    for (const std::size_t other : graph[i].after) {
      before[i][other] = true;
      for (std::size_t j = 0; j < other; ++j)
        before[i][j] = before[i][j] || before[other][j];
    }
  }
  return before;
}

/// Checks the graph of a ConvNet's step; its last two launches are those of the update.
void check_order_of_sums(std::size_t buckets) {
  const auto graph = fake_cuda_last_graph();
  const auto before = ancestors(graph);
  const std::size_t update = graph.size() - 2;
  std::size_t sums = 0, beside = 0;
  for (std::size_t i = 0; i < update; ++i) {
    CHECK(before[update][i]);  // no gradient is missing
    if (!graph[i].is_exchange) continue;
    ++sums;
    for (std::size_t other = 0; other < i; ++other)
      CHECK(before[i][other]);  // the launches that compute the bucket, and the sums before it
    for (std::size_t later = i + 1; later < update; ++later)
      beside += before[later][i] ? 0 : 1;
  }
  CHECK(sums == buckets);
  CHECK((beside != 0) == (buckets > 1));  // one bucket is complete when backward ends
}

void begin(TestRank& rank, const DeviceStepSettings& settings) {
  REQUIRE(rank.steps->attach(settings).has_value());
  REQUIRE(rank.steps->move_state_to_gpu(rank.optimizer).has_value());
}

}  // namespace

TEST_CASE("The GPU measures a step's parts, in a graph too, and the wait for the sums apart") {
  const Dataset data = images();
  TestRank rank;
  TwoEqualRanks ranks;
  ranks.duration = std::chrono::milliseconds(20);
  DeviceStepSettings settings;
  settings.ranks = &ranks;
  settings.timed = true;
  REQUIRE(rank.steps->attach(settings).has_value());
  REQUIRE(rank.steps->move_state_to_gpu(rank.optimizer).has_value());
  for (int epoch = 0; epoch < 2; ++epoch) {  // single launches, then graphs
    train_epoch(rank, data, 1, 1);
    const auto times = rank.steps->last_times();
    REQUIRE(times.has_value());
    CHECK((times->forward > 0 && times->backward > 0 && times->update > 0));
    CHECK(times->sums >= 0.02);
  }
  rank.steps->detach();
}

TEST_CASE("a GPU trains like the CPU") {
  OptimizerSettings adamw;
  adamw.kind = OptimizerKind::kAdamw;
  adamw.weight_decay = 0.1;
  for (const OptimizerSettings& optimizer : {OptimizerSettings{}, adamw}) {
    for (const double clip_norm : {0.0, 0.5}) {
      TestRank gpu(optimizer), cpu(optimizer);
      DeviceStepSettings settings = settings_of(gpu);
      settings.update = {optimizer, 0, clip_norm};
      begin(gpu, settings);
      for (int epoch = 0; epoch < 2; ++epoch) {  // the second epoch replays graphs
        const auto expected = train_on_host(cpu, images(), clip_norm);
        CHECK(largest_difference(train_epoch(gpu, images(), 4, 1000), expected) < 1e-9);
      }
      const auto learnt = gpu.weights();  // and optimizer state and running statistics
      CHECK(gpu.optimizer.steps() == cpu.optimizer.steps());
      std::vector<double> expected(cpu.model.parameters().begin(), cpu.model.parameters().end());
      for (const auto& one : cpu.optimizer.state())
        expected.insert(expected.end(), one.values.begin(), one.values.end());
      const auto running = cpu.model.running_statistics();
      expected.insert(expected.end(), running.begin(), running.end());
      CHECK(largest_difference(learnt, expected) < 1e-6);  // AdamW may divide by a number near zero
    }
  }
}

TEST_CASE("the bits do not depend on the steps in flight or on the place of the images") {
  TestRank first;
  begin(first, settings_of(first));
  const auto losses = train_epoch(first, images(), 1, 1);
  const auto weights = first.weights();
  const Dataset in_memory = images(), drawn = drawn_images(in_memory);
  using Limits = std::pair<std::size_t, std::uint64_t>;
  for (const auto& [most, until_read] : {Limits{1, 1000}, {2, 1}, {2, 1000}, {4, 3}, {4, 1000}}) {
    for (const Dataset* data : {&in_memory, static_cast<const Dataset*>(&drawn)}) {
      INFO("at most " << most << " in flight, read after " << until_read
                      << (data == &drawn ? ", drawn" : ""));
      TestRank other;
      begin(other, settings_of(other));
      CHECK(train_epoch(other, *data, most, until_read) == losses);
      CHECK(same_bits(other.weights(), weights));
    }
  }
}

TEST_CASE("two equal ranks train like one, and each launched all-reduce is reported") {
  TestRank alone, two;
  begin(alone, settings_of(alone));
  TwoEqualRanks all_reducer;
  begin(two, settings_of(two, &all_reducer));
  for (int epoch = 0; epoch < 3; ++epoch)
    CHECK(train_epoch(alone, images(), 4, 1000) == train_epoch(two, images(), 4, 1000));
  CHECK(same_bits(alone.weights(), two.weights()));
  CHECK(all_reducer.bytes_launched == 12 * (ConvNet<double>::kParameters + 1) * sizeof(double));
  // For each batch size, one step runs directly and one is captured. All other steps are replays.
  CHECK(all_reducer.enqueued == 4);
}

TEST_CASE("the size of the buckets changes no bit, and the sums run beside the backward pass") {
  TestRank whole;
  TwoEqualRanks reducer;
  begin(whole, settings_of(whole, &reducer));
  for (int epoch = 0; epoch < 4; ++epoch)
    train_epoch(whole, images(), 4, 1000);
  const auto weights = whole.weights();
  for (const std::size_t cap :
       {std::size_t{1}, std::size_t{4'000}, std::size_t{100'000}, std::size_t{25} << 20}) {
    TestRank rank;
    TwoEqualRanks sums;
    DeviceStepSettings settings = settings_of(rank, &sums);
    settings.buckets = plan_buckets(rank.model.parameter_tensors(), 1, sizeof(double), cap, cap);
    begin(rank, settings);
    for (int epoch = 0; epoch < 4; ++epoch)  // graphs run in several orders
      train_epoch(rank, images(), 4, 1000);
    CHECK(same_bits(rank.weights(), weights));
    CHECK(sums.enqueued == 4 * static_cast<int>(settings.buckets.size()));
    CHECK(sums.bytes_launched == reducer.bytes_launched);
    CHECK(sums.stream_of_sums != rank.net->stream());
    check_order_of_sums(settings.buckets.size());
  }
}

TEST_CASE("several batches make one step, with the sums of the ranks in the last one") {
  TestRank cpu;
  std::vector<double> expected;
  struct Case {
    std::size_t cap;  ///< of the buckets; 0: one rank
    bool from_host;
  };
  for (const auto& [cap, from_host] : {Case{0, false}, Case{0, true}, Case{1, false}, Case{100'000, false}}) {
    INFO("cap " << cap << (from_host ? ", from the host" : ""));
    TestRank rank;
    TwoEqualRanks sums;
    DeviceStepSettings settings = settings_of(rank, cap == 0 ? nullptr : &sums);
    settings.batch = kBatch;
    settings.batches = 3;
    if (cap != 0)
      settings.buckets = plan_buckets(rank.model.parameter_tensors(), 1, sizeof(double), cap, cap);
    begin(rank, settings);
    const Dataset held = images(), drawn = drawn_images(held);
    const Dataset& data = from_host ? drawn : held;
    for (int epoch = 0; epoch < 6; ++epoch) {  // an epoch is a step of three batches and one of one
      const auto losses = train_epoch(rank, data, 4, 1000, 1000, 3);
      if (!from_host && cap == 0) CHECK(largest_difference(losses, train_on_host(cpu, held, 0, 3)) < 1e-9);
      CHECK(losses.size() == 2);
    }
    const auto weights = rank.weights();
    if (expected.empty()) {
      CHECK(largest_difference(std::vector(weights.begin(), weights.begin() + ConvNet<double>::kParameters),
                               {cpu.model.parameters().begin(), cpu.model.parameters().end()}) < 1e-9);
      const auto running = cpu.model.running_statistics();
      CHECK(largest_difference({weights.end() - static_cast<std::ptrdiff_t>(running.size()), weights.end()},
                               {running.begin(), running.end()}) < 1e-9);
      expected = weights;
    }
    CHECK(same_bits(weights, expected));
    CHECK(sums.enqueued == 4 * static_cast<int>(settings.buckets.size()));
  }
}

TEST_CASE("weight gradients are computed beside the data gradient, with the bits of single launches") {
  TestRank graphs, single;
  single.net->use_graphs(false);
  begin(graphs, settings_of(graphs));
  begin(single, settings_of(single));
  // In each launch of the graph another operation runs first (fake_cuda.cc): all of them are the first once.
  constexpr int kEpochs = 8;
  for (int epoch = 0; epoch < kEpochs; ++epoch)
    CHECK(train_epoch(graphs, images(), 4, 1000) == train_epoch(single, images(), 4, 1000));
  CHECK(same_bits(graphs.weights(), single.weights()));
  const auto graph = fake_cuda_last_graph();
  CHECK(graph.size() <= 3 * kEpochs - 2);  // three steps of an epoch have the same size; one was not a graph
  const auto before = ancestors(graph);
  std::size_t beside = 0;
  for (std::size_t i = 0; i < graph.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      beside += before[i][j] ? 0 : 1;
  CHECK(beside == 5 + 4 + 4);  // the linear layer's, the second convolution's and their sum
}

TEST_CASE("a step with a NaN changes nothing on any rank") {
  TestRank with, without;
  for (TestRank* rank : {&with, &without})
    begin(*rank, settings_of(*rank));
  train_epoch(with, images(), 4, 1000);
  train_epoch(without, images(), 4, 1000);
  const auto before = with.weights();
  REQUIRE(same_bits(without.weights(), before));
  for (TestRank* rank : {&with, &without})
    REQUIRE(rank->steps->move_state_to_gpu(rank->optimizer).has_value());
  const auto order = backwards();
  REQUIRE(with.steps->set_order(order).has_value());
  DeviceStep step;
  step.lr = kRate;
  step.size = kBatch;
  step.as_graph = false;
  step.inject_nan = true;
  REQUIRE(with.steps->launch(step).has_value());
  const auto outcome = with.steps->finish();
  REQUIRE(outcome.has_value());
  CHECK_FALSE(outcome->finite);
  CHECK(same_bits(with.weights(), before));
  CHECK(with.optimizer.steps() == 4);
  // Training continues as if the step had not been launched.
  REQUIRE(with.steps->move_state_to_gpu(with.optimizer).has_value());
  CHECK(train_epoch(with, images(), 4, 1000) == train_epoch(without, images(), 4, 1000));
}

TEST_CASE("a step with a lost all-reduce is undone, and another world continues from the same state") {
  TestRank lost, kept;
  TwoEqualRanks all_reducer;
  begin(lost, settings_of(lost, &all_reducer, true));
  begin(kept, settings_of(kept));
  for (int epoch = 0; epoch < 2; ++epoch)
    CHECK(train_epoch(lost, images(), 1, 1000) == train_epoch(kept, images(), 1, 1000));
  const auto before = kept.weights();

  const auto order = backwards();
  REQUIRE(lost.steps->set_order(order).has_value());
  DeviceStep step;
  step.lr = kRate;
  step.size = kBatch;
  REQUIRE(lost.steps->launch(step).has_value());
  all_reducer.lost = true;
  const auto outcome = lost.steps->finish();
  REQUIRE(outcome.has_error());
  CHECK(outcome.error().text == "a rank is lost during all-reduce");
  const int graphs = fake_cuda_graphs();
  CHECK(graphs > 0);
  for (const GraphOwner& owner : all_reducer.owners) {
    owner.abandon_capture();  // there is none
    CHECK(owner.is_idle());
    owner.drop();
  }
  CHECK(fake_cuda_graphs() < graphs);
  REQUIRE(lost.steps->drop().has_value());
  CHECK(lost.steps->in_flight() == 0);
  lost.steps->detach();
  CHECK(same_bits(lost.weights(), before));

  TwoEqualRanks others;
  begin(lost, settings_of(lost, &others, true));
  REQUIRE(kept.steps->move_state_to_gpu(kept.optimizer).has_value());
  CHECK(train_epoch(lost, images(), 1, 1000) == train_epoch(kept, images(), 1, 1000));
  CHECK(same_bits(lost.weights(), kept.weights()));
}

TEST_CASE("a step whose all-reduce never ends is dropped until a deadline") {
  TestRank rank;
  TwoEqualRanks all_reducer;
  DeviceStepSettings settings = settings_of(rank, &all_reducer, true);
  settings.drop_timeout = std::chrono::milliseconds(30);
  begin(rank, settings);
  train_epoch(rank, images(), 1, 1000);
  const auto order = backwards();
  REQUIRE(rank.steps->set_order(order).has_value());
  DeviceStep step;
  step.lr = kRate;
  step.size = kBatch;
  all_reducer.hangs = all_reducer.lost = true;
  REQUIRE(rank.steps->launch(step).has_value());
  REQUIRE(rank.steps->finish().has_error());
  const auto dropped = rank.steps->drop();
  REQUIRE(dropped.has_error());
  CHECK(dropped.error().code == ErrorCode::kTimeout);
  CHECK(dropped.error().text == "the GPU did not finish the steps in flight within 30 ms");
  all_reducer.hangs = false;  // so that the test frees all memory
  REQUIRE(rank.steps->drop().has_value());
}

TEST_CASE("the end of a communicator that outlives the model finds no graph") {
  TwoEqualRanks all_reducer;
  {
    TestRank rank;
    begin(rank, settings_of(rank, &all_reducer));
    train_epoch(rank, images(), 4, 1000);
  }
  CHECK(fake_cuda_graphs() == 0);
  for (const GraphOwner& owner : all_reducer.owners) {  // must not access the destroyed model
    owner.abandon_capture();
    CHECK(owner.is_idle());
    owner.drop();
  }
}
