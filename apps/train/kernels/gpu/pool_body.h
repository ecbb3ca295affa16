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
    read.normalize(scale, shift);
    return read;
  }
  DDP_HD void normalize(T scale, T shift) {
    DDP_UNROLL
    for (int k = 0; k < 4; ++k)
      z[k] = x[k] * scale + shift;
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

/// The windows of four neighboring channels, which move together.
template <class T>
struct PoolWindows {
  static constexpr int kLanes = 4;
  PoolWindow<T> lane[kLanes];

  /// As PoolWindow::read(), for channels `channel` to `channel` + 3.
  template <int Side, int Channels, class S>
  static DDP_HD PoolWindows read(const S* image, int window, int channel, const T* scale, const T* shift) {
    using Quad = Pack<S, kLanes>;
    constexpr int kRow = Side * Channels;
    const int y = window / (Side / 2), x = window % (Side / 2);
    const S* corner = image + 2 * y * kRow + 2 * x * Channels + channel;
    const Quad pixels[] = {*reinterpret_cast<const Quad*>(corner),
                           *reinterpret_cast<const Quad*>(corner + Channels),
                           *reinterpret_cast<const Quad*>(corner + kRow),
                           *reinterpret_cast<const Quad*>(corner + kRow + Channels)};
    const Pack<T, kLanes> scales = *reinterpret_cast<const Pack<T, kLanes>*>(scale + channel);
    const Pack<T, kLanes> shifts = *reinterpret_cast<const Pack<T, kLanes>*>(shift + channel);
    PoolWindows read;
    DDP_UNROLL
    for (int l = 0; l < kLanes; ++l) {
      DDP_UNROLL
      for (int k = 0; k < 4; ++k)
        read.lane[l].x[k] = static_cast<T>(pixels[k].v[l]);
      read.lane[l].normalize(scales.v[l], shifts.v[l]);
    }
    return read;
  }
};

/// Normalization, ReLU and the maximum of 2 x 2; one thread per window and four channels. Images of the
/// result lie `image_stride` elements apart, rows `row_stride`; so the result may be the inner part of padded
/// images.
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
  using Windows = PoolWindows<T>;
  static constexpr int kThreads = 256;
  static constexpr int kHalf = Side / 2;
  static constexpr int kQuads = Channels / Windows::kLanes;
  static constexpr int kSize = kHalf * kHalf * kQuads;  ///< threads of an image
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch * kSize, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i >= args.batch * kSize) return;
    const int image = i / kSize, window = i % kSize / kQuads, channel = i % kQuads * Windows::kLanes;
    const auto read = Windows::template read<Side, Channels>(
        args.images + static_cast<std::ptrdiff_t>(image) * kHalf * kHalf * Channels * 4, window, channel,
        args.scale, args.shift);
    Pack<S, Windows::kLanes> pooled;
    DDP_UNROLL
    for (int l = 0; l < Windows::kLanes; ++l)
      pooled.v[l] = static_cast<S>(read.lane[l].pooled());
    *reinterpret_cast<Pack<S, Windows::kLanes>*>(args.pooled + image * args.image_stride +
                                                 window / kHalf * args.row_stride +
                                                 window % kHalf * Channels + channel) = pooled;
  }
};

/// Two sums for each image and channel: the pooled gradient over windows whose maximum is above zero, and its
/// products with the windows' winning pixels. One block per image; a thread has four channels of every
/// kTeam-th window.
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
  using Windows = PoolWindows<T>;
  using Quad = Pack<T, Windows::kLanes>;
  static constexpr int kThreads = 256;
  static constexpr int kQuads = Channels / Windows::kLanes;
  static constexpr int kTeam = kThreads / kQuads;
  static constexpr int kWindows = Side * Side / 4;
  static constexpr int kHelpers = kThreads / Channels;  ///< threads that add the team's sums of one channel
  struct Shared {
    Quad gradients[kTeam][kQuads];
    Quad products[kTeam][kQuads];
    T gradient[kHelpers][Channels];
    T product[kHelpers][Channels];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return args.batch; }
  static DDP_HD int phases(const Args&) { return 3; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    const int channel = at.thread % Channels, helper = at.thread / Channels;
    if (phase == 0) {
      add_windows(at, shared, args);
    } else if (phase == 1) {
      constexpr int kCount = kTeam * Channels, kStride = kHelpers * Channels;
      const T* const gradients = reinterpret_cast<const T*>(shared.gradients) + at.thread;
      const T* const products = reinterpret_cast<const T*>(shared.products) + at.thread;
      shared.gradient[helper][channel] = sum_every<kCount, kStride>(gradients);
      shared.product[helper][channel] = sum_every<kCount, kStride>(products);
    } else if (helper == 0) {
      const int to = at.block * Channels + channel;
      args.gradients[to] = sum_every<kHelpers * Channels, Channels>(shared.gradient[0] + channel);
      args.products[to] = sum_every<kHelpers * Channels, Channels>(shared.product[0] + channel);
    }
  }

 private:
  static DDP_HD void add_windows(ThreadIndex at, Shared& shared, const Args& args) {
    const int quad = at.thread % kQuads, member = at.thread / kQuads;
    const int channel = quad * Windows::kLanes;
    const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(at.block) * kWindows * Channels;
    Quad gradients{}, products{};
    for (int window = member; window < kWindows; window += kTeam) {
      const auto read = Windows::template read<Side, Channels>(args.images + from * 4, window, channel,
                                                               args.scale, args.shift);
      const Quad pooled =
          *reinterpret_cast<const Quad*>(args.pooled_gradient + from + window * Channels + channel);
      DDP_UNROLL
      for (int l = 0; l < Windows::kLanes; ++l)
        read.lane[l].add_share(pooled.v[l], gradients.v[l], products.v[l]);
    }
    shared.gradients[member][quad] = gradients;
    shared.products[member][quad] = products;
  }
};

}  // namespace ddp::train::kernels::device
