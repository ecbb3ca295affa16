#pragma once

#include "apps/train/kernels/gpu/convolution_body.h"
#include "apps/train/kernels/gpu/norm_body.h"
#include "apps/train/kernels/gpu/norm_gradient_body.h"
#include "apps/train/kernels/gpu/pool_gradient_body.h"
#include "apps/train/kernels/gpu/training_memory.h"
#include "apps/train/kernels/gpu/weight_gradient_body.h"

namespace ddp::train::kernels::device {

// The memory of the ConvNet of conv_net.h. The flat vectors have the same layout there; a test compares them.
// Kernels compute in T. Activations and the weights that kernels read are stored as S, gradients and sums as
// T.
inline constexpr int kConvNetParameters = 29'034;
inline constexpr int kConvNetRunning = 96;
inline constexpr int kConvNetFeatures = 7 * 7 * 32;
inline constexpr int kConvNetFcWeight = 13'344;
inline constexpr int kConvNetFcBias = 29'024;
/// With batches from this size on, a block of a convolution has twice the rows: ten blocks for each processor
/// of a large GPU remain.
inline constexpr int kManyImages = 1320;

/// Bodies, parameter offsets and memory of one block. Its input is stored as From.
template <class T, class S, int Side, int In, int Out, class From>
struct DeviceConvBlock {
  template <int Split, int Rows>
  using ForwardIn = Convolution<T, Side, In, Out, false, From, S, S, Split, Rows>;
  using Forward = ForwardIn<1, 7>;
  /// Two blocks for each processor of a large GPU. If there are fewer, their channels are split.
  static constexpr int kFewBlocks = 264;
  using GradientSums = NormGradientSums<T, Out, 256>;
  static constexpr int kPixels = Side * Side;

  int weight = 0, gamma = 0, beta = 0;  ///< offsets of parameters; the bias follows the weight
  int running = 0;                      ///< offset of the means; the variances follow them
  S* convolved;
  T *mean_parts, *square_parts, *scale, *shift, *gain, *offset, *slope;
  T *sums, *products;
  double *mean, *inverse;
  unsigned *forward_ticket, *backward_ticket;

  void lay_out(Arena& arena, int max_batch) {
    const std::size_t batch = static_cast<std::size_t>(max_batch);
    convolved = arena.take<S>(batch * kPixels * Out);
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

  /// Computes the convolution's output and its normalization. `tall`: with bands of twice the rows.
  template <class Runner>
  void forward(const Runner& runner, const WeightMemory<T, S>& m, int batch, const From* padded,
               bool training, bool tall) const {
    if (tall) {
      run_forward<ForwardIn<1, 14>>(runner, m, batch, padded, training);
    } else if (batch * Forward::kBands < kFewBlocks) {
      run_forward<ForwardIn<2, 7>>(runner, m, batch, padded, training);
    } else {
      run_forward<Forward>(runner, m, batch, padded, training);
    }
  }
  template <class Body, class Runner>
  void run_forward(const Runner& runner, const WeightMemory<T, S>& m, int batch, const From* padded,
                   bool training) const {
    const S* w = m.weights + weight;
    const T* p = m.parameters;
    const T *old_mean = m.running + running, *old_variance = old_mean + Out;
    T* const next_mean = m.next_running + running;
    runner.template run<WithLast<Body, Norm<T, Out, Body::kThreads>>>(
        {{batch, padded, w, w + Forward::kWeights, convolved, training ? mean_parts : nullptr, square_parts},
         {training ? batch * Body::kBands : 0,
          Body::kPixels,
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

  /// Returns the arguments for combining the sums of all images.
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

  /// Returns the arguments for the gradient of the convolution's output.
  typename PooledGradient<T, Side, Out, S>::Args pooled_gradient(const T* pooled) const {
    return {convolved, scale, shift, gain, offset, slope, pooled};
  }
};

template <class T, class S = T>
struct ConvNetMemory {
  using Block1 = DeviceConvBlock<T, S, 28, 1, 16, T>;
  using Block2 = DeviceConvBlock<T, S, 14, 16, 32, S>;
  /// Computes the gradient of the first convolution's output where it is read, since nothing else reads it.
  using Weights1 = WeightGradient<T, 28, 1, 16, 5, 7, PooledGradient<T, 28, 16, S>>;
  using Weights2 = WeightGradient<T, 14, 16, 32, 1, 1, DenseGradient<T, 14, 32>, S>;

  bool has_tall_bands;
  WeightMemory<T, S> training;
  Block1 block1;
  Block2 block2;
  S* hidden;           ///< padded for block 2
  T* hidden_gradient;  ///< dense
  S* features;
  T* features_gradient;
  T* gradient2;  ///< of the second convolution's output, padded for that convolution
  T* logit_gradient;
  T *weight_parts1, *weight_parts2;
  unsigned* head_ticket;

  ConvNetMemory(Arena& arena, int max_batch)
      : has_tall_bands(max_batch >= kManyImages),
        training(arena, kConvNetParameters, kConvNetRunning, max_batch, kPaddedPixels) {
    const std::size_t batch = static_cast<std::size_t>(max_batch);
    block1.weight = 0, block1.gamma = 416, block1.beta = 432, block1.running = 0;
    block2.weight = 448, block2.gamma = 13'280, block2.beta = 13'312, block2.running = 32;
    block1.lay_out(arena, max_batch);
    block2.lay_out(arena, max_batch);
    hidden = arena.take<S>(batch * 18 * 18 * 16);
    hidden_gradient = arena.take<T>(batch * 14 * 14 * 16);
    features = arena.take<S>(batch * kConvNetFeatures);
    features_gradient = arena.take<T>(batch * kConvNetFeatures);
    gradient2 = arena.take<T>(batch * 18 * 18 * 32);
    logit_gradient = arena.take<T>(batch * kClasses);
    weight_parts1 = arena.take<T>(static_cast<std::size_t>(Weights1::kMaxGroups) * Weights1::kSize);
    weight_parts2 = arena.take<T>(static_cast<std::size_t>(Weights2::kMaxGroups) * Weights2::kSize);
    head_ticket = arena.take<unsigned>(1);
  }
};

}  // namespace ddp::train::kernels::device
