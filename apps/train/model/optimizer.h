#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "apps/train/kernels/cpu/aligned_buffer.h"

namespace ddp::train {

enum class OptimizerKind : std::uint8_t { kSgd, kAdamw };

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.9;                              ///< SGD
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< AdamW
  double weight_decay = 0;
};

/// SGD or AdamW over a flat range of parameters, as in torch.optim. Owns its state: one or two numbers per
/// parameter.
template <class T>
class Optimizer {
 public:
  Optimizer(const OptimizerSettings& settings, std::size_t size);

  /// All three spans have the size given to the constructor.
  void step(std::span<T> parameters, std::span<const T> gradients, double lr);

  /// One named part of the state for checkpoints. The order of the parts is fixed.
  struct State {
    std::string_view name;
    std::span<T> values;
  };
  std::vector<State> state();
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  OptimizerSettings settings_;
  AlignedBuffer<T> first_, second_;  ///< velocity; or mean and mean square
  std::int64_t steps_ = 0;
};

}  // namespace ddp::train
