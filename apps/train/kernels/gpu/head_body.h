#pragma once

#include "apps/train/kernels/gpu/pool_body.h"
#include "apps/train/kernels/gpu/score_body.h"

namespace ddp::train::kernels::device {

/// From the last convolution's output to the score and back: normalization, ReLU and pooling (pool_body.h),
/// the linear layer to the classes, softmax, loss; then the gradients of the logits and of the features, and
/// the sums of PoolSums. One block per image; a thread has the same features throughout. Activations and
/// weights are stored as S.
template <class T, int Side, int Channels, class S = T>
struct Head {
  struct Args {
    int batch;
    const S* images;  ///< [batch][Side][Side][Channels]
    const T* scale;
    const T* shift;
    const S* weight;  ///< [kClasses][kInputs]
    const S* bias;
    const std::uint8_t* labels;
    ImageScores scores;
    S* features;           ///< [batch][kInputs]; null, like all that follow: only the scores
    T* logit_gradient;     ///< [batch][kClasses]
    T* features_gradient;  ///< as features
    T* gradients;          ///< [batch][Channels], as PoolSums
    T* products;
  };
  static constexpr int kInputs = Side * Side / 4 * Channels;
  static constexpr int kThreads = 256;
  static constexpr int kRounds = halvings(kThreads);
  static_assert(kThreads % Channels == 0, "a thread stays with its channel");
  struct Shared {
    T sums[kClasses][kThreads];
    T logits[kClasses];
    T gradient[kClasses];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return args.batch; }
  static DDP_HD int phases(const Args& args) { return args.features ? kRounds + 5 : kRounds + 3; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      multiply(at, shared, args);
    } else if (phase <= kRounds) {
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        halve(shared.sums[c], kThreads, phase - 1, at.thread);
    } else if (phase == kRounds + 1) {
      if (at.thread < kClasses)
        shared.logits[at.thread] = static_cast<T>(args.bias[at.thread]) + shared.sums[at.thread][0];
    } else if (phase == kRounds + 2) {
      if (at.thread != 0) return;
      score_image(shared.logits, args.labels[at.block], T(1) / static_cast<T>(args.batch), shared.gradient,
                  at.block, args.scores);
    } else if (phase == kRounds + 3) {
      spread(at, shared, args);
    } else if (at.thread < Channels) {
      sum_channel(at, shared, args);
    }
  }

 private:
  static DDP_HD PoolWindow<T> read(ThreadIndex at, int feature, const Args& args) {
    const int channel = at.thread % Channels;
    return PoolWindow<T>::template read<Side, Channels>(
        args.images + static_cast<std::ptrdiff_t>(at.block) * kInputs * 4, feature / Channels, channel,
        args.scale[channel], args.shift[channel]);
  }

  static DDP_HD void multiply(ThreadIndex at, Shared& shared, const Args& args) {
    T sum[kClasses];
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      sum[c] = T(0);
    for (int i = at.thread; i < kInputs; i += kThreads) {
      const S stored = static_cast<S>(read(at, i, args).pooled());
      if (args.features) args.features[static_cast<std::ptrdiff_t>(at.block) * kInputs + i] = stored;
      const T feature = static_cast<T>(stored);
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        sum[c] += feature * static_cast<T>(args.weight[c * kInputs + i]);
    }
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      shared.sums[c][at.thread] = sum[c];
  }

  static DDP_HD void spread(ThreadIndex at, Shared& shared, const Args& args) {
    if (at.thread < kClasses)
      args.logit_gradient[at.block * kClasses + at.thread] = shared.gradient[at.thread];
    T gradients = T(0), products = T(0);
    for (int i = at.thread; i < kInputs; i += kThreads) {
      T sum = T(0);
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        sum += shared.gradient[c] * static_cast<T>(args.weight[c * kInputs + i]);
      args.features_gradient[static_cast<std::ptrdiff_t>(at.block) * kInputs + i] = sum;
      read(at, i, args).add_share(sum, gradients, products);
    }
    // Reuses the memory of the logits' sums.
    shared.sums[0][at.thread] = gradients;
    shared.sums[1][at.thread] = products;
  }

  static DDP_HD void sum_channel(ThreadIndex at, const Shared& shared, const Args& args) {
    T gradients = T(0), products = T(0);
    for (int i = at.thread; i < kThreads; i += Channels) {
      gradients += shared.sums[0][i];
      products += shared.sums[1][i];
    }
    args.gradients[at.block * Channels + at.thread] = gradients;
    args.products[at.block * Channels + at.thread] = products;
  }
};

/// The gradients of the linear layer's weights and bias. A block has 32 inputs; eight threads share an input,
/// each with every eighth image. The bias is an input that is always 1.
template <class T, class S = T>
struct HeadGradient {
  struct Args {
    int batch;
    int inputs;
    const S* features;
    const T* logit_gradient;
    T* weight_gradient;
    T* bias_gradient;
  };
  static constexpr int kInputs = 32;
  static constexpr int kTeam = 8;
  static constexpr int kThreads = kInputs * kTeam;
  struct Shared {
    T sums[kTeam][kClasses][kInputs];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.inputs + 1, kInputs); }
  static DDP_HD int phases(const Args&) { return 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    const int lane = at.thread % kInputs, member = at.thread / kInputs;
    const int input = at.block * kInputs + lane;
    if (phase == 0) {
      sum_images(input, lane, member, shared, args);
    } else if (input <= args.inputs) {
      for (int c = member; c < kClasses; c += kTeam) {
        T sum = T(0);
        for (int i = 0; i < kTeam; ++i)
          sum += shared.sums[i][c][lane];
        (input < args.inputs ? args.weight_gradient[c * args.inputs + input] : args.bias_gradient[c]) = sum;
      }
    }
  }

 private:
  static DDP_HD void sum_images(int input, int lane, int member, Shared& shared, const Args& args) {
    T sum[kClasses];
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      sum[c] = T(0);
    if (input <= args.inputs) {
      for (int n = member; n < args.batch; n += kTeam) {
        const T feature =
            input < args.inputs
                ? static_cast<T>(args.features[static_cast<std::ptrdiff_t>(n) * args.inputs + input])
                : T(1);
        DDP_UNROLL
        for (int c = 0; c < kClasses; ++c)
          sum[c] += args.logit_gradient[n * kClasses + c] * feature;
      }
    }
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      shared.sums[member][c][lane] = sum[c];
  }
};

}  // namespace ddp::train::kernels::device
