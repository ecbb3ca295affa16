#include "apps/train/kernels/cpu/adamw.h"

#include <cmath>
#include <cstddef>

namespace ddp::train::kernels {

template <class T>
void adamw_step(std::span<T> parameters, std::span<T> mean, std::span<T> square, std::span<const T> gradients,
                const AdamwSettings& settings, std::int64_t step) {
  const double count = static_cast<double>(step);
  const T root_correction = static_cast<T>(std::sqrt(1 - std::pow(settings.beta2, count)));
  const T rate = static_cast<T>(settings.lr / (1 - std::pow(settings.beta1, count)));
  const T keep = static_cast<T>(1 - settings.lr * settings.decay);
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

template void adamw_step<float>(std::span<float>, std::span<float>, std::span<float>, std::span<const float>,
                                const AdamwSettings&, std::int64_t);
template void adamw_step<double>(std::span<double>, std::span<double>, std::span<double>,
                                 std::span<const double>, const AdamwSettings&, std::int64_t);

}  // namespace ddp::train::kernels
