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

}  // namespace ddp::train::kernels::device
