#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"

namespace ddp::train {

template <class T>
class DeviceSteps;

/// Element order of a tensor in the flat vector, compared with PyTorch's row order of its shape.
enum class Layout : std::uint8_t {
  kPlain,        ///< same order
  kConvolution,  ///< here [ky][kx][in][out]; PyTorch [out][in][ky][kx]
  kPlanes,       ///< here [out][place][channel]; PyTorch [out][channel * places + place]
};

/// One tensor of a model in its flat vector.
struct TensorInfo {
  std::string name;                   ///< name in PyTorch's state_dict
  std::size_t offset = 0;             ///< elements
  std::size_t size = 0;               ///< elements
  int fan_in = 0;                     ///< inputs per output, for the initial bound; 0: not drawn at random
  std::vector<std::int64_t> shape{};  ///< shape in PyTorch
  Layout layout = Layout::kPlain;
  int channels = 0;  ///< for Layout::kPlanes
};

/// The names and places of a model's numbers. Tensors are in the order of the flat vectors, without gaps.
struct ModelLayout {
  std::string name;
  int image_border = 0;  ///< zero pixels that the model needs on each side of an image
  std::vector<TensorInfo> parameters, running{};
  std::vector<std::string> counters{};  ///< the state_dict's counters of batches
};

/// Gathers the numbers of every rank in rank order, for statistics of a batch that is spread over ranks. The
/// result is empty after an error, which the provider of this function keeps.
using GatherNumbers = std::function<std::vector<double>(std::span<const double> mine)>;

inline std::size_t size_of(const std::vector<TensorInfo>& tensors) {
  return tensors.empty() ? 0 : tensors.back().offset + tensors.back().size;
}

/// A model for images of ten classes. All parameters lie in one flat vector in the order of the forward pass,
/// and all gradients in another. Backward therefore completes the gradients from the end to the beginning.
/// Only one thread at a time may call.
template <class T>
class Model {
 public:
  /// Backward calls it when all gradients from element `begin` on are complete.
  using OnReady = std::function<void(std::size_t begin)>;

  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelLayout& layout() const { return layout_; }
  const std::string& name() const { return layout_.name; }
  int image_border() const { return layout_.image_border; }
  const std::vector<TensorInfo>& parameter_tensors() const { return layout_.parameters; }
  const std::vector<TensorInfo>& running_tensors() const { return layout_.running; }
  const std::vector<std::string>& counter_names() const { return layout_.counters; }

  /// Takes one image per label, at most max_batch. Keeps what backward needs, including the gradient of the
  /// mean loss at the logits.
  virtual kernels::BatchScore forward(const T* images, std::span<const std::uint8_t> labels) = 0;
  /// Overwrites gradients() with the gradients of the last forward, whose images must be given again.
  virtual void backward(const T* images, int batch, const OnReady& on_ready) = 0;
  /// Uses the running statistics; changes nothing.
  virtual kernels::BatchScore evaluate(const T* images, std::span<const std::uint8_t> labels) = 0;
  /// Returns what runs whole steps on a GPU; this model owns it. Null: only the host drives the steps.
  virtual DeviceSteps<T>* device_steps() { return nullptr; }
  /// Returns "cuBLASLt 13.0.2 (/usr/…)" or "own kernels (reason)": what multiplies on a GPU, where there is a
  /// choice; else nothing.
  virtual std::string products_by() const { return ""; }
  /// Normalizes later batches by the statistics of all ranks together (SyncBN). Forward and backward call the
  /// function, in the same order on all ranks.
  virtual void share_statistics(GatherNumbers) {}

  /// Sets PyTorch's defaults: weights and biases uniform within ± 1 / sqrt(fan_in) (kaiming_uniform with a =
  /// √5), gamma 1, beta 0, running mean 0, running variance 1. The values depend on the seed alone, so they
  /// are equal on all ranks.
  void initialise(std::uint64_t seed);
  kernels::BatchScore forward_backward(const T* images, std::span<const std::uint8_t> labels);

  std::span<T> parameters() { return parameters_.span().first(count_); }
  std::span<T> gradients() { return gradients_.span().first(count_); }
  /// Returns the gradients followed by the mean loss of the last forward: one all-reduce carries both.
  std::span<T> gradients_and_loss() { return gradients_.span().first(count_ + 1); }
  /// Returns the vector, padded with zeros to a multiple of `parts` (at most kMaxParts).
  std::span<T> padded_parameters(std::size_t parts) { return parameters_.span().first(padded(parts)); }
  std::span<T> padded_gradients(std::size_t parts);
  /// Moves the gradients to `memory`: gradient_bytes() bytes, zeroed, aligned to a cache line. It must live
  /// as long as this object or until take_back_gradients().
  std::size_t gradient_bytes() const { return gradients_.size() * sizeof(T); }
  void place_gradients(std::span<std::byte> memory) {
    gradients_ = AlignedBuffer<T>(std::span(reinterpret_cast<T*>(memory.data()), gradients_.size()));
  }
  /// Moves the gradients back to memory of this object, so that the memory of place_gradients() may be freed.
  void take_back_gradients() { gradients_ = AlignedBuffer<T>(gradients_.size()); }
  std::span<T> running_statistics() { return running_.span(); }
  /// Batches in the running statistics: PyTorch's num_batches_tracked.
  std::int64_t& batches() { return batches_; }
  std::size_t parameter_count() const { return count_; }

  static constexpr std::size_t kMaxParts = 65'536;

 protected:
  explicit Model(ModelLayout layout)
      : layout_(std::move(layout)),
        count_(size_of(layout_.parameters)),
        parameters_(count_ + kMaxParts),
        gradients_(count_ + kMaxParts),
        running_(size_of(layout_.running)) {}

  std::size_t padded(std::size_t parts) const { return (count_ + parts - 1) / parts * parts; }
  /// Scores the labels' logits. With `gradient`, whose content becomes that of the mean loss at the logits,
  /// it also sets the loss behind the gradients.
  kernels::BatchScore score(const AlignedBuffer<T>& logits, std::span<const std::uint8_t> labels,
                            AlignedBuffer<T>* gradient);

  ModelLayout layout_;
  std::size_t count_;
  AlignedBuffer<T> parameters_, gradients_, running_;
  std::int64_t batches_ = 0;
};

/// A range of the flat gradient, in elements.
struct GradientBucket {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Divides the flat gradient, followed by `extra` elements, into buckets; [core]. The buckets are in the
/// order in which backward completes them: from the end to the beginning. A tensor is never divided, so a
/// bucket of one large tensor may exceed the cap. The first bucket is small, so that the network has work
/// early; the others are filled up to `cap_bytes`.
std::vector<GradientBucket> plan_buckets(std::span<const TensorInfo> tensors, std::size_t extra,
                                         std::size_t scalar_bytes, std::size_t first_bytes,
                                         std::size_t cap_bytes);

/// SGD or AdamW over a flat range of parameters, as in torch.optim. Owns its state: one or two numbers per
/// parameter.
template <class T>
class Optimizer {
 public:
  Optimizer(const OptimizerSettings& settings, std::size_t size)
      : settings_(settings), first_(size), second_(settings.kind == OptimizerKind::kAdamw ? size : 0) {}

  /// All three spans have the size given to the constructor.
  void step(std::span<T> parameters, std::span<const T> gradients, double lr) {
    ++steps_;
    if (settings_.kind == OptimizerKind::kSgd) {
      kernels::sgd_step<T>(parameters, first_.span(), gradients, static_cast<T>(lr),
                           static_cast<T>(settings_.momentum), static_cast<T>(settings_.weight_decay));
      return;
    }
    kernels::adamw_step<T>(parameters, first_.span(), second_.span(), gradients, settings_, lr, steps_);
  }

  /// One named part of the state for checkpoints. The order of the parts is fixed.
  struct State {
    std::string_view name;
    std::span<T> values;
  };
  std::vector<State> state() {
    if (settings_.kind == OptimizerKind::kSgd) return {{"velocity", first_.span()}};
    return {{"mean", first_.span()}, {"square", second_.span()}};
  }

  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  OptimizerSettings settings_;
  AlignedBuffer<T> first_, second_;  ///< velocity; or mean and mean square
  std::int64_t steps_ = 0;
};

/// Divides work into chunks that the caller numbers. The assignment of chunks to threads is arbitrary. Work
/// whose result must not depend on the number of threads keeps its sums by chunk and adds them in order.
class ThreadPool {
 public:
  /// `threads` includes the calling thread and is at least 1. No thread is started for 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  using ChunkWork = std::function<void(int chunk, int worker)>;

  /// Calls work(0 … chunks - 1), each once; returns when all calls are done. `worker` is below threads(), and
  /// differs between simultaneous calls, so it can choose scratch memory. Exceptions end the program.
  void run(int chunks, const ChunkWork& work);
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  void serve(int worker);
  void take_chunks(std::unique_lock<std::mutex>& lock, int worker);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const ChunkWork* work_ = nullptr;
  int chunks_ = 0;
  int next_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

ModelLayout conv_net_layout();
ModelLayout mlp_layout(int width, int depth);

template <class T>
class ConvBlock;

/// The ConvNet of the usual DDP tutorials, with 29,034 parameters. It has two blocks of conv 5 x 5, batch
/// normalization, ReLU and 2 x 2 maximum, with 16 and 32 channels. A linear layer to 10 classes follows. Its
/// tensors have the names of the tutorials' state_dict; the memory layout is that of our kernels.
template <class T>
class ConvNet final : public Model<T> {
 public:
  static constexpr int kParameters = 29'034;
  static constexpr int kRunning = 96;  ///< running means and variances of both blocks

  /// `threads` and `kernels` must outlive the model.
  ConvNet(int max_batch, ThreadPool& threads,
          const kernels::KernelTable<T>& kernels = kernels::best_kernels<T>());
  ~ConvNet() override;

  /// `images` are padded to kPaddedPixels each, with zero borders.
  kernels::BatchScore forward(const T* images, std::span<const std::uint8_t> labels) override;
  using OnReady = typename Model<T>::OnReady;
  void backward(const T* images, int batch, const OnReady& on_ready) override;
  kernels::BatchScore evaluate(const T* images, std::span<const std::uint8_t> labels) override;
  void share_statistics(GatherNumbers gather) override;

 private:
  using Model<T>::parameters_;
  using Model<T>::gradients_;
  using Model<T>::running_;
  void classify(int batch);

  const kernels::KernelTable<T>& kernels_;
  GatherNumbers gather_;
  std::unique_ptr<ConvBlock<T>> block1_, block2_;
  AlignedBuffer<T> hidden_;           ///< block 1's output, padded for block 2
  AlignedBuffer<T> hidden_gradient_;  ///< dense
  AlignedBuffer<T> features_, features_gradient_;
  AlignedBuffer<T> logits_, logits_gradient_;
};

/// A multi-layer perceptron: 784 pixels, `depth` hidden layers of `width` with ReLU, 10 classes. Its tensors
/// have the names of PyTorch's Sequential(Linear, ReLU, …, Linear): "0.weight", "0.bias", "2.weight", … Its
/// purpose is to load the network: 2048 wide and 7 deep, it has 107 MB of gradients.
template <class T>
class Mlp final : public Model<T> {
 public:
  /// `threads` and `kernels` must outlive the model.
  Mlp(int width, int depth, int max_batch, ThreadPool& threads,
      const kernels::KernelTable<T>& kernels = kernels::best_kernels<T>());

  kernels::BatchScore forward(const T* images, std::span<const std::uint8_t> labels) override;
  using OnReady = typename Model<T>::OnReady;
  void backward(const T* images, int batch, const OnReady& on_ready) override;
  kernels::BatchScore evaluate(const T* images, std::span<const std::uint8_t> labels) override;

 private:
  using Model<T>::parameters_;
  using Model<T>::gradients_;
  struct Layer {
    int inputs, outputs;
    std::size_t weight, bias;  ///< offsets
    AlignedBuffer<T> output;
  };

  /// Fills the outputs of the layers; the last layer's output is the logits.
  void compute(const T* images, int batch);
  void layer_forward(Layer& layer, const T* input, int batch, bool relu);
  void weight_gradients(const Layer& layer, const T* input, int batch);
  void input_gradients(const Layer& layer, int batch);

  const kernels::KernelTable<T>& kernels_;
  ThreadPool& threads_;
  std::vector<Layer> layers_;
  AlignedBuffer<T> gradient_, next_gradient_;  ///< gradients of a layer's outputs, and of its inputs
  AlignedBuffer<T> scratch_;                   ///< kGemmScratch per thread
};

}  // namespace ddp::train
