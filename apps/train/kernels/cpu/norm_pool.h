#pragma once

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/cpu/vector.h"

namespace ddp::train::kernels {
namespace {

/// The four pixels of a 2 x 2 window in row order, and their normalized values.
template <class V>
struct Window {
  V x[4];
  V z[4];

  template <class T>
  [[gnu::always_inline]] static Window read(const T* corner, std::ptrdiff_t row, int channels, V scale,
                                            V shift) {
    Window window;
    window.x[0] = load<V>(corner);
    window.x[1] = load<V>(corner + channels);
    window.x[2] = load<V>(corner + row);
    window.x[3] = load<V>(corner + row + channels);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
      window.z[k] = window.x[k] * scale + shift;
    return window;
  }
};

template <class V>
[[gnu::always_inline]] inline V larger(V a, V b) {
  return b > a ? b : a;
}

template <class T>
void norm_relu_pool(int height, int width, int channels, const T* image, NormScale<T> norm, T* pooled,
                    std::ptrdiff_t stride) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(width) * channels;
  for_channels<T>(channels, [&]<class V>(int channel) {
    const V scale = load<V>(norm.scale + channel);
    const V shift = load<V>(norm.shift + channel);
    for (int y = 0; y < height / 2; ++y) {
      const T* from = image + 2 * y * row + channel;
      T* to = pooled + y * stride + channel;
      for (int x = 0; x < width / 2; ++x, from += 2 * channels, to += channels) {
        const Window<V> w = Window<V>::read(from, row, channels, scale, shift);
        // ReLU preserves order, so it may come after the maximum.
        const V best = larger(larger(w.z[0], w.z[1]), larger(w.z[2], w.z[3]));
        store(to, larger(V{}, best));
      }
    }
  });
}

/// `winner[k]` receives `gradient` if pixel k is the first maximum in row order and above zero, else zero.
/// Ties of other maxima do not matter, since ReLU stops their gradient.
template <class V>
[[gnu::always_inline]] inline void share_gradient(const Window<V>& w, V gradient, V winner[4]) {
  const V zero = V{};
  const auto first = w.z[1] > w.z[0];  // the second of the upper pair wins only if greater
  const V upper = first ? w.z[1] : w.z[0];
  const auto second = w.z[3] > w.z[2];
  const V lower = second ? w.z[3] : w.z[2];
  const auto below = lower > upper;
  const V best = below ? lower : upper;
  const V alive = best > zero ? gradient : zero;
  const V to_upper = below ? zero : alive;
  const V to_lower = below ? alive : zero;
  winner[0] = first ? zero : to_upper;
  winner[1] = first ? to_upper : zero;
  winner[2] = second ? zero : to_lower;
  winner[3] = second ? to_lower : zero;
}

template <class T>
void pool_gradient_sums(int height, int width, int channels, const T* image, NormScale<T> norm,
                        const T* pooled_gradient, T* gradient_sum, T* product_sum) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(width) * channels;
  for_channels<T>(channels, [&]<class V>(int channel) {
    const V scale = load<V>(norm.scale + channel);
    const V shift = load<V>(norm.shift + channel);
    V gradients = V{};
    V products = V{};
    const T* gradient = pooled_gradient + channel;
    for (int y = 0; y < height / 2; ++y) {
      const T* from = image + 2 * y * row + channel;
      for (int x = 0; x < width / 2; ++x, from += 2 * channels, gradient += channels) {
        const Window<V> w = Window<V>::read(from, row, channels, scale, shift);
        V winner[4];
        share_gradient<V>(w, load<V>(gradient), winner);
        gradients += (winner[0] + winner[1]) + (winner[2] + winner[3]);
        products += (winner[0] * w.x[0] + winner[1] * w.x[1]) + (winner[2] * w.x[2] + winner[3] * w.x[3]);
      }
    }
    store(gradient_sum + channel, gradients);
    store(product_sum + channel, products);
  });
}

template <class T>
void norm_relu_pool_gradient(int height, int width, int channels, const T* image, NormScale<T> norm,
                             NormGradient<T> spread, const T* pooled_gradient, T* image_gradient,
                             std::ptrdiff_t stride) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(width) * channels;
  for_channels<T>(channels, [&]<class V>(int channel) {
    const V scale = load<V>(norm.scale + channel);
    const V shift = load<V>(norm.shift + channel);
    const V gain = load<V>(spread.scale + channel);
    const V offset = load<V>(spread.offset + channel);
    const V slope = load<V>(spread.slope + channel);
    const T* gradient = pooled_gradient + channel;
    for (int y = 0; y < height / 2; ++y) {
      const T* from = image + 2 * y * row + channel;
      T* to = image_gradient + 2 * y * stride + channel;
      for (int x = 0; x < width / 2; ++x, from += 2 * channels, to += 2 * channels, gradient += channels) {
        const Window<V> w = Window<V>::read(from, row, channels, scale, shift);
        V winner[4];
        share_gradient<V>(w, load<V>(gradient), winner);
        store<V>(to, winner[0] * gain + (w.x[0] * slope + offset));
        store<V>(to + channels, winner[1] * gain + (w.x[1] * slope + offset));
        store<V>(to + stride, winner[2] * gain + (w.x[2] * slope + offset));
        store<V>(to + stride + channels, winner[3] * gain + (w.x[3] * slope + offset));
      }
    }
  });
}

}  // namespace
}  // namespace ddp::train::kernels
