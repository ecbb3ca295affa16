#pragma once

#include <span>

namespace ddp::train::kernels {

/// SGD with momentum as torch.optim.SGD: velocity = momentum * velocity + gradient + decay * parameter;
/// parameter -= lr * velocity. Built without fused multiply-add and for the plainest processor: every rank
/// gets the same bits from the same gradient, also where processors differ.
template <class T>
void sgd_step(std::span<T> parameters, std::span<T> velocity, std::span<const T> gradients, T lr, T momentum,
              T decay);

}  // namespace ddp::train::kernels
