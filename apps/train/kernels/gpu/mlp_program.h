#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/kernels/gpu/sum_body.h"
#include "apps/train/kernels/gpu/training_memory.h"

namespace ddp::train::kernels::device {

/// The multi-layer perceptron of mlp.h, with the same layout of its flat vectors. T and S as in
/// conv_net_memory.h.
template <class T, class S = T>
struct MlpMemory {
  struct DeviceLayer {
    int inputs, outputs;
    std::size_t weight, bias;  ///< offsets
    S* output;                 ///< null for the last layer
  };
  WeightMemory<T, S> training;
  std::vector<DeviceLayer> layers;
  T* logits;
  T *gradient, *next_gradient;  ///< of a layer's outputs, and of its inputs
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
    gradient = arena.take<T>(batch * std::max(width, kClasses));
    next_gradient = arena.take<T>(batch * std::max(width, kClasses));
    loss_ticket = arena.take<unsigned>(1);
  }
};

/// Computes output = input · weightᵀ + bias of one layer. Inputs are stored as A, outputs as C.
template <class T, class S, class A, class C, class Runner>
void run_mlp_layer(const Runner& runner, const MlpMemory<T, S>& m,
                   const typename MlpMemory<T, S>::DeviceLayer& layer, int batch, const A* input, C* output,
                   GemmEnd end) {
  const S* w = m.training.weights;
  runner.template run<Gemm<T, A, S, C>>({batch, layer.outputs, layer.inputs, input, layer.inputs, 1,
                                         w + layer.weight, 1, layer.inputs, output, layer.outputs, end,
                                         w + layer.bias, nullptr});
}

template <class T, class S, class Runner>
void run_mlp_forward(const Runner& runner, const MlpMemory<T, S>& m, int batch, bool training) {
  const WeightMemory<T, S>& t = m.training;
  const auto run_from = [&](const auto& layer, const auto* input) {
    if (layer.output != nullptr) {
      run_mlp_layer(runner, m, layer, batch, input, layer.output, GemmEnd::kBiasRelu);
    } else {
      run_mlp_layer(runner, m, layer, batch, input, m.logits, GemmEnd::kBias);
    }
  };
  run_from(m.layers[0], t.images);
  for (std::size_t i = 1; i < m.layers.size(); ++i)
    run_from(m.layers[i], m.layers[i - 1].output);
  using Loss = SoftmaxLoss<T>;
  runner.template run<WithLast<Loss, ScoreTotals<T, Loss::kThreads>>>(
      {{batch, m.logits, t.labels, training ? m.gradient : nullptr, t.scores},
       {batch, t.scores, training ? t.gradients + t.count : nullptr, t.score},
       m.loss_ticket});
}

template <class T, class S, class Runner>
void run_mlp_backward(const Runner& runner, const MlpMemory<T, S>& m, int batch, const OnReady& on_ready) {
  const WeightMemory<T, S>& t = m.training;
  T *gradient = m.gradient, *next = m.next_gradient;
  for (std::size_t i = m.layers.size(); i-- > 0;) {
    const auto& layer = m.layers[i];
    const auto weight_gradient = [&]<class In>(const In* input) {
      runner.template run<Gemm<T, T, In>>({layer.outputs, layer.inputs, batch, gradient, 1, layer.outputs,
                                           input, layer.inputs, 1, t.gradients + layer.weight, layer.inputs,
                                           GemmEnd::kPlain, nullptr, nullptr});
      runner.template run<ColumnSums<T>>({batch, layer.outputs, gradient, t.gradients + layer.bias});
      on_ready(layer.weight);
    };
    if (i == 0) {
      weight_gradient(t.images);
      return;
    }
    const S* input = m.layers[i - 1].output;
    weight_gradient(input);
    runner.template run<Gemm<T, T, S>>({batch, layer.inputs, layer.outputs, gradient, layer.outputs, 1,
                                        t.weights + layer.weight, layer.inputs, 1, next, layer.inputs,
                                        GemmEnd::kMask, nullptr, input});
    std::swap(gradient, next);
  }
}

}  // namespace ddp::train::kernels::device
