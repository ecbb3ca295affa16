#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/softmax_loss.h"

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

/// Gathers the numbers of every rank in rank order, for statistics of a batch that is spread over ranks. The
/// result is empty after an error, which the provider of this function keeps.
using GatherNumbers = std::function<std::vector<double>(std::span<const double> mine)>;

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

  virtual std::string_view name() const = 0;
  /// Returns how many zero pixels the model needs on each side of an image.
  virtual int image_border() const = 0;
  /// The tensors are in the order of the flat vector, without gaps.
  virtual const std::vector<TensorInfo>& parameter_tensors() const = 0;
  virtual const std::vector<TensorInfo>& running_tensors() const = 0;
  /// Names of the state_dict's counters of batches.
  virtual std::vector<std::string> counter_names() const = 0;

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
  Model(std::size_t parameters, std::size_t running)
      : count_(parameters),
        parameters_(parameters + kMaxParts),
        gradients_(parameters + kMaxParts),
        running_(running) {}

  std::size_t padded(std::size_t parts) const { return (count_ + parts - 1) / parts * parts; }

  std::size_t count_;
  AlignedBuffer<T> parameters_, gradients_, running_;
  std::int64_t batches_ = 0;
};

}  // namespace ddp::train
