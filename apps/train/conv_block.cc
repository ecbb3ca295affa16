#include "apps/train/conv_block.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ddp::train {

namespace {
constexpr double kEpsilon = 1e-5;
constexpr double kRunningMomentum = 0.1;
}  // namespace

template <class T>
ConvBlock<T>::ConvBlock(const kernels::KernelTable<T>& kernels, kernels::ConvShape shape,
                        ConvBlockOffsets offsets, int max_batch)
    : kernels_(kernels),
      shape_(shape),
      turned_shape_{shape.height, shape.width, shape.out_channels, shape.in_channels, shape.window},
      at_(offsets),
      convolved_(static_cast<std::size_t>(max_batch) * shape.output_size()),
      image_gradient_(turned_shape_.padded_size()),
      turned_weight_(shape.weight_size()),
      scale_(shape.out_channels),
      shift_(shape.out_channels),
      spread_gain_(shape.out_channels),
      spread_offset_(shape.out_channels),
      spread_slope_(shape.out_channels),
      channel_a_(shape.out_channels),
      channel_b_(shape.out_channels),
      mean_(shape.out_channels),
      inverse_deviation_(shape.out_channels),
      sum_a_(shape.out_channels),
      sum_b_(shape.out_channels) {}

template <class T>
void ConvBlock<T>::convolve_image(int n, const T* padded, const T* parameters) {
  kernels_.convolve(shape_, padded + static_cast<std::ptrdiff_t>(n) * shape_.padded_size(),
                    parameters + at_.weight, parameters + at_.bias,
                    convolved_.at(static_cast<std::size_t>(n) * shape_.output_size()));
}

template <class T>
void ConvBlock<T>::pool_image(int n, Images pooled) {
  kernels_.norm_relu_pool(shape_.height, shape_.width, shape_.out_channels,
                          convolved_.at(static_cast<std::size_t>(n) * shape_.output_size()),
                          {scale_.data(), shift_.data()}, pooled.data + n * pooled.image_stride,
                          pooled.row_stride);
}

template <class T>
void ConvBlock<T>::set_norm(std::span<const double> mean, std::span<const double> variance,
                            const T* parameters) {
  for (int c = 0; c < shape_.out_channels; ++c) {
    const double inverse = 1.0 / std::sqrt(variance[c] + kEpsilon);
    const double gamma = static_cast<double>(parameters[at_.gamma + c]);
    *mean_.at(c) = mean[c];
    *inverse_deviation_.at(c) = inverse;
    *scale_.at(c) = static_cast<T>(gamma * inverse);
    *shift_.at(c) = static_cast<T>(static_cast<double>(parameters[at_.beta + c]) - mean[c] * gamma * inverse);
  }
}

template <class T>
void ConvBlock<T>::forward_training(int batch, const T* padded, const T* parameters, T* running,
                                    Images pooled) {
  const int channels = shape_.out_channels;
  const int pixels = shape_.height * shape_.width;
  std::vector<double> mean(channels, 0.0);
  std::vector<double> squares(channels, 0.0);
  for (int n = 0; n < batch; ++n) {
    convolve_image(n, padded, parameters);
    kernels_.channel_moments(pixels, channels,
                             convolved_.at(static_cast<std::size_t>(n) * shape_.output_size()),
                             channel_a_.data(), channel_b_.data());
    // Chan's merge of (count, mean, squared differences): stable where a sum of squares would cancel.
    const double share = 1.0 / (n + 1);
    for (int c = 0; c < channels; ++c) {
      const double difference = static_cast<double>(*channel_a_.at(c)) - mean[c];
      mean[c] += difference * share;
      squares[c] += static_cast<double>(*channel_b_.at(c)) + difference * difference * pixels * n * share;
    }
  }

  const double count = static_cast<double>(pixels) * batch;
  for (int c = 0; c < channels; ++c) {
    T& running_mean = running[at_.running_mean + c];
    T& running_variance = running[at_.running_variance + c];
    const double unbiased = squares[c] / std::max(count - 1, 1.0);
    running_mean = static_cast<T>((1 - kRunningMomentum) * running_mean + kRunningMomentum * mean[c]);
    running_variance =
        static_cast<T>((1 - kRunningMomentum) * running_variance + kRunningMomentum * unbiased);
    squares[c] /= count;
  }
  set_norm(mean, squares, parameters);
  for (int n = 0; n < batch; ++n)
    pool_image(n, pooled);
}

template <class T>
void ConvBlock<T>::forward_evaluation(int batch, const T* padded, const T* parameters, const T* running,
                                      Images pooled) {
  const T* mean = running + at_.running_mean;
  const T* variance = running + at_.running_variance;
  set_norm(std::vector<double>(mean, mean + shape_.out_channels),
           std::vector<double>(variance, variance + shape_.out_channels), parameters);
  for (int n = 0; n < batch; ++n) {
    convolve_image(n, padded, parameters);
    pool_image(n, pooled);
  }
}

template <class T>
void ConvBlock<T>::sum_norm_gradients(int batch, const T* parameters, const T* pooled_gradient,
                                      T* gradients) {
  const int channels = shape_.out_channels;
  std::fill_n(sum_a_.data(), channels, 0.0);
  std::fill_n(sum_b_.data(), channels, 0.0);
  for (int n = 0; n < batch; ++n) {
    kernels_.pool_gradient_sums(shape_.height, shape_.width, channels,
                                convolved_.at(static_cast<std::size_t>(n) * shape_.output_size()),
                                {scale_.data(), shift_.data()},
                                pooled_gradient + static_cast<std::ptrdiff_t>(n) * pooled_size(),
                                channel_a_.data(), channel_b_.data());
    for (int c = 0; c < channels; ++c) {
      *sum_a_.at(c) += static_cast<double>(*channel_a_.at(c));
      *sum_b_.at(c) += static_cast<double>(*channel_b_.at(c));
    }
  }

  const double count = static_cast<double>(shape_.height) * shape_.width * batch;
  for (int c = 0; c < channels; ++c) {
    const double inverse = *inverse_deviation_.at(c);
    const double gain = static_cast<double>(parameters[at_.gamma + c]) * inverse;
    const double beta_gradient = *sum_a_.at(c);
    const double gamma_gradient = (*sum_b_.at(c) - *mean_.at(c) * beta_gradient) * inverse;
    gradients[at_.beta + c] = static_cast<T>(beta_gradient);
    gradients[at_.gamma + c] = static_cast<T>(gamma_gradient);
    // gain * (g - mean(g) - xhat * mean(g * xhat)), with xhat = (x - mean) * inverse written out in x.
    const double slope = -gain * inverse * gamma_gradient / count;
    *spread_gain_.at(c) = static_cast<T>(gain);
    *spread_slope_.at(c) = static_cast<T>(slope);
    *spread_offset_.at(c) = static_cast<T>(-gain * beta_gradient / count - slope * *mean_.at(c));
  }
}

template <class T>
void ConvBlock<T>::backward(int batch, const T* padded, const T* parameters, const T* pooled_gradient,
                            T* gradients, T* input_gradient) {
  sum_norm_gradients(batch, parameters, pooled_gradient, gradients);
  std::fill_n(gradients + at_.weight, shape_.weight_size(), T{});
  std::fill_n(gradients + at_.bias, shape_.out_channels, T{});
  if (input_gradient != nullptr) {
    kernels_.turn_weights(shape_, parameters + at_.weight, turned_weight_.data());
  }

  const std::ptrdiff_t stride =
      static_cast<std::ptrdiff_t>(turned_shape_.padded_width()) * shape_.out_channels;
  T* inner = image_gradient_.data() + shape_.border() * (stride + shape_.out_channels);
  for (int n = 0; n < batch; ++n) {
    kernels_.norm_relu_pool_gradient(
        shape_.height, shape_.width, shape_.out_channels,
        convolved_.at(static_cast<std::size_t>(n) * shape_.output_size()), {scale_.data(), shift_.data()},
        {spread_gain_.data(), spread_offset_.data(), spread_slope_.data()},
        pooled_gradient + static_cast<std::ptrdiff_t>(n) * pooled_size(), inner, stride);
    kernels_.convolve_weight_gradient(shape_, padded + static_cast<std::ptrdiff_t>(n) * shape_.padded_size(),
                                      inner, stride, gradients + at_.weight);
    kernels_.channel_sum(shape_.height, shape_.width, shape_.out_channels, inner, stride,
                         gradients + at_.bias);
    if (input_gradient != nullptr) {
      kernels_.convolve(turned_shape_, image_gradient_.data(), turned_weight_.data(), nullptr,
                        input_gradient + static_cast<std::ptrdiff_t>(n) * turned_shape_.output_size());
    }
  }
}

template class ConvBlock<float>;
template class ConvBlock<double>;

}  // namespace ddp::train
