#include "apps/train/model/model.h"

#include <algorithm>
#include <cmath>

#include "apps/train/data/random.h"

namespace ddp::train {

template <class T>
void Model<T>::initialise(std::uint64_t seed) {
  std::uint64_t stream = 0;
  for (const TensorInfo& tensor : parameter_tensors()) {
    const bool gamma = tensor.fan_in == 0 && tensor.name.ends_with(".weight");
    const double bound = tensor.fan_in ? 1.0 / std::sqrt(tensor.fan_in) : 0.0;
    for (std::size_t i = 0; i < tensor.size; ++i) {
      const double value = gamma ? 1.0 : bound * (2.0 * random_unit(seed, stream, i) - 1.0);
      *parameters_.at(tensor.offset + i) = static_cast<T>(value);
    }
    ++stream;
  }
  for (const TensorInfo& tensor : running_tensors()) {
    const T value = tensor.name.ends_with("_var") ? T(1) : T(0);
    std::fill_n(running_.at(tensor.offset), tensor.size, value);
  }
}

template <class T>
kernels::BatchScore Model<T>::forward_backward(const T* images, std::span<const std::uint8_t> labels) {
  const auto score = forward(images, labels);
  backward(images, static_cast<int>(labels.size()), [](std::size_t) {});
  return score;
}

template <class T>
std::span<T> Model<T>::padded_gradients(std::size_t parts) {
  // The loss lies behind the gradients; a sum of parts must not include it.
  std::fill(gradients_.at(count_), gradients_.at(padded(parts)), T{});
  return gradients_.span().first(padded(parts));
}

template class Model<float>;
template class Model<double>;

}  // namespace ddp::train
