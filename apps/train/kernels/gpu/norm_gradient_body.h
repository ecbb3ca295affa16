#pragma once

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// Combines the sums of each image (pool_body.h, head_body.h) into the gradients of gamma and beta. Also
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
  /// Images that are added in T before the sum goes to a double, as in norm_body.h.
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

}  // namespace ddp::train::kernels::device
