#include "apps/train/kernels/cpu/sgd.h"

#include <cstddef>

namespace ddp::train::kernels {

template <class T>
void sgd_step(std::span<T> parameters, std::span<T> velocity, std::span<const T> gradients, T lr, T momentum,
              T decay) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    velocity[i] = momentum * velocity[i] + (gradients[i] + decay * parameters[i]);
    parameters[i] -= lr * velocity[i];
  }
}

template void sgd_step<float>(std::span<float>, std::span<float>, std::span<const float>, float, float,
                              float);
template void sgd_step<double>(std::span<double>, std::span<double>, std::span<const double>, double, double,
                               double);

}  // namespace ddp::train::kernels
