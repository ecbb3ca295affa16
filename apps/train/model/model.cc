#include "apps/train/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

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
kernels::BatchScore Model<T>::score(const AlignedBuffer<T>& logits, std::span<const std::uint8_t> labels,
                                    AlignedBuffer<T>* gradient) {
  const std::size_t size = labels.size() * kClasses;
  const auto score =
      kernels::softmax_loss<T>(logits.span().first(size), labels, kClasses,
                               gradient != nullptr ? gradient->span().first(size) : std::span<T>());
  if (gradient != nullptr)
    gradients_and_loss().back() = static_cast<T>(score.loss_sum / static_cast<double>(labels.size()));
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

constexpr double kEpsilon = 1e-5;
constexpr double kRunningMomentum = 0.1;
constexpr int kImagesPerChunk = 10;
constexpr int kMaxChunks = 32;  // bounds the memory of the gradients by chunk

/// Depends on the batch alone, never on the threads: the chunk size decides the order of sums.
int images_per_chunk(int batch) {
  return std::max(kImagesPerChunk, (batch + kMaxChunks - 1) / kMaxChunks);
}

int chunks_of(int batch) {
  return (batch + images_per_chunk(batch) - 1) / images_per_chunk(batch);
}

/// Calls body(n, chunk, worker) for every image.
template <class Body>
void for_images(ThreadPool& threads, int batch, const Body& body) {
  const int size = images_per_chunk(batch);
  threads.run(chunks_of(batch), [&](int chunk, int worker) {
    for (int n = chunk * size; n < std::min(batch, (chunk + 1) * size); ++n)
      body(n, chunk, worker);
  });
}

/// Offsets of one block's tensors in the flat vectors of the model.
struct ConvBlockOffsets {
  std::size_t weight = 0, bias = 0, gamma = 0, beta = 0;  ///< in parameters and in gradients
  std::size_t running_mean = 0, running_variance = 0;     ///< in running statistics
};

}  // namespace

/// Convolution 5 x 5 → batch normalization → ReLU → 2 x 2 maximum, for up to `max_batch` images. The block
/// reads padded images and may write padded images, so that the next block needs no copy. It keeps what
/// backward needs of the last forward.
template <class T>
class ConvBlock {
 public:
  /// An array of images: image n begins at data + n * image_stride; its rows lie row_stride elements apart.
  struct Images {
    T* data;
    std::ptrdiff_t image_stride;
    std::ptrdiff_t row_stride;
  };

  ConvBlock(const kernels::KernelTable<T>& kernels, kernels::ConvShape shape, ConvBlockOffsets offsets,
            int max_batch, ThreadPool& threads)
      : kernels_(kernels),
        shape_(shape),
        turned_shape_{shape.height, shape.width, shape.out_channels, shape.in_channels, shape.window},
        at_(offsets),
        threads_(threads),
        convolved_(static_cast<std::size_t>(max_batch) * shape.output_size()),
        image_gradient_(static_cast<std::size_t>(threads.threads()) * turned_shape_.padded_size()),
        chunk_gradient_(static_cast<std::size_t>(std::min(max_batch, kMaxChunks)) *
                        (shape.weight_size() + shape.out_channels)),
        turned_weight_(shape.weight_size()),
        scale_(shape.out_channels),
        shift_(shape.out_channels),
        spread_gain_(shape.out_channels),
        spread_offset_(shape.out_channels),
        spread_slope_(shape.out_channels),
        image_a_(static_cast<std::size_t>(max_batch) * shape.out_channels),
        image_b_(static_cast<std::size_t>(max_batch) * shape.out_channels),
        mean_(shape.out_channels),
        inverse_deviation_(shape.out_channels) {}

  /// Null: this rank's statistics normalize a batch. Otherwise those of all ranks together; `gather` must
  /// outlive the block.
  void share_statistics(const GatherNumbers* gather) { gather_ = gather; }

  /// Normalizes by the batch's own statistics and moves the running ones towards them (momentum 0.1, unbiased
  /// variance, as in PyTorch).
  void forward_training(int batch, const T* padded, const T* parameters, T* running, Images pooled) {
    const int channels = shape_.out_channels;
    for_images(threads_, batch, [&](int n, int, int) {
      convolve_image(n, padded, parameters);
      const std::size_t at = static_cast<std::size_t>(n) * channels;
      kernels_.channel_moments(shape_.height * shape_.width, channels, convolved(n), image_a_.at(at),
                               image_b_.at(at));
    });
    Moments moments = batch_moments(batch);
    share_moments(moments);

    count_ = moments.count;
    for (int c = 0; c < channels; ++c) {
      T& running_mean = running[at_.running_mean + c];
      T& running_variance = running[at_.running_variance + c];
      const double unbiased = moments.squares[c] / std::max(count_ - 1, 1.0);
      running_mean =
          static_cast<T>((1 - kRunningMomentum) * running_mean + kRunningMomentum * moments.mean[c]);
      running_variance =
          static_cast<T>((1 - kRunningMomentum) * running_variance + kRunningMomentum * unbiased);
      moments.squares[c] /= count_;
    }
    set_norm(moments.mean, moments.squares, parameters);
    for_images(threads_, batch, [&](int n, int, int) { pool_image(n, pooled); });
  }

  /// Normalizes by the running statistics.
  void forward_evaluation(int batch, const T* padded, const T* parameters, const T* running, Images pooled) {
    const T* mean = running + at_.running_mean;
    const T* variance = running + at_.running_variance;
    set_norm(std::vector<double>(mean, mean + shape_.out_channels),
             std::vector<double>(variance, variance + shape_.out_channels), parameters);
    for_images(threads_, batch, [&](int n, int, int) {
      convolve_image(n, padded, parameters);
      pool_image(n, pooled);
    });
  }

  /// Computes the gradients of the parameters (overwritten) from the gradient of the pooled images (dense).
  /// The input's gradient (dense) is computed, too, unless `input_gradient` is null. `padded` is the input of
  /// the last forward_training.
  void backward(int batch, const T* padded, const T* parameters, const T* pooled_gradient, T* gradients,
                T* input_gradient) {
    sum_norm_gradients(batch, parameters, pooled_gradient, gradients);
    if (input_gradient != nullptr)
      kernels_.turn_weights(shape_, parameters + at_.weight, turned_weight_.data());

    const std::size_t weights = static_cast<std::size_t>(shape_.weight_size());
    const std::size_t size = weights + static_cast<std::size_t>(shape_.out_channels);
    const std::size_t chunks = static_cast<std::size_t>(chunks_of(batch));
    std::fill_n(chunk_gradient_.data(), chunks * size, T{});
    for_images(threads_, batch, [&](int n, int chunk, int worker) {
      T* sums = chunk_gradient_.at(static_cast<std::size_t>(chunk) * size);
      image_backward(n, worker, padded, pooled_gradient, sums, sums + weights, input_gradient);
    });
    for (std::size_t chunk = 1; chunk < chunks; ++chunk) {
      const T* from = chunk_gradient_.at(chunk * size);
      for (std::size_t i = 0; i < size; ++i)
        *chunk_gradient_.at(i) += from[i];
    }
    std::copy_n(chunk_gradient_.data(), weights, gradients + at_.weight);
    std::copy_n(chunk_gradient_.at(weights), shape_.out_channels, gradients + at_.bias);
  }

  const kernels::ConvShape& shape() const { return shape_; }
  int pooled_size() const { return shape_.output_size() / 4; }

 private:
  /// Per channel: the mean, and the sum of squared differences from the mean, over `count` pixels.
  struct Moments {
    double count = 0;
    std::vector<double> mean, squares;

    /// Chan's merge: stable in cases where a sum of squares would cancel.
    void merge(double other_count, const auto* other_mean, const auto* other_squares) {
      const double total = count + other_count;
      for (std::size_t c = 0; c < mean.size(); ++c) {
        const double difference = static_cast<double>(other_mean[c]) - mean[c];
        mean[c] += difference * (other_count / total);
        squares[c] +=
            static_cast<double>(other_squares[c]) + difference * difference * (count * other_count / total);
      }
      count = total;
    }
  };

  void convolve_image(int n, const T* padded, const T* parameters) {
    kernels_.convolve(shape_, padded + static_cast<std::ptrdiff_t>(n) * shape_.padded_size(),
                      parameters + at_.weight, parameters + at_.bias,
                      convolved_.at(static_cast<std::size_t>(n) * shape_.output_size()));
  }

  void pool_image(int n, Images pooled) {
    kernels_.norm_relu_pool(shape_.height, shape_.width, shape_.out_channels, convolved(n),
                            {scale_.data(), shift_.data()}, pooled.data + n * pooled.image_stride,
                            pooled.row_stride);
  }

  Moments batch_moments(int batch) const {
    const std::size_t channels = static_cast<std::size_t>(shape_.out_channels);
    const double pixels = static_cast<double>(shape_.height) * shape_.width;
    Moments moments{0, std::vector<double>(channels), std::vector<double>(channels)};
    for (std::size_t n = 0; n < static_cast<std::size_t>(batch); ++n)
      moments.merge(pixels, image_a_.data() + n * channels, image_b_.data() + n * channels);
    return moments;
  }

  void share_moments(Moments& moments) const {
    if (gather_ == nullptr) return;
    std::vector<double> mine{moments.count};
    mine.insert(mine.end(), moments.mean.begin(), moments.mean.end());
    mine.insert(mine.end(), moments.squares.begin(), moments.squares.end());
    const std::vector<double> all = (*gather_)(mine);
    if (all.empty()) return;
    const std::size_t channels = moments.mean.size();
    moments = {0, std::vector<double>(channels), std::vector<double>(channels)};
    for (const double* at = all.data(); at != all.data() + all.size(); at += mine.size())
      moments.merge(at[0], at + 1, at + 1 + channels);
  }

  void set_norm(std::span<const double> mean, std::span<const double> variance, const T* parameters) {
    for (int c = 0; c < shape_.out_channels; ++c) {
      const double inverse = 1.0 / std::sqrt(variance[c] + kEpsilon);
      const double gamma = static_cast<double>(parameters[at_.gamma + c]);
      *mean_.at(c) = mean[c];
      *inverse_deviation_.at(c) = inverse;
      *scale_.at(c) = static_cast<T>(gamma * inverse);
      *shift_.at(c) =
          static_cast<T>(static_cast<double>(parameters[at_.beta + c]) - mean[c] * gamma * inverse);
    }
  }

  void sum_norm_gradients(int batch, const T* parameters, const T* pooled_gradient, T* gradients) {
    const int channels = shape_.out_channels;
    for_images(threads_, batch, [&](int n, int, int) {
      const std::size_t at = static_cast<std::size_t>(n) * channels;
      kernels_.pool_gradient_sums(
          shape_.height, shape_.width, channels, convolved(n), {scale_.data(), shift_.data()},
          pooled_gradient + static_cast<std::ptrdiff_t>(n) * pooled_size(), image_a_.at(at), image_b_.at(at));
    });
    std::vector<double> sums(2 * static_cast<std::size_t>(channels));  // sums of a, then of b
    for (int n = 0; n < batch; ++n) {
      for (int c = 0; c < channels; ++c) {
        sums[c] += static_cast<double>(*image_a_.at(static_cast<std::size_t>(n) * channels + c));
        sums[channels + c] += static_cast<double>(*image_b_.at(static_cast<std::size_t>(n) * channels + c));
      }
    }
    const auto gamma_gradient = [&](int c) {
      return (sums[channels + c] - *mean_.at(c) * sums[c]) * *inverse_deviation_.at(c);
    };
    // Even with shared statistics these sums cover this rank's own batch: gradients are averaged over ranks
    // later.
    for (int c = 0; c < channels; ++c) {
      gradients[at_.beta + c] = static_cast<T>(sums[c]);
      gradients[at_.gamma + c] = static_cast<T>(gamma_gradient(c));
    }
    if (gather_ != nullptr) {
      const std::vector<double> all = (*gather_)(sums);
      if (!all.empty()) std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t i = 0; i < all.size(); ++i)
        sums[i % sums.size()] += all[i];
    }
    for (int c = 0; c < channels; ++c) {
      const double inverse = *inverse_deviation_.at(c);
      const double gain = static_cast<double>(parameters[at_.gamma + c]) * inverse;
      // gain * (g - mean(g) - xhat * mean(g * xhat)), with xhat = (x - mean) * inverse written out in x.
      const double slope = -gain * inverse * gamma_gradient(c) / count_;
      *spread_gain_.at(c) = static_cast<T>(gain);
      *spread_slope_.at(c) = static_cast<T>(slope);
      *spread_offset_.at(c) = static_cast<T>(-gain * sums[c] / count_ - slope * *mean_.at(c));
    }
  }

  void image_backward(int n, int worker, const T* padded, const T* pooled_gradient, T* weight_gradient,
                      T* bias_gradient, T* input_gradient) {
    const std::ptrdiff_t stride =
        static_cast<std::ptrdiff_t>(turned_shape_.padded_width()) * shape_.out_channels;
    T* image = image_gradient_.at(static_cast<std::size_t>(worker) * turned_shape_.padded_size());
    T* inner = image + shape_.border() * (stride + shape_.out_channels);
    kernels_.norm_relu_pool_gradient(
        shape_.height, shape_.width, shape_.out_channels, convolved(n), {scale_.data(), shift_.data()},
        {spread_gain_.data(), spread_offset_.data(), spread_slope_.data()},
        pooled_gradient + static_cast<std::ptrdiff_t>(n) * pooled_size(), inner, stride);
    kernels_.convolve_weight_gradient(shape_, padded + static_cast<std::ptrdiff_t>(n) * shape_.padded_size(),
                                      inner, stride, weight_gradient);
    kernels_.channel_sum(shape_.height, shape_.width, shape_.out_channels, inner, stride, bias_gradient);
    if (input_gradient != nullptr) {
      kernels_.convolve(turned_shape_, image, turned_weight_.data(), nullptr,
                        input_gradient + static_cast<std::ptrdiff_t>(n) * turned_shape_.output_size());
    }
  }

  const T* convolved(int n) const {
    return convolved_.data() + static_cast<std::size_t>(n) * shape_.output_size();
  }

  const kernels::KernelTable<T>& kernels_;
  kernels::ConvShape shape_;
  kernels::ConvShape turned_shape_;  ///< shape of the convolution that gives the input's gradient
  ConvBlockOffsets at_;
  ThreadPool& threads_;
  const GatherNumbers* gather_ = nullptr;
  double count_ = 0;                 ///< pixels per channel in the last forward's statistics
  AlignedBuffer<T> convolved_;       ///< all images before normalization
  AlignedBuffer<T> image_gradient_;  ///< one convolved image per thread, padded
  AlignedBuffer<T> chunk_gradient_;  ///< gradients of weight and bias, by chunk
  AlignedBuffer<T> turned_weight_;
  AlignedBuffer<T> scale_, shift_;                               ///< kernels::NormScale of the last forward
  AlignedBuffer<T> spread_gain_, spread_offset_, spread_slope_;  ///< kernels::NormGradient
  AlignedBuffer<T> image_a_, image_b_;                           ///< results per channel, by image
  AlignedBuffer<double> mean_, inverse_deviation_;
};

namespace {

constexpr kernels::ConvShape kShape1{28, 28, 1, 16, 5};
constexpr kernels::ConvShape kShape2{14, 14, 16, 32, 5};
constexpr int kFeatures = 7 * 7 * 32;
constexpr ConvBlockOffsets kBlock1{0, 400, 416, 432, 0, 16};
constexpr ConvBlockOffsets kBlock2{448, 13'248, 13'280, 13'312, 32, 64};
constexpr int kFcWeight = 13'344;
constexpr int kFcBias = 29'024;

/// The inner parts of padded images.
template <class T>
typename ConvBlock<T>::Images hidden_images(AlignedBuffer<T>& hidden) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(kShape2.padded_width()) * kShape2.in_channels;
  return {hidden.data() + kShape2.border() * (row + kShape2.in_channels), kShape2.padded_size(), row};
}

template <class T>
typename ConvBlock<T>::Images feature_images(AlignedBuffer<T>& features) {
  return {features.data(), kFeatures, 7 * 32};
}

}  // namespace

ModelLayout conv_net_layout() {
  ModelLayout layout{"convnet", kImageBorder, {}};
  layout.parameters = {
      {"layer1.0.weight", 0, 400, 25, {16, 1, 5, 5}, Layout::kConvolution},
      {"layer1.0.bias", 400, 16, 25, {16}},
      {"layer1.1.weight", 416, 16, 0, {16}},
      {"layer1.1.bias", 432, 16, 0, {16}},
      {"layer2.0.weight", 448, 12'800, 400, {32, 16, 5, 5}, Layout::kConvolution},
      {"layer2.0.bias", 13'248, 32, 400, {32}},
      {"layer2.1.weight", 13'280, 32, 0, {32}},
      {"layer2.1.bias", 13'312, 32, 0, {32}},
      {"fc.weight", kFcWeight, 15'680, kFeatures, {kClasses, kFeatures}, Layout::kPlanes, 32},
      {"fc.bias", kFcBias, 10, kFeatures, {kClasses}},
  };
  layout.running = {
      {"layer1.1.running_mean", 0, 16, 0, {16}},
      {"layer1.1.running_var", 16, 16, 0, {16}},
      {"layer2.1.running_mean", 32, 32, 0, {32}},
      {"layer2.1.running_var", 64, 32, 0, {32}},
  };
  layout.counters = {"layer1.1.num_batches_tracked", "layer2.1.num_batches_tracked"};
  return layout;
}

template <class T>
ConvNet<T>::ConvNet(int max_batch, ThreadPool& threads, const kernels::KernelTable<T>& kernels)
    : Model<T>(conv_net_layout()),
      kernels_(kernels),
      block1_(std::make_unique<ConvBlock<T>>(kernels, kShape1, kBlock1, max_batch, threads)),
      block2_(std::make_unique<ConvBlock<T>>(kernels, kShape2, kBlock2, max_batch, threads)),
      hidden_(static_cast<std::size_t>(max_batch) * kShape2.padded_size()),
      hidden_gradient_(static_cast<std::size_t>(max_batch) * block1_->pooled_size()),
      features_(static_cast<std::size_t>(max_batch) * kFeatures),
      features_gradient_(static_cast<std::size_t>(max_batch) * kFeatures),
      logits_(static_cast<std::size_t>(max_batch) * kClasses),
      logits_gradient_(static_cast<std::size_t>(max_batch) * kClasses) {}

template <class T>
ConvNet<T>::~ConvNet() = default;

template <class T>
void ConvNet<T>::share_statistics(GatherNumbers gather) {
  gather_ = std::move(gather);
  block1_->share_statistics(&gather_);
  block2_->share_statistics(&gather_);
}

template <class T>
void ConvNet<T>::classify(int batch) {
  kernels_.linear({batch, kFeatures, kClasses}, features_.data(), parameters_.at(kFcWeight),
                  parameters_.at(kFcBias), logits_.data());
}

template <class T>
kernels::BatchScore ConvNet<T>::forward(const T* images, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  const T* parameters = parameters_.data();
  block1_->forward_training(batch, images, parameters, running_.data(), hidden_images<T>(hidden_));
  block2_->forward_training(batch, hidden_.data(), parameters, running_.data(), feature_images<T>(features_));
  classify(batch);
  return this->score(logits_, labels, &logits_gradient_);
}

template <class T>
void ConvNet<T>::backward(const T* images, int batch, const OnReady& on_ready) {
  const T* parameters = parameters_.data();
  kernels_.linear_gradient({batch, kFeatures, kClasses}, features_.data(), parameters + kFcWeight,
                           logits_gradient_.data(), features_gradient_.data(), gradients_.at(kFcWeight),
                           gradients_.at(kFcBias));
  on_ready(kFcWeight);
  block2_->backward(batch, hidden_.data(), parameters, features_gradient_.data(), gradients_.data(),
                    hidden_gradient_.data());
  on_ready(kBlock2.weight);
  block1_->backward(batch, images, parameters, hidden_gradient_.data(), gradients_.data(), nullptr);
  on_ready(0);
}

template <class T>
kernels::BatchScore ConvNet<T>::evaluate(const T* images, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  block1_->forward_evaluation(batch, images, parameters_.data(), running_.data(), hidden_images<T>(hidden_));
  block2_->forward_evaluation(batch, hidden_.data(), parameters_.data(), running_.data(),
                              feature_images<T>(features_));
  classify(batch);
  return this->score(logits_, labels, nullptr);
}

template class ConvNet<float>;
template class ConvNet<double>;

namespace {

constexpr int kColumnsPerChunk = 256;
constexpr int kRowsPerChunk = kernels::kGemmRows;

int chunks_of(int count, int size) {
  return (count + size - 1) / size;
}

}  // namespace

ModelLayout mlp_layout(int width, int depth) {
  ModelLayout layout{"mlp", 0, {}};
  const auto add = [&](const std::string& name, int inputs, std::vector<std::int64_t> shape) {
    std::size_t size = 1;
    for (const std::int64_t side : shape)
      size *= static_cast<std::size_t>(side);
    layout.parameters.push_back({name, size_of(layout.parameters), size, inputs, std::move(shape)});
  };
  for (int i = 0; i <= depth; ++i) {
    const int inputs = i == 0 ? kImagePixels : width, outputs = i == depth ? kClasses : width;
    const std::string name = std::to_string(2 * i);  // a ReLU lies between two layers
    add(name + ".weight", inputs, {outputs, inputs});
    add(name + ".bias", inputs, {outputs});
  }
  return layout;
}

template <class T>
Mlp<T>::Mlp(int width, int depth, int max_batch, ThreadPool& threads, const kernels::KernelTable<T>& kernels)
    : Model<T>(mlp_layout(width, depth)),
      kernels_(kernels),
      threads_(threads),
      gradient_(static_cast<std::size_t>(max_batch) * std::max(width, kClasses)),
      next_gradient_(gradient_.size()),
      scratch_(static_cast<std::size_t>(threads.threads()) * kernels::kGemmScratch) {
  const auto& tensors = this->parameter_tensors();
  for (auto weight = tensors.begin(); weight != tensors.end(); weight += 2) {
    const int inputs = weight->fan_in, outputs = static_cast<int>(weight->shape[0]);
    layers_.push_back({inputs, outputs, weight->offset, weight[1].offset,
                       AlignedBuffer<T>(static_cast<std::size_t>(max_batch) * outputs)});
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
  compute(images, static_cast<int>(labels.size()));
  return this->score(layers_.back().output, labels, &gradient_);
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
  compute(images, static_cast<int>(labels.size()));
  return this->score(layers_.back().output, labels, nullptr);
}

template class Mlp<float>;
template class Mlp<double>;

}  // namespace ddp::train
