#include "apps/train/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "apps/train/data/hash.h"
#include "apps/train/data/image_size.h"

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

namespace {

constexpr int kColumnsPerChunk = 256;
constexpr int kRowsPerChunk = kernels::kGemmRows;

int chunks_of(int count, int size) {
  return (count + size - 1) / size;
}

}  // namespace

template <class T>
std::size_t Mlp<T>::parameters_of(int width, int depth) {
  const std::size_t w = static_cast<std::size_t>(width), hidden = static_cast<std::size_t>(depth) - 1;
  return kImagePixels * w + w + hidden * (w * w + w) + w * kClasses + kClasses;
}

template <class T>
Mlp<T>::Mlp(int width, int depth, int max_batch, ThreadPool& threads, const kernels::KernelTable<T>& kernels)
    : Model<T>(parameters_of(width, depth), 0),
      kernels_(kernels),
      threads_(threads),
      gradient_(static_cast<std::size_t>(max_batch) * std::max(width, kClasses)),
      next_gradient_(gradient_.size()),
      scratch_(static_cast<std::size_t>(threads.threads()) * kernels::kGemmScratch) {
  std::size_t at = 0;
  for (int i = 0; i <= depth; ++i) {
    Layer layer;
    layer.inputs = i == 0 ? kImagePixels : width;
    layer.outputs = i == depth ? kClasses : width;
    const std::string name = std::to_string(2 * i);  // a ReLU lies between two layers
    layer.weight = at;
    const std::size_t size = static_cast<std::size_t>(layer.inputs) * layer.outputs;
    tensors_.push_back({name + ".weight", at, size, layer.inputs, {layer.outputs, layer.inputs}});
    at += size;
    layer.bias = at;
    tensors_.push_back(
        {name + ".bias", at, static_cast<std::size_t>(layer.outputs), layer.inputs, {layer.outputs}});
    at += static_cast<std::size_t>(layer.outputs);
    layer.output = AlignedBuffer<T>(static_cast<std::size_t>(max_batch) * layer.outputs);
    layers_.push_back(std::move(layer));
  }
}

template <class T>
void Mlp<T>::layer_forward(Layer& layer, const T* input, int batch, bool relu) {
  threads_.run(chunks_of(layer.outputs, kColumnsPerChunk), [&](int chunk, int worker) {
    const int begin = chunk * kColumnsPerChunk;
    const int count = std::min(kColumnsPerChunk, layer.outputs - begin);
    T* output = layer.output.data() + begin;
    kernels_.gemm({batch, count, layer.inputs, layer.inputs, 1, 1, layer.inputs, layer.outputs}, input,
                  parameters_.at(layer.weight + static_cast<std::size_t>(begin) * layer.inputs), output,
                  scratch_.at(static_cast<std::size_t>(worker) * kernels::kGemmScratch));
    const T* bias = parameters_.at(layer.bias) + begin;
    for (int n = 0; n < batch; ++n) {
      T* row = output + static_cast<std::ptrdiff_t>(n) * layer.outputs;
      for (int i = 0; i < count; ++i) {
        const T value = row[i] + bias[i];
        row[i] = relu && !(value > T(0)) ? T(0) * value : value;  // a nan stays a nan
      }
    }
  });
}

template <class T>
void Mlp<T>::compute(const T* images, int batch) {
  const T* input = images;
  for (Layer& layer : layers_) {
    layer_forward(layer, input, batch, &layer != &layers_.back());
    input = layer.output.data();
  }
}

template <class T>
kernels::BatchScore Mlp<T>::forward(const T* images, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  compute(images, batch);
  const std::size_t logits = static_cast<std::size_t>(batch) * kClasses;
  const auto score = kernels::softmax_loss<T>(layers_.back().output.span().first(logits), labels, kClasses,
                                              gradient_.span().first(logits));
  this->gradients_and_loss().back() = static_cast<T>(score.loss_sum / batch);
  return score;
}

template <class T>
void Mlp<T>::weight_gradients(const Layer& layer, const T* input, int batch) {
  threads_.run(chunks_of(layer.outputs, kRowsPerChunk), [&](int chunk, int worker) {
    const int begin = chunk * kRowsPerChunk;
    const int count = std::min(kRowsPerChunk, layer.outputs - begin);
    kernels_.gemm({count, layer.inputs, batch, 1, layer.outputs, layer.inputs, 1, layer.inputs},
                  gradient_.data() + begin, input,
                  gradients_.at(layer.weight + static_cast<std::size_t>(begin) * layer.inputs),
                  scratch_.at(static_cast<std::size_t>(worker) * kernels::kGemmScratch));
    T* bias = gradients_.at(layer.bias);
    std::fill(bias + begin, bias + begin + count, T{});
    for (int n = 0; n < batch; ++n) {
      for (int i = begin; i < begin + count; ++i)
        bias[i] += *gradient_.at(static_cast<std::size_t>(n) * layer.outputs + i);
    }
  });
}

template <class T>
void Mlp<T>::input_gradients(const Layer& layer, int batch) {
  const Layer& before = *(&layer - 1);
  threads_.run(chunks_of(layer.inputs, kColumnsPerChunk), [&](int chunk, int worker) {
    const int begin = chunk * kColumnsPerChunk;
    const int count = std::min(kColumnsPerChunk, layer.inputs - begin);
    kernels_.gemm({batch, count, layer.outputs, layer.outputs, 1, layer.inputs, 1, layer.inputs},
                  gradient_.data(), parameters_.at(layer.weight + static_cast<std::size_t>(begin)),
                  next_gradient_.data() + begin,
                  scratch_.at(static_cast<std::size_t>(worker) * kernels::kGemmScratch));
    for (int n = 0; n < batch; ++n) {
      const std::size_t row = static_cast<std::size_t>(n) * layer.inputs + begin;
      for (std::size_t i = row; i < row + static_cast<std::size_t>(count); ++i) {
        if (!(before.output.data()[i] > T(0))) *next_gradient_.at(i) = T{};
      }
    }
  });
}

template <class T>
void Mlp<T>::backward(const T* images, int batch, const OnReady& on_ready) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    weight_gradients(layer, i == 0 ? images : layers_[i - 1].output.data(), batch);
    on_ready(layer.weight);
    if (i == 0) return;
    input_gradients(layer, batch);
    std::swap(gradient_, next_gradient_);
  }
}

template <class T>
kernels::BatchScore Mlp<T>::evaluate(const T* images, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  compute(images, batch);
  const std::size_t logits = static_cast<std::size_t>(batch) * kClasses;
  return kernels::softmax_loss<T>(layers_.back().output.span().first(logits), labels, kClasses, {});
}

template class Mlp<float>;
template class Mlp<double>;

}  // namespace ddp::train
