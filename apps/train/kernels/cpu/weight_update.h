#pragma once

#include <cstdint>
#include <span>

namespace ddp::train::kernels {

// Operations on a reduced gradient before the update. They give the same bits on every processor, as
// sgd_step.

/// to += from.
template <class T>
void add(std::span<T> to, std::span<const T> from);
/// Multiplies by `share`; returns false if a number is nan or infinite afterwards.
template <class T>
bool average(std::span<T> values, T share);
/// Clips into [-limit, limit]; a nan stays a nan.
template <class T>
void clip_value(std::span<T> values, T limit);
/// Sums in double, in a fixed order.
template <class T>
double squared_norm(std::span<const T> values);

/// SGD with momentum as torch.optim.SGD: velocity = momentum * velocity + gradient + decay * parameter;
/// parameter -= lr * velocity. Built without fused multiply-add and for the plainest processor, so that every
/// rank gets the same bits from the same gradient, even if processors differ.
template <class T>
void sgd_step(std::span<T> parameters, std::span<T> velocity, std::span<const T> gradients, T lr, T momentum,
              T decay);

struct AdamwSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0.01;  ///< weight decay, separate from the gradient (Loshchilov, Hutter 2019)
};

/// Makes the `step`-th step (from 1) as torch.optim.AdamW. Same bits on every processor, as sgd_step.
template <class T>
void adamw_step(std::span<T> parameters, std::span<T> mean, std::span<T> square, std::span<const T> gradients,
                const AdamwSettings& settings, std::int64_t step);

}  // namespace ddp::train::kernels
