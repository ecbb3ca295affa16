#pragma once

#include "apps/train/kernels/device/pool_body.h"

namespace ddp::train::kernels::device {

/// From the pooled gradient to that of the convolution's output; a thread for each window and channel. Images
/// of the result lie `image_stride` elements apart, their rows `row_stride`.
template <class T, int Side, int Channels>
struct PoolGradient {
  struct Args {
    int batch;
    const T* images;
    const T* scale;
    const T* shift;
    const T* gain;
    const T* offset;
    const T* slope;
    const T* pooled_gradient;
    T* gradient;
    std::ptrdiff_t image_stride;
    int row_stride;
  };
  static constexpr int kThreads = 256;
  static constexpr int kHalf = Side / 2;
  static constexpr int kSize = kHalf * kHalf * Channels;
  using Shared = Nothing;
  using Local = Nothing;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch * kSize, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, Place at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i >= args.batch * kSize) return;
    const int image = i / kSize, window = i % kSize / Channels, channel = i % Channels;
    const auto read = PoolWindow<T>::template read<Side, Channels>(
        args.images + static_cast<std::ptrdiff_t>(image) * kSize * 4, window, channel, args.scale[channel],
        args.shift[channel]);
    T winner[4];
    read.share(args.pooled_gradient[i], winner);
    const T gain = args.gain[channel], offset = args.offset[channel], slope = args.slope[channel];
    T* to = args.gradient + image * args.image_stride + window / kHalf * 2 * args.row_stride +
            window % kHalf * 2 * Channels + channel;
    to[0] = winner[0] * gain + (read.x[0] * slope + offset);
    to[Channels] = winner[1] * gain + (read.x[1] * slope + offset);
    to[args.row_stride] = winner[2] * gain + (read.x[2] * slope + offset);
    to[args.row_stride + Channels] = winner[3] * gain + (read.x[3] * slope + offset);
  }
};

}  // namespace ddp::train::kernels::device
