#include "apps/train/health/equal_steps.h"

#include <bit>
#include <chrono>
#include <numeric>
#include <span>

#include "apps/train/checkpoint/model_file.h"
#include "apps/train/data/dataset.h"
#include "apps/train/data/hash.h"
#include "apps/train/gpu/device_model.h"

namespace ddp::train {
namespace {

constexpr int kBatch = 128, kDepth = 3;
/// The first steps load kernels and capture the graph.
constexpr std::size_t kUntimed = 2;

void flip_a_bit(std::span<float> numbers) {
  float& middle = numbers[numbers.size() / 2];
  middle = std::bit_cast<float>(std::bit_cast<std::uint32_t>(middle) ^ 1u);
}

std::uint64_t hash_of(std::span<const float> gradients) {
  if (!all_finite(gradients)) return 0;
  return fnv_hash(std::as_bytes(gradients)) | 1;
}

/// The version of "cuBLASLt 13.0.2 (/usr/…)", or "own kernels": places and reasons differ between nodes.
std::string without_place(const std::string& products_by) {
  return products_by.substr(0, products_by.find(" ("));
}

}  // namespace

Result<std::unique_ptr<EqualSteps>> EqualSteps::open(DeviceKind device, int local_rank, int width,
                                                     int threads) {
  std::unique_ptr<EqualSteps> steps(new EqualSteps(threads));
  std::string kind;
  if (device == DeviceKind::kGpu) {
    // bfloat16 keeps the tensor cores at work.
    steps->model_ = DDP_TRY(make_device_model<float>(mlp_layout(width, kDepth), {kBatch, true}));
    kind = gpu_model(local_rank) + ' ' + without_place(steps->model_->products_by());
  } else {
    steps->model_ = std::make_unique<Mlp<float>>(width, kDepth, kBatch, steps->threads_);
    kind = std::string("CPU ") + kernels::best_kernels<float>().name;
  }
  kind += ' ' + std::to_string(width);  // a GPU's depends on the processors that this process may use
  steps->kind_ = fnv_hash(std::as_bytes(std::span(kind))) | 1;
  steps->model_->initialise(1);
  const DataSplit data = synthetic_data(kBatches * kBatch);
  std::vector<std::uint32_t> samples(data.training.size());
  std::iota(samples.begin(), samples.end(), 0u);
  steps->images_ = AlignedBuffer<float>(samples.size() * kImagePixels);
  steps->labels_.resize(samples.size());
  fill_batch<float>(data.training, samples, 0, steps->images_.data(), steps->labels_);
  if (auto* const gpu = steps->model_->device_steps()) {
    DeviceStepSettings settings;
    settings.update.momentum = 0;
    settings.timed = true;
    steps->optimizer_ = std::make_unique<Optimizer<float>>(settings.update, steps->model_->parameter_count());
    DDP_TRY(gpu->attach(settings));
    DDP_TRY(gpu->prepare(kBatch));
    DDP_TRY(gpu->move_state_to_gpu(*steps->optimizer_));
  }
  for (std::size_t i = 0; i < kUntimed; ++i)
    DDP_TRY(steps->make(i, false));
  return steps;
}

Result<EqualSteps::Step> EqualSteps::make(std::size_t number, bool inject) {
  const std::size_t first = number % kBatches * kBatch;
  const float* const images = images_.data() + first * kImagePixels;
  const std::span<const std::uint8_t> labels = std::span(labels_).subspan(first, kBatch);
  if (model_->device_steps() != nullptr) return make_on_device(images, labels, inject);
  return make_on_host(images, labels, inject);
}

Result<EqualSteps::Step> EqualSteps::make_on_device(const float* images, std::span<const std::uint8_t> labels,
                                                    bool inject) {
  DeviceSteps<float>& gpu = *model_->device_steps();
  DDP_TRY(gpu.send(images, labels));
  DDP_TRY(gpu.launch({.lr = 0, .size = labels.size()}));
  const auto outcome = DDP_TRY(gpu.finish());
  const auto times = DDP_TRY(gpu.last_times());
  Step step{0, times.forward + times.backward + times.update};
  if (!outcome.finite) return step;  // the update was dropped
  DDP_TRY(gpu.move_state_to_host(*optimizer_));
  const std::span<float> gradients = optimizer_->state()[0].values;
  if (inject) flip_a_bit(gradients);
  step.hash = hash_of(gradients);
  return step;
}

EqualSteps::Step EqualSteps::make_on_host(const float* images, std::span<const std::uint8_t> labels,
                                          bool inject) {
  const auto begin = std::chrono::steady_clock::now();
  model_->forward_backward(images, labels);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  if (inject) flip_a_bit(model_->gradients());
  return {hash_of(model_->gradients()), time.count()};
}

}  // namespace ddp::train
