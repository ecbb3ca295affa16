#include "apps/train/kernels/cpu/kernel_table.h"

#include <cmath>
#include <cstddef>

namespace ddp::train::kernels {

template <class T>
void add(std::span<T> to, std::span<const T> from) {
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] += from[i];
}

template <class T>
bool average(std::span<T> values, T share) {
  // Stay 0 unless a number is not finite; sixteen, so that they need not wait for each other.
  T zeros[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= values.size(); i += 16) {
    for (std::size_t k = 0; k < 16; ++k) {
      values[i + k] *= share;
      zeros[k] += values[i + k] * T(0);
    }
  }
  for (; i < values.size(); ++i) {
    values[i] *= share;
    zeros[0] += values[i] * T(0);
  }
  for (const T zero : zeros)
    zeros[0] += zero;
  return zeros[0] == T(0);
}

template <class T>
void clip_value(std::span<T> values, T limit) {
  for (T& value : values) {
    // Unlike std::min and std::max, these comparisons keep a nan.
    value = value > limit ? limit : value;
    value = value < -limit ? -limit : value;
  }
}

template <class T>
double squared_norm(std::span<const T> values) {
  // Four sums do not wait for each other; a fixed number of sums keeps the order fixed.
  double sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k)
      sums[k] += static_cast<double>(values[i + k]) * static_cast<double>(values[i + k]);
  }
  for (; i < values.size(); ++i)
    sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
void sgd_step(std::span<T> parameters, std::span<T> velocity, std::span<const T> gradients, T lr, T momentum,
              T decay) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    velocity[i] = momentum * velocity[i] + (gradients[i] + decay * parameters[i]);
    parameters[i] -= lr * velocity[i];
  }
}

template <class T>
void adamw_step(std::span<T> parameters, std::span<T> mean, std::span<T> square, std::span<const T> gradients,
                const OptimizerSettings& settings, double lr, std::int64_t step) {
  const double count = static_cast<double>(step);
  const T root_correction = static_cast<T>(std::sqrt(1 - std::pow(settings.beta2, count)));
  const T rate = static_cast<T>(lr / (1 - std::pow(settings.beta1, count)));
  const T keep = static_cast<T>(1 - lr * settings.weight_decay);
  const T beta1 = static_cast<T>(settings.beta1), rest1 = static_cast<T>(1 - settings.beta1);
  const T beta2 = static_cast<T>(settings.beta2), rest2 = static_cast<T>(1 - settings.beta2);
  const T epsilon = static_cast<T>(settings.epsilon);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const T gradient = gradients[i];
    mean[i] = beta1 * mean[i] + rest1 * gradient;
    square[i] = beta2 * square[i] + rest2 * gradient * gradient;
    const T divisor = std::sqrt(square[i]) / root_correction + epsilon;
    parameters[i] = keep * parameters[i] - rate * (mean[i] / divisor);
  }
}

#define DDP_INSTANTIATE(T)                                                                  \
  template void add<T>(std::span<T>, std::span<const T>);                                   \
  template bool average<T>(std::span<T>, T);                                                \
  template void clip_value<T>(std::span<T>, T);                                             \
  template double squared_norm<T>(std::span<const T>);                                      \
  template void sgd_step<T>(std::span<T>, std::span<T>, std::span<const T>, T, T, T);       \
  template void adamw_step<T>(std::span<T>, std::span<T>, std::span<T>, std::span<const T>, \
                              const OptimizerSettings&, double, std::int64_t);
DDP_INSTANTIATE(float)
DDP_INSTANTIATE(double)

}  // namespace ddp::train::kernels
