#pragma once

#include "apps/train/kernels/device/score_body.h"

namespace ddp::train::kernels::device {

/// The linear layer to the classes, softmax, loss, and the gradients of the logits and of the features; a
/// block for each image.
template <class T>
struct Head {
  struct Args {
    int batch;
    int inputs;
    const T* features;  ///< [batch][inputs]
    const T* weight;    ///< [kClasses][inputs]
    const T* bias;
    const std::uint8_t* labels;
    T* logit_gradient;     ///< [batch][kClasses]; null, as the next: only the scores
    T* features_gradient;  ///< as features
    ImageScores scores;
  };
  static constexpr int kThreads = 128;
  static constexpr int kRounds = halvings(kThreads);
  struct Shared {
    T sums[kClasses][kThreads];
    T logits[kClasses];
    T gradient[kClasses];
  };
  using Local = Nothing;

  static DDP_HD int blocks(const Args& args) { return args.batch; }
  static DDP_HD int phases(const Args& args) { return args.features_gradient ? kRounds + 4 : kRounds + 3; }

  static DDP_HD void phase(int phase, Place at, Shared& shared, Local&, const Args& args) {
    const std::ptrdiff_t image = static_cast<std::ptrdiff_t>(at.block) * args.inputs;
    if (phase == 0) {
      multiply(args.features + image, at, shared, args);
    } else if (phase <= kRounds) {
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        halve(shared.sums[c], kThreads, phase - 1, at.thread);
    } else if (phase == kRounds + 1) {
      if (at.thread < kClasses) shared.logits[at.thread] = args.bias[at.thread] + shared.sums[at.thread][0];
    } else if (phase == kRounds + 2) {
      if (at.thread != 0) return;
      score_image(shared.logits, args.labels[at.block], T(1) / static_cast<T>(args.batch), shared.gradient,
                  at.block, args.scores);
    } else {
      spread(image, at, shared, args);
    }
  }

 private:
  static DDP_HD void multiply(const T* features, Place at, Shared& shared, const Args& args) {
    T sum[kClasses];
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      sum[c] = T(0);
    for (int i = at.thread; i < args.inputs; i += kThreads) {
      const T feature = features[i];
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        sum[c] += feature * args.weight[c * args.inputs + i];
    }
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      shared.sums[c][at.thread] = sum[c];
  }

  static DDP_HD void spread(std::ptrdiff_t image, Place at, const Shared& shared, const Args& args) {
    if (at.thread < kClasses)
      args.logit_gradient[at.block * kClasses + at.thread] = shared.gradient[at.thread];
    for (int i = at.thread; i < args.inputs; i += kThreads) {
      T sum = T(0);
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        sum += shared.gradient[c] * args.weight[c * args.inputs + i];
      args.features_gradient[image + i] = sum;
    }
  }
};

/// The gradients of that layer's weights and bias, and in one more block the batch's score. A block has 32
/// inputs; eight threads share an input, each with every eighth image. The bias is an input that is always 1.
template <class T>
struct HeadGradient {
  struct Args {
    int batch;
    int inputs;
    const T* features;
    const T* logit_gradient;
    T* weight_gradient;
    T* bias_gradient;
    typename ScoreTotals<T>::Args totals;
  };
  static constexpr int kInputs = 32;
  static constexpr int kTeam = 8;
  static constexpr int kThreads = kInputs * kTeam;
  struct Shared {
    T sums[kTeam][kClasses][kInputs];
    typename ScoreTotals<T>::Shared totals;
  };
  using Local = Nothing;
  static_assert(kThreads == ScoreTotals<T>::kThreads);

  static DDP_HD int tiles(const Args& args) { return divide_up(args.inputs + 1, kInputs); }
  static DDP_HD int blocks(const Args& args) { return tiles(args) + 1; }
  static DDP_HD int phases(const Args& args) { return ScoreTotals<T>::phases(args.totals); }

  static DDP_HD void phase(int phase, Place at, Shared& shared, Local& local, const Args& args) {
    if (at.block == tiles(args)) {
      ScoreTotals<T>::phase(phase, {0, at.thread}, shared.totals, local, args.totals);
      return;
    }
    const int lane = at.thread % kInputs, member = at.thread / kInputs;
    const int input = at.block * kInputs + lane;
    if (phase == 0) {
      sum_images(input, lane, member, shared, args);
    } else if (phase == 1 && input <= args.inputs) {
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
            input < args.inputs ? args.features[static_cast<std::ptrdiff_t>(n) * args.inputs + input] : T(1);
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
