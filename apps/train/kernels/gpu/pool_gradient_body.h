#pragma once

#include "apps/train/kernels/gpu/pool_body.h"

namespace ddp::train::kernels::device {

/// The gradient of the convolution's output, computed from the pooled gradient where it is read. S as in
/// pool_body.h.
template <class T, int Side, int Channels, class S = T>
struct PooledGradient {
  struct Args {
    const S* images;  ///< the convolution's output
    const T* scale;
    const T* shift;
    const T* gain;  ///< from norm_gradient_body.h
    const T* offset;
    const T* slope;
    const T* pooled_gradient;
  };
  static constexpr int kHalf = Side / 2;
  static constexpr int kSize = kHalf * kHalf * Channels;

  /// Computes the gradients of the four pixels of a window, in row order.
  static DDP_HD void window(int image, int window, int channel, const Args& args, T (&to)[4]) {
    const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(image) * kSize;
    const auto read = PoolWindow<T>::template read<Side, Channels>(args.images + from * 4, window, channel,
                                                                   args.scale[channel], args.shift[channel]);
    T winner[4];
    read.share(args.pooled_gradient[from + window * Channels + channel], winner);
    const T gain = args.gain[channel], offset = args.offset[channel], slope = args.slope[channel];
    DDP_UNROLL
    for (int k = 0; k < 4; ++k)
      to[k] = winner[k] * gain + (read.x[k] * slope + offset);
  }

  /// Loads rows as DenseGradient does (weight_gradient_body.h). At an edge, a row of windows is computed
  /// although only one of its pixel rows is needed.
  template <int Rows, int Threads>
  static DDP_HD void load(int image, int y, int thread, T* to, const Args& args) {
    const int begin = y / 2, rows = (y + Rows - 1) / 2 - begin + 1;
    for (int i = thread; i < rows * kHalf * Channels; i += Threads) {
      const int place = i / Channels, channel = i % Channels;
      T gradient[4];
      window(image, begin * kHalf + place, channel, args, gradient);
      const int upper = (begin + place / kHalf) * 2 - y;
      T* const corner = to + (upper * Side + place % kHalf * 2) * Channels + channel;
      if (upper >= 0) corner[0] = gradient[0], corner[Channels] = gradient[1];
      if (upper + 1 < Rows) {
        corner[Side * Channels] = gradient[2];
        corner[(Side + 1) * Channels] = gradient[3];
      }
    }
  }
};

/// Writes PooledGradient to memory; one thread per window and channel. Images of the result lie
/// `image_stride` elements apart, rows `row_stride`.
template <class T, int Side, int Channels, class S = T>
struct PoolGradient {
  using From = PooledGradient<T, Side, Channels, S>;
  struct Args {
    int batch;
    typename From::Args from;
    T* gradient;
    std::ptrdiff_t image_stride;
    int row_stride;
  };
  static constexpr int kThreads = 256;
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch * From::kSize, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i >= args.batch * From::kSize) return;
    const int image = i / From::kSize, window = i % From::kSize / Channels, channel = i % Channels;
    T gradient[4];
    From::window(image, window, channel, args.from, gradient);
    T* to = args.gradient + image * args.image_stride + window / From::kHalf * 2 * args.row_stride +
            window % From::kHalf * 2 * Channels + channel;
    to[0] = gradient[0];
    to[Channels] = gradient[1];
    to[args.row_stride] = gradient[2];
    to[args.row_stride + Channels] = gradient[3];
  }
};

}  // namespace ddp::train::kernels::device
