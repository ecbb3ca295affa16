#pragma once

#include "apps/train/kernels/device/convolution_body.h"
#include "apps/train/kernels/device/head_body.h"
#include "apps/train/kernels/device/norm_body.h"
#include "apps/train/kernels/device/norm_gradient_body.h"
#include "apps/train/kernels/device/pool_gradient_body.h"
#include "apps/train/kernels/device/sum_body.h"
#include "apps/train/kernels/device/training_memory.h"
#include "apps/train/kernels/device/weight_gradient_body.h"

namespace ddp::train::kernels::device {

// The ConvNet of conv_net.h as a list of launches, written once for the GPU and for the host that proves it.
// The flat vectors have the same layout there; a test compares.
inline constexpr int kConvNetParameters = 29'034;
inline constexpr int kConvNetRunning = 96;
inline constexpr int kConvNetFeatures = 7 * 7 * 32;
inline constexpr int kConvNetFcWeight = 13'344;
inline constexpr int kConvNetFcBias = 29'024;

/// One block's bodies, places and memory.
template <class T, int Side, int In, int Out>
struct DeviceConvBlock {
  using Forward = Convolution<T, Side, In, Out>;
  using Moments = Norm<T, Out, Forward::kThreads>;
  using GradientSums = NormGradientSums<T, Out, 256>;
  static constexpr int kPixels = Side * Side;

  int weight = 0, gamma = 0, beta = 0;  ///< offsets of parameters; the bias is behind the weight
  int running = 0;                      ///< offset of the means; the variances are behind
  T *convolved, *mean_parts, *square_parts, *scale, *shift, *gain, *offset, *slope;
  T *sums, *products;
  double *mean, *inverse;
  unsigned *forward_ticket, *backward_ticket;

  void lay_out(Arena& arena, int max_batch) {
    const std::size_t batch = static_cast<std::size_t>(max_batch);
    convolved = arena.take<T>(batch * kPixels * Out);
    mean_parts = arena.take<T>(batch * Forward::kBands * Out);
    square_parts = arena.take<T>(batch * Forward::kBands * Out);
    for (T** array : {&scale, &shift, &gain, &offset, &slope})
      *array = arena.take<T>(Out);
    sums = arena.take<T>(batch * Out);
    products = arena.take<T>(batch * Out);
    mean = arena.take<double>(Out);
    inverse = arena.take<double>(Out);
    forward_ticket = arena.take<unsigned>(1);
    backward_ticket = arena.take<unsigned>(1);
  }

  /// To the convolution's output, and what normalisation makes of it.
  template <class Runner>
  void forward(const Runner& runner, const TrainingMemory<T>& m, int batch, const T* padded,
               bool training) const {
    const T* p = m.parameters;
    const T *old_mean = m.running + running, *old_variance = old_mean + Out;
    T* const next_mean = m.next_running + running;
    runner.template run<WithLast<Forward, Moments>>(
        {{batch, padded, p + weight, p + weight + Forward::kWeights, convolved,
          training ? mean_parts : nullptr, square_parts},
         {training ? batch * Forward::kBands : 0,
          Forward::kPixels,
          mean_parts,
          square_parts,
          p + gamma,
          p + beta,
          old_mean,
          old_variance,
          next_mean,
          next_mean + Out,
          {scale, shift, mean, inverse}},
         forward_ticket});
  }

  /// What the sums over the images' parts become.
  typename GradientSums::Args gradient_sums(const TrainingMemory<T>& m, int batch) const {
    return {batch,
            static_cast<double>(batch) * kPixels,
            sums,
            products,
            mean,
            inverse,
            m.parameters + gamma,
            m.gradients + gamma,
            m.gradients + beta,
            gain,
            offset,
            slope};
  }

  /// Of the convolution's output.
  typename PooledGradient<T, Side, Out>::Args pooled_gradient(const T* pooled) const {
    return {convolved, scale, shift, gain, offset, slope, pooled};
  }
};

template <class T>
struct ConvNetMemory {
  using Block1 = DeviceConvBlock<T, 28, 1, 16>;
  using Block2 = DeviceConvBlock<T, 14, 16, 32>;
  /// Nothing else reads the gradient of the first convolution's output: it is made where it is read.
  using Weights1 = WeightGradient<T, 28, 1, 16, 5, 7, PooledGradient<T, 28, 16>>;
  using Weights2 = WeightGradient<T, 14, 16, 32, 1, 1>;

  TrainingMemory<T> training;
  Block1 block1;
  Block2 block2;
  T *hidden, *hidden_gradient;  ///< padded for block 2; dense
  T *features, *features_gradient;
  T* gradient2;  ///< of the second convolution's output, padded for its own convolution
  T* logit_gradient;
  T *weight_parts1, *weight_parts2;
  unsigned* head_ticket;

  ConvNetMemory(Arena& arena, int max_batch)
      : training(arena, kConvNetParameters, kConvNetRunning, max_batch, kPaddedPixels) {
    const std::size_t batch = static_cast<std::size_t>(max_batch);
    block1.weight = 0, block1.gamma = 416, block1.beta = 432, block1.running = 0;
    block2.weight = 448, block2.gamma = 13'280, block2.beta = 13'312, block2.running = 32;
    block1.lay_out(arena, max_batch);
    block2.lay_out(arena, max_batch);
    hidden = arena.take<T>(batch * 18 * 18 * 16);
    hidden_gradient = arena.take<T>(batch * 14 * 14 * 16);
    features = arena.take<T>(batch * kConvNetFeatures);
    features_gradient = arena.take<T>(batch * kConvNetFeatures);
    gradient2 = arena.take<T>(batch * 18 * 18 * 32);
    logit_gradient = arena.take<T>(batch * kClasses);
    weight_parts1 = arena.take<T>(static_cast<std::size_t>(Weights1::kMaxGroups) * Weights1::kSize);
    weight_parts2 = arena.take<T>(static_cast<std::size_t>(Weights2::kMaxGroups) * Weights2::kSize);
    head_ticket = arena.take<unsigned>(1);
  }
};

/// The images and labels are in the training's memory; afterwards mean loss and score are, and what backward
/// needs. In evaluation by the running statistics, and only the score.
template <class T, class Runner>
void run_conv_net_forward(const Runner& runner, const ConvNetMemory<T>& m, int batch, bool training) {
  const TrainingMemory<T>& t = m.training;
  const auto &block1 = m.block1, &block2 = m.block2;
  block1.forward(runner, t, batch, t.images, training);
  runner.template run<Pool<T, 28, 16>>({batch, block1.convolved, block1.scale, block1.shift,
                                        m.hidden + (2 * 18 + 2) * 16, 18 * 18 * 16, 18 * 16});
  block2.forward(runner, t, batch, m.hidden, training);
  using Totals = Both<typename ConvNetMemory<T>::Block2::GradientSums, ScoreTotals<T, 256>>;
  runner.template run<WithLast<Head<T, 14, 32>, Totals>>(
      {{batch, block2.convolved, block2.scale, block2.shift, t.parameters + kConvNetFcWeight,
        t.parameters + kConvNetFcBias, t.labels, t.scores, training ? m.features : nullptr, m.logit_gradient,
        m.features_gradient, block2.sums, block2.products},
       {block2.gradient_sums(t, training ? batch : 0),
        {batch, t.scores, training ? t.gradients + t.count : nullptr, t.score}},
       m.head_ticket});
}

/// To the gradients.
template <class T, class Runner>
void run_conv_net_backward(const Runner& runner, const ConvNetMemory<T>& m, int batch) {
  const TrainingMemory<T>& t = m.training;
  const auto &block1 = m.block1, &block2 = m.block2;
  runner.template run<HeadGradient<T>>({batch, kConvNetFeatures, m.features, m.logit_gradient,
                                        t.gradients + kConvNetFcWeight, t.gradients + kConvNetFcBias});
  T* const inner = m.gradient2 + (2 * 18 + 2) * 32;
  runner.template run<PoolGradient<T, 14, 32>>(
      {batch, block2.pooled_gradient(m.features_gradient), inner, 18 * 18 * 32, 18 * 32});
  runner.template run<Convolution<T, 14, 32, 16, true>>(
      {batch, m.gradient2, t.parameters + block2.weight, nullptr, m.hidden_gradient, nullptr, nullptr});
  using Weights2 = typename ConvNetMemory<T>::Weights2;
  runner.template run<Weights2>({batch, m.hidden, {inner, 18 * 18 * 32, 18 * 32}, m.weight_parts2});
  runner.template run<WithLast<PoolSums<T, 28, 16>, typename ConvNetMemory<T>::Block1::GradientSums>>(
      {{batch, block1.convolved, block1.scale, block1.shift, m.hidden_gradient, block1.sums, block1.products},
       block1.gradient_sums(t, batch),
       block1.backward_ticket});
  using Weights1 = typename ConvNetMemory<T>::Weights1;
  runner.template run<Weights1>(
      {batch, t.images, block1.pooled_gradient(m.hidden_gradient), m.weight_parts1});
  runner.template run<SumParts<T>>(
      {{{m.weight_parts1, t.gradients + block1.weight, Weights1::kSize, Weights1::groups(batch)},
        {m.weight_parts2, t.gradients + block2.weight, Weights2::kSize, Weights2::groups(batch)}}});
}

}  // namespace ddp::train::kernels::device
