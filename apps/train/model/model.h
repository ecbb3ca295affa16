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

/// How a tensor lies in our flat vector, against PyTorch's row order of its shape.
enum class Layout : std::uint8_t {
  kPlain,        ///< the same
  kConvolution,  ///< ours [ky][kx][in][out], PyTorch's [out][in][ky][kx]
  kPlanes,       ///< ours [out][place][channel], PyTorch's [out][channel * places + place]
};

/// One tensor of a model in its flat vector.
struct TensorInfo {
  std::string name;                   ///< in PyTorch's state_dict
  std::size_t offset = 0;             ///< elements
  std::size_t size = 0;               ///< elements
  int fan_in = 0;                     ///< inputs of one output, for the initial bound; 0: not drawn at random
  std::vector<std::int64_t> shape{};  ///< in PyTorch
  Layout layout = Layout::kPlain;
  int channels = 0;  ///< of Layout::kPlanes
};

/// Numbers of every rank, in rank order, for the same numbers of each (statistics of a batch that is spread
/// over ranks). Empty when that failed; the giver keeps the error.
using GatherNumbers = std::function<std::vector<double>(std::span<const double> mine)>;

/// A model for images of ten classes. All parameters lie in one flat vector in the order of the forward pass
/// and all gradients in another, so that backward completes the gradients from the end to the beginning. One
/// thread at a time calls.
template <class T>
class Model {
 public:
  /// Called when all gradients from element `begin` on are complete.
  using OnReady = std::function<void(std::size_t begin)>;

  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  virtual std::string_view name() const = 0;
  /// Zero pixels that the model wants around each image on all four sides.
  virtual int image_border() const = 0;
  /// In the order of the flat vector, without gaps.
  virtual const std::vector<TensorInfo>& parameter_tensors() const = 0;
  virtual const std::vector<TensorInfo>& running_tensors() const = 0;
  /// Names of the state_dict's counters of batches.
  virtual std::vector<std::string> counter_names() const = 0;

  /// One image per label, at most max_batch. Keeps what backward needs, the gradient of the mean loss at the
  /// logits included.
  virtual kernels::BatchScore forward(const T* images, std::span<const std::uint8_t> labels) = 0;
  /// Of the last forward, for the same images: overwrites gradients().
  virtual void backward(const T* images, int batch, const OnReady& on_ready) = 0;
  /// By the running statistics; changes nothing.
  virtual kernels::BatchScore evaluate(const T* images, std::span<const std::uint8_t> labels) = 0;
  /// Whole steps where a GPU can make them; owned by this. Null: only the host leads.
  virtual DeviceSteps<T>* device_steps() { return nullptr; }
  /// From now on batches are normalised by the statistics of all ranks together (SyncBN). Called in forward
  /// and in backward, in the same order on all ranks.
  virtual void share_statistics(GatherNumbers) {}

  /// PyTorch's defaults: uniform within ± 1 / sqrt(fan_in), weights and biases (kaiming_uniform with a = √5);
  /// gamma 1, beta 0, running mean 0, running variance 1. By the seed alone, so equal on all ranks.
  void initialise(std::uint64_t seed);
  kernels::BatchScore forward_backward(const T* images, std::span<const std::uint8_t> labels);

  std::span<T> parameters() { return parameters_.span().first(count_); }
  std::span<T> gradients() { return gradients_.span().first(count_); }
  /// The gradients and, behind them, the mean loss of the last forward: one all-reduce carries both.
  std::span<T> gradients_and_loss() { return gradients_.span().first(count_ + 1); }
  /// With zeros behind, up to a multiple of `parts` (at most kMaxParts).
  std::span<T> padded_parameters(std::size_t parts) { return parameters_.span().first(padded(parts)); }
  std::span<T> padded_gradients(std::size_t parts);
  /// Where gradients are computed from now on: as many bytes, zeroed, aligned to a cache line, for this
  /// object's life.
  std::size_t gradient_bytes() const { return gradients_.size() * sizeof(T); }
  void place_gradients(std::span<std::byte> memory) {
    gradients_ = AlignedBuffer<T>(std::span(reinterpret_cast<T*>(memory.data()), gradients_.size()));
  }
  /// Into memory of this object's own again: what place_gradients() was given may go.
  void take_back_gradients() { gradients_ = AlignedBuffer<T>(gradients_.size()); }
  std::span<T> running_statistics() { return running_.span(); }
  /// That the running statistics have seen: PyTorch's num_batches_tracked.
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
