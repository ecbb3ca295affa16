#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/model/model.h"
#include "apps/train/options/options.h"
#include "base/result.h"

namespace ddp::train {

/// Training steps that every rank makes alike: the same weights, which stay, and the same batches. Equal
/// devices give gradients with equal bits. One thread at a time; on a GPU, with the rank's GPU as the current
/// one.
class EqualSteps {
 public:
  static constexpr std::size_t kBatches = 8;
  /// A rank makes each batch twice, so that a fault that passes shows in the rank itself, too.
  static constexpr std::size_t kSteps = 2 * kBatches;

  struct Step {
    std::uint64_t hash = 0;  ///< of the gradients; 0: a gradient was not finite
    double seconds = 0;      ///< on a GPU by its own clock
  };

  /// `width`: of the MLP's layers. `threads`: of a CPU.
  static Result<std::unique_ptr<EqualSteps>> open(DeviceKind device, int local_rank, int width, int threads);

  /// Hashes what must be equal for equal bits: the kind of device, what multiplies on it, and the width.
  std::uint64_t kind() const { return kind_; }
  /// Makes step `number` (from 0). `inject`: a bit of one gradient is inverted.
  Result<Step> make(std::size_t number, bool inject);

 private:
  explicit EqualSteps(int threads) : threads_(threads) {}
  Result<Step> make_on_device(const float* images, std::span<const std::uint8_t> labels, bool inject);
  Step make_on_host(const float* images, std::span<const std::uint8_t> labels, bool inject);

  ThreadPool threads_;
  std::unique_ptr<Model<float>> model_;
  std::unique_ptr<Optimizer<float>> optimizer_;  ///< without momentum, its velocity is the gradient
  std::uint64_t kind_ = 0;
  AlignedBuffer<float> images_;  ///< of all batches
  std::vector<std::uint8_t> labels_;
};

}  // namespace ddp::train
