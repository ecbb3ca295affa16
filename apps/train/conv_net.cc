#include "apps/train/conv_net.h"

#include <cmath>
#include <cstddef>

#include "apps/train/random.h"

namespace ddp::train {

namespace {

constexpr kernels::ConvShape kShape1{28, 28, 1, 16, 5};
constexpr kernels::ConvShape kShape2{14, 14, 16, 32, 5};
constexpr int kFeatures = 7 * 7 * 32;

constexpr TensorInfo kParameterLayout[] = {
    {"layer1.0.weight", 0, 400, 25},          {"layer1.0.bias", 400, 16, 25},
    {"layer1.1.weight", 416, 16, 0},          {"layer1.1.bias", 432, 16, 0},
    {"layer2.0.weight", 448, 12'800, 400},    {"layer2.0.bias", 13'248, 32, 400},
    {"layer2.1.weight", 13'280, 32, 0},       {"layer2.1.bias", 13'312, 32, 0},
    {"fc.weight", 13'344, 15'680, kFeatures}, {"fc.bias", 29'024, 10, kFeatures},
};
constexpr TensorInfo kRunningLayout[] = {
    {"layer1.1.running_mean", 0, 16, 0},
    {"layer1.1.running_var", 16, 16, 0},
    {"layer2.1.running_mean", 32, 32, 0},
    {"layer2.1.running_var", 64, 32, 0},
};
constexpr ConvBlockOffsets kBlock1{0, 400, 416, 432, 0, 16};
constexpr ConvBlockOffsets kBlock2{448, 13'248, 13'280, 13'312, 32, 64};
constexpr int kFcWeight = 13'344;
constexpr int kFcBias = 29'024;

}  // namespace

template <class T>
std::span<const TensorInfo> ConvNet<T>::parameter_layout() {
  return kParameterLayout;
}

template <class T>
std::span<const TensorInfo> ConvNet<T>::running_layout() {
  return kRunningLayout;
}

template <class T>
ConvNet<T>::ConvNet(int max_batch, const kernels::KernelTable<T>& kernels)
    : kernels_(kernels),
      max_batch_(max_batch),
      parameters_(kParameters),
      gradients_(kParameters + 1),
      running_(kRunning),
      block1_(kernels, kShape1, kBlock1, max_batch),
      block2_(kernels, kShape2, kBlock2, max_batch),
      hidden_(static_cast<std::size_t>(max_batch) * kShape2.padded_size()),
      hidden_gradient_(static_cast<std::size_t>(max_batch) * block1_.pooled_size()),
      features_(static_cast<std::size_t>(max_batch) * kFeatures),
      features_gradient_(static_cast<std::size_t>(max_batch) * kFeatures),
      logits_(static_cast<std::size_t>(max_batch) * kClasses),
      logits_gradient_(static_cast<std::size_t>(max_batch) * kClasses) {}

template <class T>
void ConvNet<T>::initialise(std::uint64_t seed) {
  std::uint64_t stream = 0;
  for (const TensorInfo& tensor : kParameterLayout) {
    const bool gamma = tensor.fan_in == 0 && tensor.name.ends_with(".weight");
    const double bound = tensor.fan_in ? 1.0 / std::sqrt(tensor.fan_in) : 0.0;
    for (int i = 0; i < tensor.size; ++i) {
      const double value = gamma ? 1.0 : bound * (2.0 * random_unit(seed, stream, i) - 1.0);
      *parameters_.at(tensor.offset + i) = static_cast<T>(value);
    }
    ++stream;
  }
  for (const TensorInfo& tensor : kRunningLayout) {
    const T value = tensor.name.ends_with("_var") ? T(1) : T(0);
    for (int i = 0; i < tensor.size; ++i)
      *running_.at(tensor.offset + i) = value;
  }
}

template <class T>
auto ConvNet<T>::hidden_images() -> Images {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(kShape2.padded_width()) * kShape2.in_channels;
  return {hidden_.data() + kShape2.border() * (row + kShape2.in_channels), kShape2.padded_size(), row};
}

template <class T>
auto ConvNet<T>::feature_images() -> Images {
  return {features_.data(), kFeatures, 7 * 32};
}

template <class T>
void ConvNet<T>::classify(int batch) {
  kernels_.linear({batch, kFeatures, kClasses}, features_.data(), parameters_.at(kFcWeight),
                  parameters_.at(kFcBias), logits_.data());
}

template <class T>
kernels::BatchScore ConvNet<T>::forward_backward(const T* padded, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  const T* parameters = parameters_.data();
  block1_.forward_training(batch, padded, parameters, running_.data(), hidden_images());
  block2_.forward_training(batch, hidden_.data(), parameters, running_.data(), feature_images());
  classify(batch);

  const std::size_t logits = static_cast<std::size_t>(batch) * kClasses;
  const auto score = kernels::softmax_loss<T>(logits_.span().first(logits), labels, kClasses,
                                              logits_gradient_.span().first(logits));
  kernels_.linear_gradient({batch, kFeatures, kClasses}, features_.data(), parameters + kFcWeight,
                           logits_gradient_.data(), features_gradient_.data(), gradients_.at(kFcWeight),
                           gradients_.at(kFcBias));
  block2_.backward(batch, hidden_.data(), parameters, features_gradient_.data(), gradients_.data(),
                   hidden_gradient_.data());
  block1_.backward(batch, padded, parameters, hidden_gradient_.data(), gradients_.data(), nullptr);
  gradients_and_loss().back() = static_cast<T>(score.loss_sum / batch);
  return score;
}

template <class T>
kernels::BatchScore ConvNet<T>::evaluate(const T* padded, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  block1_.forward_evaluation(batch, padded, parameters_.data(), running_.data(), hidden_images());
  block2_.forward_evaluation(batch, hidden_.data(), parameters_.data(), running_.data(), feature_images());
  classify(batch);
  const std::size_t logits = static_cast<std::size_t>(batch) * kClasses;
  return kernels::softmax_loss<T>(logits_.span().first(logits), labels, kClasses, {});
}

template class ConvNet<float>;
template class ConvNet<double>;

}  // namespace ddp::train
