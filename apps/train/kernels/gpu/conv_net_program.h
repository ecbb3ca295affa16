#pragma once

#include "apps/train/kernels/gpu/conv_net_memory.h"
#include "apps/train/kernels/gpu/head_body.h"
#include "apps/train/kernels/gpu/pool_body.h"
#include "apps/train/kernels/gpu/sum_body.h"

namespace ddp::train::kernels::device {

// The ConvNet of conv_net.h as a list of launches, written once for the GPU and for tests on the host.

/// Reads images and labels from the training's memory. Writes mean loss, score and the data for backward
/// there. An evaluation uses the running statistics and computes only the score.
template <class T, class S, class Runner>
void run_conv_net_forward(const Runner& runner, const ConvNetMemory<T, S>& m, int batch, bool training) {
  const WeightMemory<T, S>& t = m.training;
  const auto& block1 = m.block1;
  const auto& block2 = m.block2;
  block1.forward(runner, t, batch, t.images, training, m.has_tall_bands);
  runner.template run<Pool<T, 28, 16, S>>({batch, block1.convolved, block1.scale, block1.shift,
                                           m.hidden + (2 * 18 + 2) * 16, 18 * 18 * 16, 18 * 16});
  block2.forward(runner, t, batch, m.hidden, training, m.has_tall_bands);
  using Totals = BodyPair<typename ConvNetMemory<T, S>::Block2::GradientSums, ScoreTotals<T, 256>>;
  runner.template run<WithLast<Head<T, 14, 32, S>, Totals>>(
      {{batch, block2.convolved, block2.scale, block2.shift, t.weights + kConvNetFcWeight,
        t.weights + kConvNetFcBias, t.labels, t.scores, training ? m.features : nullptr, m.logit_gradient,
        m.features_gradient, block2.sums, block2.products},
       {block2.gradient_sums(t, training ? batch : 0),
        {batch, t.scores, training ? t.gradients + t.count : nullptr, t.score}},
       m.head_ticket});
}

/// Computes the gradients. Only the way from the head to the first convolution's weights is one launch after
/// the other; the gradients of the linear layer and of the second convolution's weights are computed beside
/// it.
template <class T, class S, class Runner>
void run_conv_net_backward(const Runner& runner, const ConvNetMemory<T, S>& m, int batch,
                           const OnReady& on_ready) {
  const WeightMemory<T, S>& t = m.training;
  const auto& block1 = m.block1;
  const auto& block2 = m.block2;
  run_beside(runner, [&](const auto& beside) {
    beside.template run<HeadGradient<T, S>>({batch, kConvNetFeatures, m.features, m.logit_gradient,
                                             t.gradients + kConvNetFcWeight, t.gradients + kConvNetFcBias});
  });
  on_ready(static_cast<std::size_t>(block2.gamma));  // Head has computed those of the normalization
  T* const inner = m.gradient2 + (2 * 18 + 2) * 32;
  runner.template run<PoolGradient<T, 14, 32, S>>(
      {batch, block2.pooled_gradient(m.features_gradient), inner, 18 * 18 * 32, 18 * 32});
  run_beside(runner, [&](const auto& beside) {
    using Weights2 = typename ConvNetMemory<T, S>::Weights2;
    beside.template run<Weights2>({batch, m.hidden, {inner, 18 * 18 * 32, 18 * 32}, m.weight_parts2});
    beside.template run<ColumnSums<T>>(
        {Weights2::groups(batch), Weights2::kSize, m.weight_parts2, t.gradients + block2.weight});
  });
  const auto input_gradient = [&]<int Rows>(std::integral_constant<int, Rows>) {
    runner.template run<Convolution<T, 14, 32, 16, true, T, S, T, 1, Rows>>(
        {batch, m.gradient2, t.weights + block2.weight, nullptr, m.hidden_gradient, nullptr, nullptr});
  };
  if (m.has_tall_bands) {
    input_gradient(std::integral_constant<int, 14>{});
  } else {
    input_gradient(std::integral_constant<int, 7>{});
  }
  runner.template run<WithLast<PoolSums<T, 28, 16, S>, typename ConvNetMemory<T, S>::Block1::GradientSums>>(
      {{batch, block1.convolved, block1.scale, block1.shift, m.hidden_gradient, block1.sums, block1.products},
       block1.gradient_sums(t, batch),
       block1.backward_ticket});
  using Weights1 = typename ConvNetMemory<T, S>::Weights1;
  runner.template run<Weights1>(
      {batch, t.images, block1.pooled_gradient(m.hidden_gradient), m.weight_parts1});
  runner.template run<ColumnSums<T>>(
      {Weights1::groups(batch), Weights1::kSize, m.weight_parts1, t.gradients + block1.weight});
  join_branch(runner);
  on_ready(0);
}

}  // namespace ddp::train::kernels::device
