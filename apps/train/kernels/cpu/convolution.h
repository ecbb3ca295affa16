#pragma once

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/cpu/vector.h"

namespace ddp::train::kernels {
namespace {

/// Computes `Pixels` neighbors of one row times `Vectors` vectors of output channels, in registers over all
/// taps. InChannels 0: known only at run time.
template <class T, class V, int Vectors, int Pixels, int InChannels>
inline void convolve_tile(const ConvShape& shape, const T* corner, const T* weight, const T* bias,
                          T* output) {
  constexpr int kStep = sizeof(V) / sizeof(T);
  const int in_channels = InChannels ? InChannels : shape.in_channels;
  const int taps = shape.window * in_channels;
  const std::ptrdiff_t row_size = static_cast<std::ptrdiff_t>(shape.padded_width()) * in_channels;
  V sum[Pixels][Vectors];
#pragma GCC unroll 16
  for (int p = 0; p < Pixels; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v)
      sum[p][v] = bias ? load<V>(bias + v * kStep) : V{};
  }
  for (int ky = 0; ky < shape.window; ++ky) {
    const T* row = corner + ky * row_size;
    for (int tap = 0; tap < taps; ++tap) {
      V w[Vectors];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v)
        w[v] = load<V>(weight + v * kStep);
#pragma GCC unroll 16
      for (int p = 0; p < Pixels; ++p) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v)
          sum[p][v] += row[p * in_channels + tap] * w[v];
      }
      weight += shape.out_channels;
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < Pixels; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v)
      store(output + p * shape.out_channels + v * kStep, sum[p][v]);
  }
}

/// Computes one row from pixel `x` on, with tiles of `Pixels`, then of fewer pixels.
template <class T, class V, int Vectors, int Pixels, int InChannels>
inline void convolve_row(const ConvShape& shape, int x, const T* row, const T* weight, const T* bias,
                         T* output) {
  for (; x + Pixels <= shape.width; x += Pixels) {
    convolve_tile<T, V, Vectors, Pixels, InChannels>(shape, row + x * shape.in_channels, weight, bias,
                                                     output + x * shape.out_channels);
  }
  if constexpr (Pixels > 1) {
    if (x < shape.width) {
      convolve_row<T, V, Vectors, (Pixels > 4 ? Pixels - 2 : Pixels - 1), InChannels>(shape, x, row, weight,
                                                                                      bias, output);
    }
  }
}

template <class T, int InChannels>
void convolve_channels(const ConvShape& shape, const T* padded, const T* weight, const T* bias, T* output) {
  const std::ptrdiff_t in_row = static_cast<std::ptrdiff_t>(shape.padded_width()) * shape.in_channels;
  const std::ptrdiff_t out_row = static_cast<std::ptrdiff_t>(shape.width) * shape.out_channels;
  // Channels are the outer loop, so that a block's weights stay in the first-level cache over all rows.
  const auto block = [&]<class V, int Vectors>(int channel) {
    const T* channel_bias = bias ? bias + channel : nullptr;
    for (int y = 0; y < shape.height; ++y) {
      convolve_row<T, V, Vectors, kTilePixels, InChannels>(shape, 0, padded + y * in_row, weight + channel,
                                                           channel_bias, output + y * out_row + channel);
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
void convolve(const ConvShape& shape, const T* padded, const T* weight, const T* bias, T* output) {
  // With the model's own sizes as constants, pixel addresses become displacements instead of fourteen
  // registers.
  switch (shape.in_channels) {
    case 1:
      return convolve_channels<T, 1>(shape, padded, weight, bias, output);
    case 16:
      return convolve_channels<T, 16>(shape, padded, weight, bias, output);
    case 32:
      return convolve_channels<T, 32>(shape, padded, weight, bias, output);
    default:
      return convolve_channels<T, 0>(shape, padded, weight, bias, output);
  }
}

}  // namespace
}  // namespace ddp::train::kernels
