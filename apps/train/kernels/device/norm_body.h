#pragma once

#include <cmath>

#include "apps/train/kernels/device/body.h"

namespace ddp::train::kernels::device {

inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kRunningMomentum = 0.1;

/// What normalisation makes of a channel: x * scale + shift; and what backward needs of it.
template <class T>
struct NormResult {
  T* scale;
  T* shift;
  double* mean;
  double* inverse;  ///< of the deviation
};

template <class T>
DDP_HD void set_norm(int channel, double mean, double variance, const T* gamma, const T* beta,
                     const NormResult<T>& to) {
  const double inverse = 1.0 / std::sqrt(variance + kNormEpsilon);
  const double gain = static_cast<double>(gamma[channel]);
  to.mean[channel] = mean;
  to.inverse[channel] = inverse;
  to.scale[channel] = static_cast<T>(gain * inverse);
  to.shift[channel] = static_cast<T>(static_cast<double>(beta[channel]) - mean * gain * inverse);
}

/// Merges the moments of all bands: a block for each channel. The running statistics are read from one vector
/// and written to another, which takes the place of the first when the step is not dropped (update_body.h).
template <class T>
struct Norm {
  struct Args {
    int channels;
    int parts;         ///< bands of the whole batch
    int pixels;        ///< of a part
    const T* mean;     ///< [parts][channels]
    const T* squares;  ///< [parts][channels]
    const T* gamma;    ///< [channels], as all that follow
    const T* beta;
    const T* running_mean;
    const T* running_variance;
    T* next_mean;
    T* next_variance;
    NormResult<T> result;
  };
  static constexpr int kThreads = 128;
  static constexpr int kRounds = halvings(kThreads);
  struct Shared {
    double sum[kThreads];
    double squares[kThreads];
  };
  using Local = Nothing;

  static DDP_HD int blocks(const Args& args) { return args.channels; }
  static DDP_HD int phases(const Args&) { return 2 * kRounds + 3; }

  static DDP_HD void phase(int phase, Place at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      double sum = 0;
      for (int part = at.thread; part < args.parts; part += kThreads)
        sum += static_cast<double>(args.mean[static_cast<std::ptrdiff_t>(part) * args.channels + at.block]);
      shared.sum[at.thread] = sum;
    } else if (phase <= kRounds) {
      halve(shared.sum, kThreads, phase - 1, at.thread);
    } else if (phase == kRounds + 1) {
      const double mean = shared.sum[0] / args.parts;
      double sum = 0;
      for (int part = at.thread; part < args.parts; part += kThreads) {
        const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(part) * args.channels + at.block;
        const double apart = static_cast<double>(args.mean[from]) - mean;
        sum += static_cast<double>(args.squares[from]) + apart * apart * args.pixels;
      }
      shared.squares[at.thread] = sum;
    } else if (phase <= 2 * kRounds + 1) {
      halve(shared.squares, kThreads, phase - kRounds - 2, at.thread);
    } else if (at.thread == 0) {
      finish(at.block, shared.sum[0] / args.parts, shared.squares[0], args);
    }
  }

 private:
  static DDP_HD void finish(int channel, double mean, double squares, const Args& args) {
    const double count = static_cast<double>(args.parts) * args.pixels;
    const double unbiased = squares / (count > 2 ? count - 1 : 1.0);
    const double kept = 1 - kRunningMomentum;
    args.next_mean[channel] =
        static_cast<T>(kept * static_cast<double>(args.running_mean[channel]) + kRunningMomentum * mean);
    args.next_variance[channel] = static_cast<T>(kept * static_cast<double>(args.running_variance[channel]) +
                                                 kRunningMomentum * unbiased);
    set_norm(channel, mean, squares / count, args.gamma, args.beta, args.result);
  }
};

/// The same by the running statistics, for evaluation: a thread for each channel.
template <class T>
struct RunningNorm {
  struct Args {
    int channels;
    const T* mean;
    const T* variance;
    const T* gamma;
    const T* beta;
    NormResult<T> result;
  };
  static constexpr int kThreads = 32;
  using Shared = Nothing;
  using Local = Nothing;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.channels, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, Place at, Shared&, Local&, const Args& args) {
    const int channel = at.block * kThreads + at.thread;
    if (channel >= args.channels) return;
    set_norm(channel, static_cast<double>(args.mean[channel]), static_cast<double>(args.variance[channel]),
             args.gamma, args.beta, args.result);
  }
};

}  // namespace ddp::train::kernels::device
