#include "apps/train/model/model.h"

#include <algorithm>
#include <cmath>

#include "apps/train/data/hash.h"

namespace ddp::train {

template <class T>
void Model<T>::initialise(std::uint64_t seed) {
  std::uint64_t stream = 0;
  for (const TensorInfo& tensor : parameter_tensors()) {
    const bool gamma = tensor.fan_in == 0 && tensor.name.ends_with(".weight");
    const double bound = tensor.fan_in ? 1.0 / std::sqrt(tensor.fan_in) : 0.0;
    for (std::size_t i = 0; i < tensor.size; ++i) {
      const double value = gamma ? 1.0 : bound * (2.0 * random_unit(seed, stream, i) - 1.0);
      *parameters_.at(tensor.offset + i) = static_cast<T>(value);
    }
    ++stream;
  }
  for (const TensorInfo& tensor : running_tensors()) {
    const T value = tensor.name.ends_with("_var") ? T(1) : T(0);
    std::fill_n(running_.at(tensor.offset), tensor.size, value);
  }
}

template <class T>
kernels::BatchScore Model<T>::forward_backward(const T* images, std::span<const std::uint8_t> labels) {
  const auto score = forward(images, labels);
  backward(images, static_cast<int>(labels.size()), [](std::size_t) {});
  return score;
}

template <class T>
std::span<T> Model<T>::padded_gradients(std::size_t parts) {
  // The loss lies behind the gradients; a sum of parts must not include it.
  std::fill(gradients_.at(count_), gradients_.at(padded(parts)), T{});
  return gradients_.span().first(padded(parts));
}

template class Model<float>;
template class Model<double>;

std::vector<GradientBucket> plan_buckets(std::span<const TensorInfo> tensors, std::size_t extra,
                                         std::size_t scalar_bytes, std::size_t first_bytes,
                                         std::size_t cap_bytes) {
  std::vector<GradientBucket> buckets;
  if (tensors.empty()) return buckets;
  const std::size_t total = tensors.back().offset + tensors.back().size + extra;
  GradientBucket open{total, total};
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    const std::size_t cap = buckets.empty() ? first_bytes : cap_bytes;
    if (open.begin != open.end && (open.end - tensor->offset) * scalar_bytes > cap) {
      buckets.push_back(open);
      open = {open.begin, open.begin};
    }
    open.begin = tensor->offset;
  }
  buckets.push_back(open);
  return buckets;
}

template <class T>
Optimizer<T>::Optimizer(const OptimizerSettings& settings, std::size_t size)
    : settings_(settings), first_(size), second_(settings.kind == OptimizerKind::kAdamw ? size : 0) {}

template <class T>
void Optimizer<T>::step(std::span<T> parameters, std::span<const T> gradients, double lr) {
  ++steps_;
  if (settings_.kind == OptimizerKind::kSgd) {
    kernels::sgd_step<T>(parameters, first_.span(), gradients, static_cast<T>(lr),
                         static_cast<T>(settings_.momentum), static_cast<T>(settings_.weight_decay));
    return;
  }
  kernels::adamw_step<T>(parameters, first_.span(), second_.span(), gradients,
                         {lr, settings_.beta1, settings_.beta2, settings_.epsilon, settings_.weight_decay},
                         steps_);
}

template <class T>
auto Optimizer<T>::state() -> std::vector<State> {
  if (settings_.kind == OptimizerKind::kSgd) return {{"velocity", first_.span()}};
  return {{"mean", first_.span()}, {"square", second_.span()}};
}

template class Optimizer<float>;
template class Optimizer<double>;

ThreadPool::ThreadPool(int threads) {
  for (int worker = 1; worker < threads; ++worker)
    workers_.emplace_back(&ThreadPool::serve, this, worker);
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& worker : workers_)
    worker.join();
}

void ThreadPool::run(int chunks, const ChunkWork& work) {
  if (workers_.empty() || chunks == 1) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      work(chunk, 0);
    return;
  }
  std::unique_lock lock(mutex_);
  work_ = &work;
  chunks_ = chunks;
  next_ = 0;
  begin_.notify_all();
  take_chunks(lock, 0);
  end_.wait(lock, [this] { return running_ == 0; });
  work_ = nullptr;
}

void ThreadPool::take_chunks(std::unique_lock<std::mutex>& lock, int worker) {
  ++running_;
  while (next_ < chunks_) {
    const int chunk = next_++;
    const ChunkWork& work = *work_;
    lock.unlock();
    work(chunk, worker);
    lock.lock();
  }
  --running_;
}

void ThreadPool::serve(int worker) {
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [this] { return stop_ || (work_ != nullptr && next_ < chunks_); });
    if (stop_) return;
    take_chunks(lock, worker);
    if (running_ == 0) end_.notify_one();
  }
}

}  // namespace ddp::train
