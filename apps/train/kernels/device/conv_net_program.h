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
template <class T, int Side, int In, int Out, int WindowRows, int Teams>
struct DeviceConvBlock {
  using Forward = Convolution<T, Side, In, Out>;
  using Weights = WeightGradient<T, Side, In, Out, WindowRows, Teams>;
  static constexpr int kPadded = Side + 4;
  static constexpr int kPixels = Side * Side;

  int weight = 0, gamma = 0, beta = 0;  ///< offsets of parameters; the bias is behind the weight
  int running = 0;                      ///< offset of the means; the variances are behind
  T *convolved, *mean_parts, *square_parts, *scale, *shift, *gain, *offset, *slope;
  T *sums, *products, *weight_parts;
  double *mean, *inverse;

  void lay_out(Arena& arena, int max_batch) {
    const std::size_t batch = static_cast<std::size_t>(max_batch);
    convolved = arena.take<T>(batch * kPixels * Out);
    mean_parts = arena.take<T>(batch * Forward::kBands * Out);
    square_parts = arena.take<T>(batch * Forward::kBands * Out);
    for (T** array : {&scale, &shift, &gain, &offset, &slope})
      *array = arena.take<T>(Out);
    sums = arena.take<T>(batch * Out);
    products = arena.take<T>(batch * Out);
    weight_parts = arena.take<T>(static_cast<std::size_t>(Weights::kMaxGroups) * Weights::kSize);
    mean = arena.take<double>(Out);
    inverse = arena.take<double>(Out);
  }

  template <class Runner>
  void forward(const Runner& runner, const TrainingMemory<T>& m, int batch, const T* padded,
               bool training) const {
    const T* p = m.parameters;
    const NormResult<T> norm{scale, shift, mean, inverse};
    runner.template run<Forward>({batch, padded, p + weight, p + weight + Weights::kWeights, convolved,
                                  training ? mean_parts : nullptr, square_parts});
    const T *old_mean = m.running + running, *old_variance = old_mean + Out;
    if (training) {
      runner.template run<Norm<T>>({Out, batch * Forward::kBands, Forward::kPixels, mean_parts, square_parts,
                                    p + gamma, p + beta, old_mean, old_variance, m.next_running + running,
                                    m.next_running + running + Out, norm});
    } else {
      runner.template run<RunningNorm<T>>({Out, old_mean, old_variance, p + gamma, p + beta, norm});
    }
  }

  template <class Runner>
  void pool(const Runner& runner, int batch, T* pooled, std::ptrdiff_t image_stride, int row_stride) const {
    runner.template run<Pool<T, Side, Out>>(
        {batch, convolved, scale, shift, pooled, image_stride, row_stride});
  }

  /// To the gradient of the convolution's output.
  template <class Runner>
  void norm_backward(const Runner& runner, const TrainingMemory<T>& m, int batch, const T* pooled_gradient,
                     T* gradient, std::ptrdiff_t image_stride, int row_stride) const {
    runner.template run<PoolSums<T, Side, Out>>(
        {batch, convolved, scale, shift, pooled_gradient, sums, products});
    runner.template run<NormGradientSums<T>>({Out, batch, static_cast<double>(batch) * kPixels, sums,
                                              products, mean, inverse, m.parameters + gamma,
                                              m.gradients + gamma, m.gradients + beta, gain, offset, slope});
    runner.template run<PoolGradient<T, Side, Out>>({batch, convolved, scale, shift, gain, offset, slope,
                                                     pooled_gradient, gradient, image_stride, row_stride});
  }

  typename SumParts<T>::Range parts(const TrainingMemory<T>& m, int batch) const {
    return {weight_parts, m.gradients + weight, Weights::kSize, Weights::groups({batch, {}, {}, {}, {}, {}})};
  }
};

template <class T>
struct ConvNetMemory {
  TrainingMemory<T> training;
  DeviceConvBlock<T, 28, 1, 16, 5, 7> block1;
  DeviceConvBlock<T, 14, 16, 32, 1, 1> block2;
  T *hidden, *hidden_gradient;  ///< padded for block 2; dense
  T *features, *features_gradient;
  T *gradient1, *gradient2;  ///< of the convolutions' outputs: dense; padded, for its own convolution
  T* logit_gradient;

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
    gradient1 = arena.take<T>(batch * 28 * 28 * 16);
    gradient2 = arena.take<T>(batch * 18 * 18 * 32);
    logit_gradient = arena.take<T>(batch * kClasses);
  }
};

/// The images and labels are in the training's memory; afterwards gradients, mean loss and score are. In
/// evaluation by the running statistics, and only the score.
template <class T, class Runner>
void run_conv_net_forward(const Runner& runner, const ConvNetMemory<T>& m, int batch, bool training) {
  const TrainingMemory<T>& t = m.training;
  m.block1.forward(runner, t, batch, t.images, training);
  m.block1.pool(runner, batch, m.hidden + (2 * 18 + 2) * 16, 18 * 18 * 16, 18 * 16);
  m.block2.forward(runner, t, batch, m.hidden, training);
  m.block2.pool(runner, batch, m.features, kConvNetFeatures, 7 * 32);
  runner.template run<Head<T>>(
      {batch, kConvNetFeatures, m.features, t.parameters + kConvNetFcWeight, t.parameters + kConvNetFcBias,
       t.labels, training ? m.logit_gradient : nullptr, training ? m.features_gradient : nullptr, t.scores});
  if (!training) runner.template run<ScoreTotals<T>>({batch, t.scores, nullptr, t.score});
}

template <class T, class Runner>
void run_conv_net_backward(const Runner& runner, const ConvNetMemory<T>& m, int batch) {
  const TrainingMemory<T>& t = m.training;
  runner.template run<HeadGradient<T>>({batch,
                                        kConvNetFeatures,
                                        m.features,
                                        m.logit_gradient,
                                        t.gradients + kConvNetFcWeight,
                                        t.gradients + kConvNetFcBias,
                                        {batch, t.scores, t.gradients + t.count, t.score}});
  T* const inner = m.gradient2 + (2 * 18 + 2) * 32;
  m.block2.norm_backward(runner, t, batch, m.features_gradient, inner, 18 * 18 * 32, 18 * 32);
  runner.template run<Convolution<T, 14, 32, 16, true>>(
      {batch, m.gradient2, t.parameters + m.block2.weight, nullptr, m.hidden_gradient, nullptr, nullptr});
  using Weights2 = typename decltype(m.block2)::Weights;
  runner.template run<Weights2>({batch, m.hidden, inner, 18 * 18 * 32, 18 * 32, m.block2.weight_parts});
  m.block1.norm_backward(runner, t, batch, m.hidden_gradient, m.gradient1, 28 * 28 * 16, 28 * 16);
  using Weights1 = typename decltype(m.block1)::Weights;
  runner.template run<Weights1>({batch, t.images, m.gradient1, 28 * 28 * 16, 28 * 16, m.block1.weight_parts});
  runner.template run<SumParts<T>>({{m.block1.parts(t, batch), m.block2.parts(t, batch)}});
}

}  // namespace ddp::train::kernels::device
