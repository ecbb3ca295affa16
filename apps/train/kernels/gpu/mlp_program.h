#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/kernels/gpu/sum_body.h"
#include "apps/train/kernels/gpu/training_memory.h"

namespace ddp::train::kernels::device {

/// The multi-layer perceptron of mlp.h, with the same layout of its flat vectors. T and S as in
/// conv_net_memory.h. All factors of products are stored as S. If S is not T, images and the logits' gradient
/// are rounded first.
template <class T, class S = T>
struct MlpMemory {
  struct DeviceLayer {
    int inputs, outputs;
    std::size_t weight, bias;  ///< offsets
    S* output;                 ///< null for the last layer
  };
  WeightMemory<T, S> training;
  std::vector<DeviceLayer> layers;
  T *logits, *logits_gradient;
  S* gradients[2];  ///< of a layer's outputs, and of its inputs, in turn
  S *rounded_images = nullptr, *rounded_gradient = nullptr;  ///< only if S is not T
  unsigned* loss_ticket;

  MlpMemory(Arena& arena, int width, int depth, int parameters, int max_batch)
      : training(arena, parameters, 0, max_batch, kImagePixels) {
    const std::size_t batch = static_cast<std::size_t>(max_batch);
    std::size_t at = 0;
    for (int i = 0; i <= depth; ++i) {
      DeviceLayer layer{i == 0 ? kImagePixels : width, i == depth ? kClasses : width, at, 0, nullptr};
      layer.bias = at + static_cast<std::size_t>(layer.inputs) * layer.outputs;
      at = layer.bias + static_cast<std::size_t>(layer.outputs);
      if (i < depth) layer.output = arena.take<S>(batch * layer.outputs);
      layers.push_back(layer);
    }
    logits = arena.take<T>(batch * kClasses);
    logits_gradient = arena.take<T>(batch * kClasses);
    for (S*& gradient : gradients)
      gradient = arena.take<S>(batch * width);
    if constexpr (!std::is_same_v<S, T>) {
      rounded_images = arena.take<S>(batch * kImagePixels);
      rounded_gradient = arena.take<S>(batch * kClasses);
    }
    loss_ticket = arena.take<unsigned>(1);
  }

  /// The first layer's inputs.
  const S* inputs() const {
    if constexpr (std::is_same_v<S, T>) {
      return training.images;
    } else {
      return rounded_images;
    }
  }
  const S* output_gradient() const {
    if constexpr (std::is_same_v<S, T>) {
      return logits_gradient;
    } else {
      return rounded_gradient;
    }
  }
};

template <class T, class S, class Runner>
void run_mlp_forward(const Runner& runner, const MlpMemory<T, S>& m, int batch, bool training) {
  const WeightMemory<T, S>& t = m.training;
  if constexpr (!std::is_same_v<S, T>)
    runner.template run<RoundNumbers<T, S>>({batch * kImagePixels, t.images, m.rounded_images});
  const S* input = m.inputs();
  for (const auto& layer : m.layers) {
    const auto compute = [&]<class C>(C* output, GemmEnd end) {  // input · weightᵀ + bias
      runner.template run<Gemm<T, S, S, C>>({batch, layer.outputs, layer.inputs, input, layer.inputs, 1,
                                             t.weights + layer.weight, 1, layer.inputs, output, layer.outputs,
                                             end, t.weights + layer.bias, nullptr});
    };
    if (layer.output != nullptr) {
      compute(layer.output, GemmEnd::kBiasRelu);
    } else {
      compute(m.logits, GemmEnd::kBias);
    }
    input = layer.output;
  }
  using Loss = SoftmaxLoss<T>;
  runner.template run<WithLast<Loss, ScoreTotals<T, Loss::kThreads>>>(
      {{batch, m.logits, t.labels, training ? m.logits_gradient : nullptr, t.scores},
       {batch, t.scores, training ? t.gradients + t.count : nullptr, t.score},
       m.loss_ticket});
}

template <class T, class S, class Runner>
void run_mlp_backward(const Runner& runner, const MlpMemory<T, S>& m, int batch, const OnReady& on_ready) {
  const WeightMemory<T, S>& t = m.training;
  if constexpr (!std::is_same_v<S, T>)
    runner.template run<RoundNumbers<T, S>>({batch * kClasses, m.logits_gradient, m.rounded_gradient});
  const S* gradient = m.output_gradient();
  for (std::size_t i = m.layers.size(); i-- > 0;) {
    const auto& layer = m.layers[i];
    const S* const input = i == 0 ? m.inputs() : m.layers[i - 1].output;
    runner.template run<Gemm<T, S, S>>({layer.outputs, layer.inputs, batch, gradient, 1, layer.outputs, input,
                                        layer.inputs, 1, t.gradients + layer.weight, layer.inputs,
                                        GemmEnd::kPlain, nullptr, nullptr});
    runner.template run<ColumnSums<T, S>>({batch, layer.outputs, gradient, t.gradients + layer.bias});
    on_ready(layer.weight);
    if (i == 0) return;
    S* const next = m.gradients[i % 2];
    runner.template run<Gemm<T, S, S, S>>({batch, layer.inputs, layer.outputs, gradient, layer.outputs, 1,
                                           t.weights + layer.weight, layer.inputs, 1, next, layer.inputs,
                                           GemmEnd::kMask, nullptr, input});
    gradient = next;
  }
}

}  // namespace ddp::train::kernels::device
