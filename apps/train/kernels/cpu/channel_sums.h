#pragma once

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/cpu/vector.h"

namespace ddp::train::kernels {
namespace {

template <class T>
void channel_moments(int pixels, int channels, const T* image, T* mean, T* squares) {
  for_channels<T>(channels, [&]<class V>(int channel) {
    const T* const first = image + channel;
    // Four sums at once hide the latency of the addition, and round less than one long sum.
    V sum[4] = {};
    int pixel = 0;
    for (; pixel + 4 <= pixels; pixel += 4) {
      const T* at = first + static_cast<std::ptrdiff_t>(pixel) * channels;
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        sum[k] += load<V>(at + k * channels);
    }
    for (; pixel < pixels; ++pixel)
      sum[0] += load<V>(first + static_cast<std::ptrdiff_t>(pixel) * channels);
    const V average = ((sum[0] + sum[1]) + (sum[2] + sum[3])) / static_cast<T>(pixels);

    V square[4] = {};
    for (pixel = 0; pixel + 4 <= pixels; pixel += 4) {
      const T* at = first + static_cast<std::ptrdiff_t>(pixel) * channels;
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const V difference = load<V>(at + k * channels) - average;
        square[k] += difference * difference;
      }
    }
    for (; pixel < pixels; ++pixel) {
      const V difference = load<V>(first + static_cast<std::ptrdiff_t>(pixel) * channels) - average;
      square[0] += difference * difference;
    }
    store(mean + channel, average);
    store(squares + channel, (square[0] + square[1]) + (square[2] + square[3]));
  });
}

template <class T>
void channel_sum(int height, int width, int channels, const T* image, std::ptrdiff_t stride, T* sum) {
  for_channels<T>(channels, [&]<class V>(int channel) {
    V total = V{};
    for (int y = 0; y < height; ++y) {
      const T* at = image + y * stride + channel;
      V row[2] = {};
      int x = 0;
      for (; x + 2 <= width; x += 2, at += 2 * channels) {
        row[0] += load<V>(at);
        row[1] += load<V>(at + channels);
      }
      if (x < width) row[0] += load<V>(at);
      total += row[0] + row[1];
    }
    store(sum + channel, load<V>(sum + channel) + total);
  });
}

}  // namespace
}  // namespace ddp::train::kernels
