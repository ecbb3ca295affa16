#include "apps/train/kernels/cpu/gradient_ops.h"

#include <cstddef>

namespace ddp::train::kernels {

template <class T>
void add(std::span<T> to, std::span<const T> from) {
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] += from[i];
}

template <class T>
bool average(std::span<T> values, T share) {
  // Stay 0 unless a number is not finite; several, so that they need not wait for each other.
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
    // Not std::min and std::max: with these comparisons a nan is kept.
    value = value > limit ? limit : value;
    value = value < -limit ? -limit : value;
  }
}

template <class T>
double squared_norm(std::span<const T> values) {
  // Four sums that do not wait for each other, always the same four.
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

#define DDP_INSTANTIATE(T)                                \
  template void add<T>(std::span<T>, std::span<const T>); \
  template bool average<T>(std::span<T>, T);              \
  template void clip_value<T>(std::span<T>, T);           \
  template double squared_norm<T>(std::span<const T>);
DDP_INSTANTIATE(float)
DDP_INSTANTIATE(double)
#undef DDP_INSTANTIATE

}  // namespace ddp::train::kernels
