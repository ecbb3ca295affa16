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
  using Windows = PoolWindows<T>;
  using Quad = Pack<T, Windows::kLanes>;
  static constexpr int kHalf = Side / 2;
  static constexpr int kQuads = Channels / Windows::kLanes;
  static constexpr int kSize = kHalf * kHalf * Channels;

  /// Computes the gradients of the four pixels of a window, in row order, for channels `channel` to
  /// `channel` + 3.
  static DDP_HD void compute(int image, int window, int channel, const Args& args, Quad (&to)[4]) {
    const auto quad = [&](const T* from) { return *reinterpret_cast<const Quad*>(from + channel); };
    const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(image) * kSize;
    const auto read = Windows::template read<Side, Channels>(args.images + from * 4, window, channel,
                                                             args.scale, args.shift);
    const Quad pooled = quad(args.pooled_gradient + from + window * Channels);
    const Quad gain = quad(args.gain), offset = quad(args.offset), slope = quad(args.slope);
    DDP_UNROLL
    for (int l = 0; l < Windows::kLanes; ++l) {
      T winner[4];
      read.lane[l].share(pooled.v[l], winner);
      DDP_UNROLL
      for (int k = 0; k < 4; ++k)
        to[k].v[l] = winner[k] * gain.v[l] + (read.lane[l].x[k] * slope.v[l] + offset.v[l]);
    }
  }
  static DDP_HD void put(const Quad& quad, T* to) { *reinterpret_cast<Quad*>(to) = quad; }

  /// Loads rows as DenseGradient does (weight_gradient_body.h). At an edge, a row of windows is computed
  /// although only one of its pixel rows is needed.
  template <int Rows, int Threads>
  static DDP_HD void load(int image, int y, int thread, T* to, const Args& args) {
    const int begin = y / 2, rows = (y + Rows - 1) / 2 - begin + 1;
    for (int i = thread; i < rows * kHalf * kQuads; i += Threads) {
      const int place = i / kQuads, channel = i % kQuads * Windows::kLanes;
      Quad gradient[4];
      compute(image, begin * kHalf + place, channel, args, gradient);
      const int upper = (begin + place / kHalf) * 2 - y;
      T* const corner = to + (upper * Side + place % kHalf * 2) * Channels + channel;
      if (upper >= 0) put(gradient[0], corner), put(gradient[1], corner + Channels);
      if (upper + 1 < Rows) {
        put(gradient[2], corner + Side * Channels);
        put(gradient[3], corner + (Side + 1) * Channels);
      }
    }
  }
};

/// Writes PooledGradient to memory; one thread per window and four channels. Images of the result lie
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
  static constexpr int kSize = From::kHalf * From::kHalf * From::kQuads;  ///< threads of an image
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch * kSize, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i >= args.batch * kSize) return;
    const int image = i / kSize, window = i % kSize / From::kQuads;
    const int channel = i % From::kQuads * From::Windows::kLanes;
    typename From::Quad gradient[4];
    From::compute(image, window, channel, args.from, gradient);
    T* to = args.gradient + image * args.image_stride + window / From::kHalf * 2 * args.row_stride +
            window % From::kHalf * 2 * Channels + channel;
    From::put(gradient[0], to);
    From::put(gradient[1], to + Channels);
    From::put(gradient[2], to + args.row_stride);
    From::put(gradient[3], to + args.row_stride + Channels);
  }
};

}  // namespace ddp::train::kernels::device
