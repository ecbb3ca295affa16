#pragma once

#include <cmath>

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"

namespace ddp::train::kernels::device {

/// The scores of the single images.
struct ImageScores {
  double* loss;
  int* correct;
};

/// Softmax cross entropy of one image's logits by one thread, line by line as softmax_loss(). `gradient`:
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
    BatchScore* total;
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
struct SoftmaxLoss : OnePhase {
  struct Args {
    int batch;
    const T* logits;  ///< [batch][kClasses]
    const std::uint8_t* labels;
    T* gradient;  ///< as logits; null: not computed
    ImageScores scores;
  };
  static constexpr int kThreads = 64;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch, kThreads); }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int image = at.block * kThreads + at.thread;
    if (image >= args.batch) return;
    score_image(args.logits + image * kClasses, args.labels[image], T(1) / static_cast<T>(args.batch),
                args.gradient ? args.gradient + image * kClasses : nullptr, image, args.scores);
  }
};

/// From the last convolution's output to the score and back: normalization, ReLU and pooling
/// (norm_pool_body.h), the linear layer to the classes, softmax, loss; then the gradients of the logits and
/// of the features, and the sums of PoolSums. One block per image; a thread has the same features throughout.
/// Activations and weights are stored as S.
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
  static constexpr int kOwn = divide_up(kInputs, kThreads);  ///< features of a thread
  static constexpr int kHelpers = 16;                        ///< threads that sum one logit
  static constexpr int kMinBlocks = sizeof(T) == 4 ? 3 : 0;
  static_assert(kThreads % Channels == 0, "a thread stays with its channel");
  struct Shared {
    T sums[kClasses][kThreads];
    T partial[kClasses][kHelpers];
    T logits[kClasses];
    T gradient[kClasses];
  };
  struct Local {
    PoolWindow<T> window[kOwn];  ///< normalized again where they are used, which takes fewer registers
  };

  static DDP_HD int blocks(const Args& args) { return args.batch; }
  static DDP_HD int phases(const Args& args) { return args.features ? 6 : 4; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    if (phase == 0) {
      multiply(at, shared, local, args);
    } else if (phase == 1) {
      const int c = at.thread / kHelpers, helper = at.thread % kHelpers;
      if (c < kClasses) shared.partial[c][helper] = sum_every<kThreads, kHelpers>(shared.sums[c] + helper);
    } else if (phase == 2) {
      const int c = at.thread;
      if (c < kClasses)
        shared.logits[c] = static_cast<T>(args.bias[c]) + sum_every<kHelpers, 1>(shared.partial[c]);
    } else if (phase == 3) {
      if (at.thread != 0) return;
      score_image(shared.logits, args.labels[at.block], T(1) / static_cast<T>(args.batch), shared.gradient,
                  at.block, args.scores);
    } else if (phase == 4) {
      spread(at, shared, local, args);
    } else if (at.thread < Channels) {
      sum_channel(at, shared, args);
    }
  }

 private:
  static DDP_HD void multiply(ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    const int channel = at.thread % Channels;
    const S* image = args.images + static_cast<std::ptrdiff_t>(at.block) * kInputs * 4;
    const T scale = args.scale[channel], shift = args.shift[channel];
    DDP_UNROLL
    for (int k = 0; k < kOwn; ++k) {  // all loads start before the first product
      const int i = at.thread + k * kThreads;
      if (i < kInputs)
        local.window[k] =
            PoolWindow<T>::template read<Side, Channels>(image, i / Channels, channel, scale, shift);
    }
    T sum[kClasses];
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      sum[c] = T(0);
    DDP_UNROLL
    for (int k = 0; k < kOwn; ++k) {
      const int i = at.thread + k * kThreads;
      if (i >= kInputs) break;
      local.window[k].normalize(scale, shift);
      const S stored = static_cast<S>(local.window[k].pooled());
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

  static DDP_HD void spread(ThreadIndex at, Shared& shared, const Local& local, const Args& args) {
    if (at.thread < kClasses)
      args.logit_gradient[at.block * kClasses + at.thread] = shared.gradient[at.thread];
    const T scale = args.scale[at.thread % Channels], shift = args.shift[at.thread % Channels];
    T gradients = T(0), products = T(0);
    DDP_UNROLL
    for (int k = 0; k < kOwn; ++k) {
      const int i = at.thread + k * kThreads;
      if (i >= kInputs) break;
      T sum = T(0);
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        sum += shared.gradient[c] * static_cast<T>(args.weight[c * kInputs + i]);
      args.features_gradient[static_cast<std::ptrdiff_t>(at.block) * kInputs + i] = sum;
      PoolWindow<T> window = local.window[k];
      window.normalize(scale, shift);
      window.add_share(sum, gradients, products);
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
/// each with every eighth image. The block loads the logits' gradients of kChunk images at a time. The bias
/// is an input that is always 1.
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
  static constexpr int kChunk = 128;
  static constexpr int kOwn = kChunk / kTeam;  ///< images of a thread
  struct Shared {
    T gradient[kChunk * kClasses];
    T sums[kTeam][kClasses][kInputs];
  };
  struct Local {
    T feature[kOwn];
    T sum[kClasses];
  };

  static DDP_HD int blocks(const Args& args) { return divide_up(args.inputs + 1, kInputs); }
  static DDP_HD int phases(const Args& args) { return 2 * divide_up(args.batch, kChunk) + 1; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    const int lane = at.thread % kInputs, member = at.thread / kInputs;
    const int input = at.block * kInputs + lane, first = phase / 2 * kChunk;
    if (first >= args.batch) {
      if (input <= args.inputs) write(input, lane, member, shared, args);
    } else if (phase % 2 == 0) {
      load(input, member, first, at, shared, local, args);
    } else {
      add(lane, member, args.batch - first <= kChunk, shared, local);
    }
  }

 private:
  static DDP_HD void load(int input, int member, int first, ThreadIndex at, Shared& shared, Local& local,
                          const Args& args) {
    const std::ptrdiff_t count = args.batch - first;
    DDP_UNROLL
    for (int k = 0; k < kOwn; ++k) {
      const std::ptrdiff_t n = member + k * kTeam;
      local.feature[k] = n >= count ? T(0)
                         : input < args.inputs
                             ? static_cast<T>(args.features[(first + n) * args.inputs + input])
                             : T(1);
    }
    for (int i = at.thread; i < kChunk * kClasses; i += kThreads)
      shared.gradient[i] = i < count * kClasses ? args.logit_gradient[first * kClasses + i] : T(0);
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      if (first == 0) local.sum[c] = T(0);
  }

  static DDP_HD void add(int lane, int member, bool is_last, Shared& shared, Local& local) {
    DDP_UNROLL
    for (int k = 0; k < kOwn; ++k) {
      DDP_UNROLL
      for (int c = 0; c < kClasses; ++c)
        local.sum[c] += shared.gradient[(member + k * kTeam) * kClasses + c] * local.feature[k];
    }
    DDP_UNROLL
    for (int c = 0; c < kClasses; ++c)
      if (is_last) shared.sums[member][c][lane] = local.sum[c];
  }

  static DDP_HD void write(int input, int lane, int member, const Shared& shared, const Args& args) {
    for (int c = member; c < kClasses; c += kTeam) {
      T sum = T(0);
      for (int i = 0; i < kTeam; ++i)
        sum += shared.sums[i][c][lane];
      (input < args.inputs ? args.weight_gradient[c * args.inputs + input] : args.bias_gradient[c]) = sum;
    }
  }
};

}  // namespace ddp::train::kernels::device
