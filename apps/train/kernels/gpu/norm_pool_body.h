#pragma once

#include <cmath>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kRunningMomentum = 0.1;

/// Normalizes a channel as x * scale + shift; also keeps what backward needs.
template <class T>
struct NormResult {
  T* scale;
  T* shift;
  double* mean;
  double* inverse;  ///< 1 / standard deviation
};

/// Merges the moments of all bands, or uses the running ones, in one block. Reads the running statistics from
/// one vector and writes them to another, which replaces the first unless the step is dropped
/// (update_body.h).
///
/// One pass: the means are taken relative to the first band's, so that no large numbers cancel. A thread has
/// four neighboring channels of every kMembers-th band.
template <class T, int Channels, int Threads>
struct Norm {
  struct Args {
    int parts;         ///< bands of the whole batch; 0: use the running statistics, for evaluation
    int pixels;        ///< of a part
    const T* mean;     ///< [parts][Channels], aligned to four numbers, as is the next
    const T* squares;  ///< [parts][Channels]
    const T* gamma;    ///< [Channels], as all that follow
    const T* beta;
    const T* running_mean;
    const T* running_variance;
    T* next_mean;
    T* next_variance;
    NormResult<T> result;
  };
  static constexpr int kThreads = Threads;
  static constexpr int kLanes = 4;
  static constexpr int kQuads = Channels / kLanes;
  static constexpr int kMembers = Threads / kQuads;
  /// Bands that are added in T before the sum goes to a double, since graphics GPUs have few double units.
  static constexpr int kAtOnce = 8;
  static_assert(kQuads * kLanes == Channels && kMembers * kQuads == Threads && Channels <= Threads);
  using Quad = Pack<T, kLanes>;
  struct Shared {
    double apart[kMembers][Channels];   ///< sums of the means' distances from the first band's
    double beyond[kMembers][Channels];  ///< sums of the squares of these distances
    double within[kMembers][Channels];  ///< of the bands' own squares
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args&) { return 1; }
  static DDP_HD int phases(const Args&) { return 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      if (args.parts > 0) add_parts(at.thread % kQuads, at.thread / kQuads, shared, args);
    } else if (at.thread < Channels) {
      finish(at.thread, shared, args);
    }
  }

 private:
  static DDP_HD void add_parts(int quad, int member, Shared& shared, const Args& args) {
    const Quad* means = reinterpret_cast<const Quad*>(args.mean) + quad;
    const Quad* squares = reinterpret_cast<const Quad*>(args.squares) + quad;
    const Quad first = means[0];
    double apart[kLanes] = {}, beyond[kLanes] = {}, within[kLanes] = {};
    for (int begin = member; begin < args.parts; begin += kAtOnce * kMembers) {
      T a[kLanes] = {}, b[kLanes] = {}, w[kLanes] = {};
      DDP_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const std::ptrdiff_t part = begin + k * kMembers;
        if (part >= args.parts) continue;
        const Quad mean = means[part * kQuads], square = squares[part * kQuads];
        DDP_UNROLL
        for (int l = 0; l < kLanes; ++l) {
          const T distance = mean.v[l] - first.v[l];
          a[l] += distance;
          b[l] += distance * distance;
          w[l] += square.v[l];
        }
      }
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        apart[l] += static_cast<double>(a[l]);
        beyond[l] += static_cast<double>(b[l]);
        within[l] += static_cast<double>(w[l]);
      }
    }
    DDP_UNROLL
    for (int l = 0; l < kLanes; ++l) {
      shared.apart[member][quad * kLanes + l] = apart[l];
      shared.beyond[member][quad * kLanes + l] = beyond[l];
      shared.within[member][quad * kLanes + l] = within[l];
    }
  }

  static DDP_HD void finish(int channel, const Shared& shared, const Args& args) {
    double mean = static_cast<double>(args.running_mean[channel]);
    double variance = static_cast<double>(args.running_variance[channel]);
    if (args.parts > 0) {
      double apart = 0, beyond = 0, within = 0;
      for (int member = 0; member < kMembers; ++member) {
        apart += shared.apart[member][channel];
        beyond += shared.beyond[member][channel];
        within += shared.within[member][channel];
      }
      const double count = static_cast<double>(args.parts) * args.pixels;
      const double squares = within + (beyond - apart * apart / args.parts) * args.pixels;
      const double unbiased = squares / (count > 2 ? count - 1 : 1.0);
      const double own_mean = static_cast<double>(args.mean[channel]) + apart / args.parts;
      const double kept = 1 - kRunningMomentum;
      args.next_mean[channel] = static_cast<T>(kept * mean + kRunningMomentum * own_mean);
      args.next_variance[channel] = static_cast<T>(kept * variance + kRunningMomentum * unbiased);
      mean = own_mean;
      variance = squares / count;
    }
    const double inverse = 1.0 / std::sqrt(variance + kNormEpsilon);
    const double gain = static_cast<double>(args.gamma[channel]);
    args.result.mean[channel] = mean;
    args.result.inverse[channel] = inverse;
    args.result.scale[channel] = static_cast<T>(gain * inverse);
    args.result.shift[channel] =
        static_cast<T>(static_cast<double>(args.beta[channel]) - mean * gain * inverse);
  }
};

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
struct Pool : OnePhase {
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

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch * kSize, kThreads); }
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

/// Combines the sums of each image (PoolSums, Head) into the gradients of gamma and beta. Also
/// computes how the normalization passes on a gradient g: g * gain + offset + x * slope. One block; a thread
/// has four neighboring channels of every kMembers-th image.
template <class T, int Channels, int Threads>
struct NormGradientSums {
  struct Args {
    int batch;           ///< 0: nothing is computed
    double count;        ///< pixels of the batch
    const T* gradients;  ///< [batch][Channels], aligned to four numbers, as is the next
    const T* products;   ///< [batch][Channels]
    const double* mean;
    const double* inverse;
    const T* gamma;
    T* gamma_gradient;
    T* beta_gradient;
    T* gain;
    T* offset;
    T* slope;
  };
  static constexpr int kThreads = Threads;
  static constexpr int kLanes = 4;
  static constexpr int kQuads = Channels / kLanes;
  static constexpr int kMembers = Threads / kQuads;
  /// Images that are added in T before the sum goes to a double, as in Norm.
  static constexpr int kAtOnce = 8;
  static_assert(kQuads * kLanes == Channels && kMembers * kQuads == Threads && Channels <= Threads);
  using Quad = Pack<T, kLanes>;
  struct Shared {
    double gradients[kMembers][Channels];
    double products[kMembers][Channels];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args&) { return 1; }
  static DDP_HD int phases(const Args& args) { return args.batch > 0 ? 2 : 0; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      add_images(args.gradients, at, shared.gradients, args.batch);
      add_images(args.products, at, shared.products, args.batch);
    } else if (at.thread < Channels) {
      double gradients = 0, products = 0;
      for (int member = 0; member < kMembers; ++member) {
        gradients += shared.gradients[member][at.thread];
        products += shared.products[member][at.thread];
      }
      finish(at.thread, gradients, products, args);
    }
  }

 private:
  static DDP_HD void add_images(const T* from, ThreadIndex at, double (&to)[kMembers][Channels], int batch) {
    const int quad = at.thread % kQuads, member = at.thread / kQuads;
    const Quad* quads = reinterpret_cast<const Quad*>(from) + quad;
    double sum[kLanes] = {};
    for (int begin = member; begin < batch; begin += kAtOnce * kMembers) {
      T some[kLanes] = {};
      DDP_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const std::ptrdiff_t image = begin + k * kMembers;
        if (image >= batch) continue;
        const Quad numbers = quads[image * kQuads];
        DDP_UNROLL
        for (int l = 0; l < kLanes; ++l)
          some[l] += numbers.v[l];
      }
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l)
        sum[l] += static_cast<double>(some[l]);
    }
    DDP_UNROLL
    for (int l = 0; l < kLanes; ++l)
      to[member][quad * kLanes + l] = sum[l];
  }

  static DDP_HD void finish(int channel, double gradients, double products, const Args& args) {
    const double inverse = args.inverse[channel], mean = args.mean[channel];
    const double gamma_gradient = (products - mean * gradients) * inverse;
    const double gain = static_cast<double>(args.gamma[channel]) * inverse;
    // gain * (g - mean(g) - xhat * mean(g * xhat)), with xhat = (x - mean) * inverse written out in x.
    const double slope = -gain * inverse * gamma_gradient / args.count;
    args.gamma_gradient[channel] = static_cast<T>(gamma_gradient);
    args.beta_gradient[channel] = static_cast<T>(gradients);
    args.gain[channel] = static_cast<T>(gain);
    args.slope[channel] = static_cast<T>(slope);
    args.offset[channel] = static_cast<T>(-gain * gradients / args.count - slope * mean);
  }
};

/// The gradient of the convolution's output, computed from the pooled gradient where it is read. S as in
/// Pool.
template <class T, int Side, int Channels, class S = T>
struct PooledGradient {
  struct Args {
    const S* images;  ///< the convolution's output
    const T* scale;
    const T* shift;
    const T* gain;  ///< from NormGradientSums
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

  /// Loads rows as DenseGradient does (convolution_body.h). At an edge, a row of windows is computed
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
struct PoolGradient : OnePhase {
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

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch * kSize, kThreads); }
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
