#pragma once

#include <cstdint>
#include <span>

namespace ddp::train::kernels {

struct AdamwSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0.01;  ///< of the weights, outside the gradient (Loshchilov, Hutter 2019)
};

/// One step as torch.optim.AdamW, the `step`-th (from 1). Same bits on every processor, as sgd_step.
template <class T>
void adamw_step(std::span<T> parameters, std::span<T> mean, std::span<T> square, std::span<const T> gradients,
                const AdamwSettings& settings, std::int64_t step);

}  // namespace ddp::train::kernels
