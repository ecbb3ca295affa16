#pragma once

#include <cmath>

#include "apps/train/data/image_size.h"
#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// Score of a batch, where the host reads it; as kernels::BatchScore.
struct DeviceScore {
  double loss_sum;
  int correct;
};

/// The scores of the single images.
struct ImageScores {
  double* loss;
  int* correct;
};

/// Softmax cross entropy of one image's logits by one thread, line by line as softmax_loss.h. `gradient`:
/// gradient of the batch's mean loss; null: not computed. `share`: 1 / batch.
template <class T>
DDP_HD void score_image(const T* logits, int label, T share, T* gradient, int image,
                        const ImageScores& scores) {
  int best = 0;
  for (int c = 1; c < kClasses; ++c) {
    if (logits[c] > logits[best]) best = c;
  }
  T power[kClasses];
  T sum = T(0);
  DDP_UNROLL
  for (int c = 0; c < kClasses; ++c) {
    power[c] = std::exp(logits[c] - logits[best]);
    sum += power[c];
  }
  const T log_sum = std::log(sum);
  scores.loss[image] = static_cast<double>(log_sum - (logits[label] - logits[best]));
  scores.correct[image] = best == label ? 1 : 0;
  if (gradient == nullptr) return;
  DDP_UNROLL
  for (int c = 0; c < kClasses; ++c) {
    const T probability = power[c] / sum;
    gradient[c] = (probability - (c == label ? T(1) : T(0))) * share;
  }
}

/// Sums the images' scores; one block.
template <class T, int Threads>
struct ScoreTotals {
  struct Args {
    int batch;
    ImageScores scores;
    T* mean_loss;  ///< null: not computed
    DeviceScore* total;
  };
  static constexpr int kThreads = Threads;
  static constexpr int kRounds = halvings(kThreads);
  struct Shared {
    double loss[kThreads];
    int correct[kThreads];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args&) { return 1; }
  static DDP_HD int phases(const Args&) { return kRounds + 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      double loss = 0;
      int correct = 0;
      for (int n = at.thread; n < args.batch; n += kThreads) {
        loss += args.scores.loss[n];
        correct += args.scores.correct[n];
      }
      shared.loss[at.thread] = loss;
      shared.correct[at.thread] = correct;
    } else if (phase <= kRounds) {
      halve(shared.loss, kThreads, phase - 1, at.thread);
      halve(shared.correct, kThreads, phase - 1, at.thread);
    } else if (at.thread == 0) {
      args.total->loss_sum = shared.loss[0];
      args.total->correct = shared.correct[0];
      if (args.mean_loss) *args.mean_loss = static_cast<T>(shared.loss[0] / args.batch);
    }
  }
};

/// score_image() alone; one thread per image.
template <class T>
struct SoftmaxLoss {
  struct Args {
    int batch;
    const T* logits;  ///< [batch][kClasses]
    const std::uint8_t* labels;
    T* gradient;  ///< as logits; null: not computed
    ImageScores scores;
  };
  static constexpr int kThreads = 64;
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int image = at.block * kThreads + at.thread;
    if (image >= args.batch) return;
    score_image(args.logits + image * kClasses, args.labels[image], T(1) / static_cast<T>(args.batch),
                args.gradient ? args.gradient + image * kClasses : nullptr, image, args.scores);
  }
};

}  // namespace ddp::train::kernels::device
