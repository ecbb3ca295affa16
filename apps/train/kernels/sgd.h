#pragma once

#include <span>

namespace ddp::train::kernels {

/// SGD with momentum as torch.optim.SGD: velocity = momentum * velocity + scale * gradient; parameter -= lr *
/// velocity. `scale` turns the sum over the ranks into their mean. Built without fused multiply-add and for
/// the plainest processor: every rank gets the same bits from the same sums, also where processors differ.
template <class T>
void sgd_step(std::span<T> parameters, std::span<T> velocity, std::span<const T> gradients, T lr, T momentum,
              T scale);

}  // namespace ddp::train::kernels
