#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_net.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/model/model.h"
#include "tests/gpu/check_data.h"
#include "tests/gpu/checks.h"

namespace ddp::train::gpu {

namespace {

constexpr int kBatch = 20;
constexpr double kRate = 0.01, kMomentum = 0.9;

UpdateSettings sgd() {
  return {{OptimizerKind::kSgd, kMomentum}};
}

/// Returns the initial weights of all ConvNet trainings in this file.
template <class T>
std::vector<T> first_weights() {
  ThreadPool one(1);
  ConvNet<T> net(1, one);
  net.initialise(3);
  return {net.parameters().begin(), net.parameters().end()};
}

std::vector<float> fresh_running() {
  ThreadPool one(1);
  ConvNet<float> net(1, one);
  net.initialise(3);
  return {net.running_statistics().begin(), net.running_statistics().end()};
}

template <class T, class S = T>
Result<std::unique_ptr<DeviceNet<T>>> fresh_net(int batch) {
  auto net = DeviceNet<T>::make(conv_net_on_device<T, S>(batch));
  if (!net) return net;
  const std::vector<T> weights = first_weights<T>();
  const std::vector<float> running = fresh_running();
  const std::vector<T> statistics(running.begin(), running.end());
  if (auto done = (*net)->put_parameters(weights); !done) return done.error();
  if (auto done = (*net)->put((*net)->memory().running, std::span<const T>(statistics)); !done)
    return done.error();
  return net;
}

/// Returns an all-reduce over two equal ranks. It doubles the numbers by work in the stream. `memory`
/// receives its buffer, which must outlive it.
template <class T>
Result<DeviceAllReduce> twice(std::size_t count, DeviceBytes& memory) {
  using Sum = kernels::device::ColumnSums<T>;
  auto bytes = make_device_bytes(2 * count * sizeof(T));
  if (!bytes) return bytes.error();
  memory = std::move(*bytes);
  T* const both = reinterpret_cast<T*>(memory.get());
  return DeviceAllReduce([both](void* numbers, std::size_t size, cudaStream_t stream) -> Result<> {
    T* const own = static_cast<T*>(numbers);
    for (T* to : {both, both + size}) {
      const auto answer = cudaMemcpyAsync(to, own, size * sizeof(T), cudaMemcpyDeviceToDevice, stream);
      if (auto done = cuda_check(answer, "cudaMemcpyAsync"); !done) return done;
    }
    const typename Sum::Args args{2, static_cast<int>(size), both, own};
    return cuda_check(kernels::device::launch_on_device<Sum>(args, stream), "the sum's launch");
  });
}

/// Returns the weights after `steps` steps. `losses`, if not null, receives the mean loss of each step.
template <class T, class S = T>
Result<std::vector<T>> trained(int steps, bool graphs, std::vector<double>* losses, bool two_ranks = false) {
  auto net = fresh_net<T, S>(kBatch);
  if (!net) return net.error();
  (*net)->use_graphs(graphs);
  typename DeviceNet<T>::Hyperparameters hyperparameters;
  hyperparameters.update = sgd();
  DeviceBytes sums;
  if (two_ranks) {
    auto sum = twice<T>(ConvNet<T>::kParameters + 1, sums);
    if (!sum) return sum.error();
    hyperparameters.all_reduce = *sum;
    hyperparameters.buckets = {{0, ConvNet<T>::kParameters + 1}};
    hyperparameters.ranks = 2;
  }
  for (int step = 0; step < steps; ++step) {
    const CheckBatch<T> batch(kBatch, kImageBorder, static_cast<std::uint64_t>(step));
    if (auto done = (*net)->put_batch(batch.images.data(), batch.labels); !done) return done.error();
    if (auto done = (*net)->step(kBatch, {kRate, 0}, hyperparameters); !done) return done.error();
    const auto score = (*net)->score();
    if (!score) return score.error();
    if (losses) losses->push_back(score->loss_sum / kBatch);
  }
  std::vector<T> weights(ConvNet<T>::kParameters);
  if (auto done = (*net)->get(std::span<T>(weights), (*net)->memory().parameters); !done) return done.error();
  return weights;
}

template <class T>
double different_numbers(const std::vector<T>& a, const std::vector<T>& b) {
  double count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0 ? 1 : 0;
  return count;
}

/// Returns false after the first training that fails, for then a GPU may do nothing more.
template <class T, class S = T>
bool check_replay_of(const std::string& name, CheckLog& log) {
  std::vector<std::vector<T>> weights;
  for (const auto& [with_graph, twice] :
       {std::pair(false, false), {true, false}, {true, false}, {true, true}}) {
    auto run = trained<T, S>(6, with_graph, nullptr, twice);
    if (!run) {
      log.failed(run.error());
      return false;
    }
    weights.push_back(std::move(*run));
  }
  const auto &eager = weights[0], &graph = weights[1], &again = weights[2], &doubled = weights[3];
  log.add(name + ": weights that differ between graph and single launches", different_numbers(eager, graph),
          0);
  log.add(name + ": weights that differ between two runs", different_numbers(graph, again), 0);
  log.add(name + ": weights that differ when two equal ranks are summed in the graph",
          different_numbers(graph, doubled), 0);
  log.add(name + ": weights that no step changed", eager == first_weights<T>() ? 1 : 0, 0);
  return true;
}

/// Compares the losses and weights with the CPU's model after the same steps.
template <class T, class S = T>
void check_against_host(const std::string& name, int steps, double loss_limit, double weight_limit,
                        CheckLog& log) {
  std::vector<double> losses;
  const auto device = trained<T, S>(steps, true, &losses);
  if (!device) return log.failed(device.error());
  ThreadPool one(1);
  ConvNet<T> net(kBatch, one);
  net.initialise(3);
  std::vector<T> velocity(ConvNet<T>::kParameters);
  double worst = 0, loss = 0;
  for (int step = 0; step < steps; ++step) {
    const CheckBatch<T> batch(kBatch, kImageBorder, static_cast<std::uint64_t>(step));
    loss = net.forward_backward(batch.images.data(), batch.labels).loss_sum / kBatch;
    const double error = std::abs(loss - losses[static_cast<std::size_t>(step)]);
    worst = error <= worst ? worst : error;
    kernels::sgd_step<T>(net.parameters(), velocity, net.gradients(), T(kRate), T(kMomentum), T(0));
  }
  double apart = 0, norm = 0;
  for (std::size_t i = 0; i < device->size(); ++i) {
    apart += std::pow(static_cast<double>((*device)[i]) - static_cast<double>(net.parameters()[i]), 2);
    norm += std::pow(static_cast<double>(net.parameters()[i]), 2);
  }
  log.add(name + ": loss, largest difference to the CPU's", worst, loss_limit);
  log.add(name + ": weights, difference to the CPU's", std::sqrt(apart / norm), weight_limit);
  log.record(name + ": loss at the end", loss);
}

void check_mlp(CheckLog& log) {
  constexpr int kWidth = 200, kDepth = 2;
  ThreadPool one(1);
  Mlp<double> host(kWidth, kDepth, kBatch, one);
  host.initialise(4);
  const CheckBatch<double> batch(kBatch, 0, 1);
  auto net = DeviceNet<double>::make(
      mlp_on_device<double>(kWidth, kDepth, static_cast<int>(host.parameter_count()), kBatch));
  if (!net) return log.failed(net.error());
  const auto on_device = [&]() -> Result<std::vector<double>> {
    if (auto done = (*net)->put((*net)->memory().parameters, host.parameters()); !done) return done.error();
    if (auto done = (*net)->put_batch(batch.images.data(), batch.labels); !done) return done.error();
    if (auto done = (*net)->forward(kBatch); !done) return done.error();
    if (auto done = (*net)->backward(kBatch); !done) return done.error();
    std::vector<double> gradients(host.parameter_count());
    if (auto done = (*net)->get(std::span<double>(gradients), (*net)->memory().gradients); !done)
      return done.error();
    return gradients;
  };
  const auto gradients = on_device();
  if (!gradients) return log.failed(gradients.error());
  host.forward_backward(batch.images.data(), batch.labels);
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < gradients->size(); ++i) {
    const double error = std::abs((*gradients)[i] - host.gradients()[i]);
    worst = error <= worst ? worst : error;
    largest = std::max(largest, std::abs(host.gradients()[i]));
  }
  log.add("mlp float64: gradients, difference to the CPU's", worst / largest, 1e-12);
}

template <class T, class S = T>
void measure(const std::string& name, int batch, int steps, CheckLog& log) {
  auto net = fresh_net<T, S>(batch);
  if (!net) return log.failed(net.error());
  typename DeviceNet<T>::Hyperparameters hyperparameters;
  hyperparameters.update = sgd();
  const CheckBatch<T> data(batch, kImageBorder, 1);
  // More steps are in flight than there are slots for their input. All have the same.
  const auto some = [&](int count, bool with_data) -> Result<> {
    for (int step = 0; step < count; ++step) {
      if (with_data) {
        if (auto done = (*net)->put_batch(data.images.data(), data.labels); !done) return done;
      }
      if (auto done = (*net)->step(batch, {kRate, 0}, hyperparameters); !done) return done;
    }
    return (*net)->wait();
  };
  for (const bool with_data : {true, false}) {
    if (auto done = some(5, true); !done) return log.failed(done.error());
    const auto start = std::chrono::steady_clock::now();
    if (auto done = some(steps, with_data); !done) return log.failed(done.error());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    log.record(name + " batch " + std::to_string(batch) + (with_data ? " with" : " without") +
                   " copies of images: images/s",
               batch * static_cast<double>(steps) / seconds);
  }
}

void check_replay(CheckLog& log) {
  (void)(check_replay_of<float>("float32", log) && check_replay_of<double>("float64", log) &&
         check_replay_of<float, kernels::device::Bf16>("bfloat16", log));
}

void check_training(CheckLog& log) {
  const int steps = std::getenv("DDP_SHORT_TESTS") == nullptr ? 50 : 10;  // they are slow on an emulated GPU
  check_against_host<double>("float64, " + std::to_string(steps) + " steps", steps, 1e-9, 1e-9, log);
  check_against_host<float>("float32, 10 steps", 10, 1e-3, 1e-3, log);
  // A stored bfloat16 is off by up to 2^-9 of its value, and gradients by a few percent. The bits differ from
  // the host driver's only by fused operations. The host driver's figures are 0.083 and 0.011.
  check_against_host<float, kernels::device::Bf16>("bfloat16, 10 steps", 10, 0.25, 0.03, log);
  check_mlp(log);
}

void measure_speed(CheckLog& log) {
  measure<float>("float32", 100, 300, log);
  measure<float>("float32", 4096, 20, log);
  measure<float, kernels::device::Bf16>("bfloat16", 100, 300, log);
  measure<float, kernels::device::Bf16>("bfloat16", 4096, 20, log);
  measure<double>("float64", 100, 50, log);
}

}  // namespace

std::span<const GpuCheck> all_checks() {
  static constexpr GpuCheck kChecks[] = {
      {"replay", check_replay}, {"train", check_training}, {"speed", measure_speed}};
  return kChecks;
}

}  // namespace ddp::train::gpu
