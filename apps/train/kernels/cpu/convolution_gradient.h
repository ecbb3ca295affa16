#pragma once

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/cpu/vector.h"

namespace ddp::train::kernels {
namespace {

/// Sums `Taps` neighboring (kx, in) of one ky times `Vectors` vectors of output channels in registers over
/// the image.
template <class T, class V, int Vectors, int Taps>
inline void weight_gradient_tile(const ConvShape& shape, const T* corner, const T* gradient,
                                 std::ptrdiff_t stride, T* weight_gradient) {
  constexpr int kStep = sizeof(V) / sizeof(T);
  const std::ptrdiff_t in_row = static_cast<std::ptrdiff_t>(shape.padded_width()) * shape.in_channels;
  V sum[Taps][Vectors];
#pragma GCC unroll 16
  for (int t = 0; t < Taps; ++t) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v)
      sum[t][v] = V{};
  }
  for (int y = 0; y < shape.height; ++y) {
    const T* in = corner + y * in_row;
    const T* out = gradient + y * stride;
    for (int x = 0; x < shape.width; ++x) {
      V g[Vectors];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v)
        g[v] = load<V>(out + v * kStep);
#pragma GCC unroll 16
      for (int t = 0; t < Taps; ++t) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v)
          sum[t][v] += in[t] * g[v];
      }
      in += shape.in_channels;
      out += shape.out_channels;
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < Taps; ++t) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      T* to = weight_gradient + t * shape.out_channels + v * kStep;
      store(to, load<V>(to) + sum[t][v]);
    }
  }
}

template <class T, class V, int Vectors, int Taps>
inline void weight_gradient_taps(const ConvShape& shape, int tap, const T* row, const T* gradient,
                                 std::ptrdiff_t stride, T* weight_gradient) {
  for (; tap + Taps <= shape.taps_per_row(); tap += Taps) {
    weight_gradient_tile<T, V, Vectors, Taps>(shape, row + tap, gradient, stride,
                                              weight_gradient + tap * shape.out_channels);
  }
  if constexpr (Taps > 1) {
    if (tap < shape.taps_per_row()) {
      weight_gradient_taps<T, V, Vectors, (Taps > 5 ? 5 : Taps - 1)>(shape, tap, row, gradient, stride,
                                                                     weight_gradient);
    }
  }
}

template <class T>
void convolve_weight_gradient(const ConvShape& shape, const T* padded, const T* output_gradient,
                              std::ptrdiff_t gradient_stride, T* weight_gradient) {
  const std::ptrdiff_t in_row = static_cast<std::ptrdiff_t>(shape.padded_width()) * shape.in_channels;
  const std::ptrdiff_t ky_size = static_cast<std::ptrdiff_t>(shape.taps_per_row()) * shape.out_channels;
  const auto block = [&]<class V, int Vectors>(int channel) {
    for (int ky = 0; ky < shape.window; ++ky) {
      weight_gradient_taps<T, V, Vectors, kTileTaps>(shape, 0, padded + ky * in_row,
                                                     output_gradient + channel, gradient_stride,
                                                     weight_gradient + ky * ky_size + channel);
    }
  };
  int channel = 0;
  for (; channel + 2 * kLanes<T> <= shape.out_channels; channel += 2 * kLanes<T>) {
    block.template operator()<Vector<T>, 2>(channel);
  }
  for (; channel + kLanes<T> <= shape.out_channels; channel += kLanes<T>) {
    block.template operator()<Vector<T>, 1>(channel);
  }
  for (; channel < shape.out_channels; ++channel)
    block.template operator()<T, 1>(channel);
}

template <class T>
void turn_weights(const ConvShape& shape, const T* weight, T* turned) {
  const int places = shape.window * shape.window;
  const int ins = shape.in_channels;
  const int outs = shape.out_channels;
  for (int place = 0; place < places; ++place) {
    const T* from = weight + static_cast<std::ptrdiff_t>(places - 1 - place) * ins * outs;
    T* to = turned + static_cast<std::ptrdiff_t>(place) * ins * outs;
    for (int in = 0; in < ins; ++in) {
      for (int out = 0; out < outs; ++out)
        to[out * ins + in] = from[in * outs + out];
    }
  }
}

}  // namespace
}  // namespace ddp::train::kernels
