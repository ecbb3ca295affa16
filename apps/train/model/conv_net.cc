#include "apps/train/model/conv_net.h"

#include <cstddef>
#include <utility>

#include "apps/train/kernels/cpu/softmax_loss.h"

namespace ddp::train {

namespace {

constexpr kernels::ConvShape kShape1{28, 28, 1, 16, 5};
constexpr kernels::ConvShape kShape2{14, 14, 16, 32, 5};
constexpr int kFeatures = 7 * 7 * 32;
constexpr ConvBlockOffsets kBlock1{0, 400, 416, 432, 0, 16};
constexpr ConvBlockOffsets kBlock2{448, 13'248, 13'280, 13'312, 32, 64};
constexpr int kFcWeight = 13'344;
constexpr int kFcBias = 29'024;

}  // namespace

template <class T>
const std::vector<TensorInfo>& ConvNet<T>::parameter_tensors() const {
  static const std::vector<TensorInfo> tensors{
      {"layer1.0.weight", 0, 400, 25, {16, 1, 5, 5}, Layout::kConvolution},
      {"layer1.0.bias", 400, 16, 25, {16}},
      {"layer1.1.weight", 416, 16, 0, {16}},
      {"layer1.1.bias", 432, 16, 0, {16}},
      {"layer2.0.weight", 448, 12'800, 400, {32, 16, 5, 5}, Layout::kConvolution},
      {"layer2.0.bias", 13'248, 32, 400, {32}},
      {"layer2.1.weight", 13'280, 32, 0, {32}},
      {"layer2.1.bias", 13'312, 32, 0, {32}},
      {"fc.weight", kFcWeight, 15'680, kFeatures, {kClasses, kFeatures}, Layout::kPlanes, 32},
      {"fc.bias", kFcBias, 10, kFeatures, {kClasses}},
  };
  return tensors;
}

template <class T>
const std::vector<TensorInfo>& ConvNet<T>::running_tensors() const {
  static const std::vector<TensorInfo> tensors{
      {"layer1.1.running_mean", 0, 16, 0, {16}},
      {"layer1.1.running_var", 16, 16, 0, {16}},
      {"layer2.1.running_mean", 32, 32, 0, {32}},
      {"layer2.1.running_var", 64, 32, 0, {32}},
  };
  return tensors;
}

template <class T>
std::vector<std::string> ConvNet<T>::counter_names() const {
  return {"layer1.1.num_batches_tracked", "layer2.1.num_batches_tracked"};
}

template <class T>
ConvNet<T>::ConvNet(int max_batch, ThreadPool& threads, const kernels::KernelTable<T>& kernels)
    : Model<T>(kParameters, kRunning),
      kernels_(kernels),
      block1_(kernels, kShape1, kBlock1, max_batch, threads),
      block2_(kernels, kShape2, kBlock2, max_batch, threads),
      hidden_(static_cast<std::size_t>(max_batch) * kShape2.padded_size()),
      hidden_gradient_(static_cast<std::size_t>(max_batch) * block1_.pooled_size()),
      features_(static_cast<std::size_t>(max_batch) * kFeatures),
      features_gradient_(static_cast<std::size_t>(max_batch) * kFeatures),
      logits_(static_cast<std::size_t>(max_batch) * kClasses),
      logits_gradient_(static_cast<std::size_t>(max_batch) * kClasses) {}

template <class T>
void ConvNet<T>::share_statistics(GatherNumbers gather) {
  gather_ = std::move(gather);
  block1_.share_statistics(&gather_);
  block2_.share_statistics(&gather_);
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
kernels::BatchScore ConvNet<T>::forward(const T* images, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  const T* parameters = parameters_.data();
  block1_.forward_training(batch, images, parameters, running_.data(), hidden_images());
  block2_.forward_training(batch, hidden_.data(), parameters, running_.data(), feature_images());
  classify(batch);
  const std::size_t logits = static_cast<std::size_t>(batch) * kClasses;
  const auto score = kernels::softmax_loss<T>(logits_.span().first(logits), labels, kClasses,
                                              logits_gradient_.span().first(logits));
  this->gradients_and_loss().back() = static_cast<T>(score.loss_sum / batch);
  return score;
}

template <class T>
void ConvNet<T>::backward(const T* images, int batch, const OnReady& on_ready) {
  const T* parameters = parameters_.data();
  kernels_.linear_gradient({batch, kFeatures, kClasses}, features_.data(), parameters + kFcWeight,
                           logits_gradient_.data(), features_gradient_.data(), gradients_.at(kFcWeight),
                           gradients_.at(kFcBias));
  on_ready(kFcWeight);
  block2_.backward(batch, hidden_.data(), parameters, features_gradient_.data(), gradients_.data(),
                   hidden_gradient_.data());
  on_ready(kBlock2.weight);
  block1_.backward(batch, images, parameters, hidden_gradient_.data(), gradients_.data(), nullptr);
  on_ready(0);
}

template <class T>
kernels::BatchScore ConvNet<T>::evaluate(const T* images, std::span<const std::uint8_t> labels) {
  const int batch = static_cast<int>(labels.size());
  block1_.forward_evaluation(batch, images, parameters_.data(), running_.data(), hidden_images());
  block2_.forward_evaluation(batch, hidden_.data(), parameters_.data(), running_.data(), feature_images());
  classify(batch);
  const std::size_t logits = static_cast<std::size_t>(batch) * kClasses;
  return kernels::softmax_loss<T>(logits_.span().first(logits), labels, kClasses, {});
}

template class ConvNet<float>;
template class ConvNet<double>;

}  // namespace ddp::train
