#pragma once

#include "apps/train/kernels/device/body.h"

namespace ddp::train::kernels::device {

/// From the sums of each image (pool_body.h) to the gradients of gamma and beta, and to how the normalisation
/// spreads a gradient: g * gain + offset + x * slope. A block for each channel.
template <class T>
struct NormGradientSums {
  struct Args {
    int channels;
    int batch;
    double count;        ///< pixels of the batch
    const T* gradients;  ///< [batch][channels]
    const T* products;   ///< [batch][channels]
    const double* mean;
    const double* inverse;
    const T* gamma;
    T* gamma_gradient;
    T* beta_gradient;
    T* gain;
    T* offset;
    T* slope;
  };
  static constexpr int kThreads = 128;
  static constexpr int kRounds = halvings(kThreads);
  struct Shared {
    double gradients[kThreads];
    double products[kThreads];
  };
  using Local = Nothing;

  static DDP_HD int blocks(const Args& args) { return args.channels; }
  static DDP_HD int phases(const Args&) { return kRounds + 2; }

  static DDP_HD void phase(int phase, Place at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      double gradients = 0, products = 0;
      for (int n = at.thread; n < args.batch; n += kThreads) {
        const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(n) * args.channels + at.block;
        gradients += static_cast<double>(args.gradients[from]);
        products += static_cast<double>(args.products[from]);
      }
      shared.gradients[at.thread] = gradients;
      shared.products[at.thread] = products;
    } else if (phase <= kRounds) {
      halve(shared.gradients, kThreads, phase - 1, at.thread);
      halve(shared.products, kThreads, phase - 1, at.thread);
    } else if (at.thread == 0) {
      finish(at.block, shared.gradients[0], shared.products[0], args);
    }
  }

 private:
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
