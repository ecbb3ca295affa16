#include "apps/train/model/optimizer.h"

#include "apps/train/kernels/cpu/weight_update.h"

namespace ddp::train {

template <class T>
Optimizer<T>::Optimizer(const OptimizerSettings& settings, std::size_t size)
    : settings_(settings), first_(size), second_(settings.kind == OptimizerKind::kAdamw ? size : 0) {}

template <class T>
void Optimizer<T>::step(std::span<T> parameters, std::span<const T> gradients, double lr) {
  ++steps_;
  if (settings_.kind == OptimizerKind::kSgd) {
    kernels::sgd_step<T>(parameters, first_.span(), gradients, static_cast<T>(lr),
                         static_cast<T>(settings_.momentum), static_cast<T>(settings_.weight_decay));
    return;
  }
  kernels::adamw_step<T>(parameters, first_.span(), second_.span(), gradients,
                         {lr, settings_.beta1, settings_.beta2, settings_.epsilon, settings_.weight_decay},
                         steps_);
}

template <class T>
auto Optimizer<T>::state() -> std::vector<State> {
  if (settings_.kind == OptimizerKind::kSgd) return {{"velocity", first_.span()}};
  return {{"mean", first_.span()}, {"square", second_.span()}};
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace ddp::train
