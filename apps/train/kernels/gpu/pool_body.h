#pragma once

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

// Activations are stored as S; kernels compute in T.

/// The four pixels of a 2 x 2 window of a channel in row order, and their normalized values.
template <class T>
struct PoolWindow {
  T x[4];
  T z[4];

  /// `window`: its index among the windows of an image [Side][Side][Channels].
  template <int Side, int Channels, class S>
  static DDP_HD PoolWindow read(const S* image, int window, int channel, T scale, T shift) {
    constexpr int kRow = Side * Channels;
    const int y = window / (Side / 2), x = window % (Side / 2);
    const S* corner = image + 2 * y * kRow + 2 * x * Channels + channel;
    PoolWindow read{{static_cast<T>(corner[0]), static_cast<T>(corner[Channels]),
                     static_cast<T>(corner[kRow]), static_cast<T>(corner[kRow + Channels])},
                    {}};
    DDP_UNROLL
    for (int k = 0; k < 4; ++k)
      read.z[k] = read.x[k] * scale + shift;
    return read;
  }

  static DDP_HD T larger(T a, T b) { return b > a ? b : a; }

  /// ReLU preserves order, so it may come after the maximum.
  DDP_HD T pooled() const { return larger(T(0), larger(larger(z[0], z[1]), larger(z[2], z[3]))); }

  /// Gives `gradient` to the first maximum in row order if that is above zero.
  DDP_HD void share(T gradient, T (&winner)[4]) const {
    const bool first = z[1] > z[0], second = z[3] > z[2];
    const T upper = first ? z[1] : z[0], lower = second ? z[3] : z[2];
    const bool below = lower > upper;
    const T alive = (below ? lower : upper) > T(0) ? gradient : T(0);
    const T to_upper = below ? T(0) : alive, to_lower = below ? alive : T(0);
    winner[0] = first ? T(0) : to_upper;
    winner[1] = first ? to_upper : T(0);
    winner[2] = second ? T(0) : to_lower;
    winner[3] = second ? to_lower : T(0);
  }

  /// Adds the maximum's share to `gradients`, and the share's product with its pixel to `products`.
  DDP_HD void add_share(T gradient, T& gradients, T& products) const {
    T winner[4];
    share(gradient, winner);
    gradients += (winner[0] + winner[1]) + (winner[2] + winner[3]);
    products += (winner[0] * x[0] + winner[1] * x[1]) + (winner[2] * x[2] + winner[3] * x[3]);
  }
};

/// Normalization, ReLU and the maximum of 2 x 2; one thread per result. Images of the result lie
/// `image_stride` elements apart, rows `row_stride`; so the result may be the inner part of padded images.
template <class T, int Side, int Channels, class S = T>
struct Pool {
  struct Args {
    int batch;
    const S* images;
    const T* scale;
    const T* shift;
    S* pooled;
    std::ptrdiff_t image_stride;
    int row_stride;
  };
  static constexpr int kThreads = 256;
  static constexpr int kHalf = Side / 2;
  static constexpr int kSize = kHalf * kHalf * Channels;
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch * kSize, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i >= args.batch * kSize) return;
    const int image = i / kSize, window = i % kSize / Channels, channel = i % Channels;
    const auto read = PoolWindow<T>::template read<Side, Channels>(
        args.images + static_cast<std::ptrdiff_t>(image) * kSize * 4, window, channel, args.scale[channel],
        args.shift[channel]);
    args.pooled[image * args.image_stride + window / kHalf * args.row_stride + window % kHalf * Channels +
                channel] = static_cast<S>(read.pooled());
  }
};

/// Two sums for each image and channel: the pooled gradient over windows whose maximum is above zero, and its
/// products with the windows' winning pixels. One block per image.
template <class T, int Side, int Channels, class S = T>
struct PoolSums {
  struct Args {
    int batch;
    const S* images;
    const T* scale;
    const T* shift;
    const T* pooled_gradient;  ///< [batch][Side / 2][Side / 2][Channels]
    T* gradients;              ///< [batch][Channels]
    T* products;
  };
  static constexpr int kThreads = 256;
  static constexpr int kTeam = kThreads / Channels;  ///< threads for one channel
  static constexpr int kWindows = Side * Side / 4;
  struct Shared {
    T gradients[kThreads];
    T products[kThreads];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return args.batch; }
  static DDP_HD int phases(const Args&) { return 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    const int channel = at.thread % Channels;
    T gradients = T(0), products = T(0);
    if (phase == 0) {
      const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(at.block) * kWindows * Channels;
      const T scale = args.scale[channel], shift = args.shift[channel];
      for (int window = at.thread / Channels; window < kWindows; window += kTeam) {
        const auto read = PoolWindow<T>::template read<Side, Channels>(args.images + from * 4, window,
                                                                       channel, scale, shift);
        read.add_share(args.pooled_gradient[from + window * Channels + channel], gradients, products);
      }
      shared.gradients[at.thread] = gradients;
      shared.products[at.thread] = products;
    } else if (at.thread < Channels) {
      for (int i = channel; i < kThreads; i += Channels) {
        gradients += shared.gradients[i];
        products += shared.products[i];
      }
      args.gradients[at.block * Channels + channel] = gradients;
      args.products[at.block * Channels + channel] = products;
    }
  }
};

}  // namespace ddp::train::kernels::device
