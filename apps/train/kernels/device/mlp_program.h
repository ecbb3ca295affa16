#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "apps/train/kernels/device/gemm_body.h"
#include "apps/train/kernels/device/sum_body.h"
#include "apps/train/kernels/device/training_memory.h"

namespace ddp::train::kernels::device {

/// The multi-layer perceptron of mlp.h, with the same layout of its flat vectors.
template <class T>
struct MlpMemory {
  struct Layer {
    int inputs, outputs;
    std::size_t weight, bias;  ///< offsets
    T* output;
  };
  TrainingMemory<T> training;
  std::vector<Layer> layers;
  T *gradient, *next_gradient;  ///< of a layer's outputs, and of its inputs
  unsigned* loss_ticket;

  MlpMemory(Arena& arena, int width, int depth, int parameters, int max_batch)
      : training(arena, parameters, 0, max_batch, kImagePixels) {
    const std::size_t batch = static_cast<std::size_t>(max_batch);
    std::size_t at = 0;
    for (int i = 0; i <= depth; ++i) {
      Layer layer{i == 0 ? kImagePixels : width, i == depth ? kClasses : width, at, 0, nullptr};
      layer.bias = at + static_cast<std::size_t>(layer.inputs) * layer.outputs;
      at = layer.bias + static_cast<std::size_t>(layer.outputs);
      layer.output = arena.take<T>(batch * layer.outputs);
      layers.push_back(layer);
    }
    gradient = arena.take<T>(batch * std::max(width, kClasses));
    next_gradient = arena.take<T>(batch * std::max(width, kClasses));
    loss_ticket = arena.take<unsigned>(1);
  }
};

template <class T, class Runner>
void run_mlp_forward(const Runner& runner, const MlpMemory<T>& m, int batch, bool training) {
  const TrainingMemory<T>& t = m.training;
  const T* input = t.images;
  for (const auto& layer : m.layers) {
    const bool last = &layer == &m.layers.back();
    runner.template run<Gemm<T>>({batch, layer.outputs, layer.inputs, input, layer.inputs, 1,
                                  t.parameters + layer.weight, 1, layer.inputs, layer.output, layer.outputs,
                                  last ? GemmEnd::kBias : GemmEnd::kBiasRelu, t.parameters + layer.bias,
                                  nullptr});
    input = layer.output;
  }
  using Loss = SoftmaxLoss<T>;
  runner.template run<WithLast<Loss, ScoreTotals<T, Loss::kThreads>>>(
      {{batch, input, t.labels, training ? m.gradient : nullptr, t.scores},
       {batch, t.scores, training ? t.gradients + t.count : nullptr, t.score},
       m.loss_ticket});
}

template <class T, class Runner>
void run_mlp_backward(const Runner& runner, const MlpMemory<T>& m, int batch) {
  const TrainingMemory<T>& t = m.training;
  T *gradient = m.gradient, *next = m.next_gradient;
  for (std::size_t i = m.layers.size(); i-- > 0;) {
    const auto& layer = m.layers[i];
    const T* input = i == 0 ? t.images : m.layers[i - 1].output;
    runner.template run<Gemm<T>>({layer.outputs, layer.inputs, batch, gradient, 1, layer.outputs, input,
                                  layer.inputs, 1, t.gradients + layer.weight, layer.inputs, GemmEnd::kPlain,
                                  nullptr, nullptr});
    runner.template run<ColumnSums<T>>({batch, layer.outputs, gradient, t.gradients + layer.bias});
    if (i == 0) return;
    runner.template run<Gemm<T>>({batch, layer.inputs, layer.outputs, gradient, layer.outputs, 1,
                                  t.parameters + layer.weight, layer.inputs, 1, next, layer.inputs,
                                  GemmEnd::kMask, nullptr, input});
    std::swap(gradient, next);
  }
}

}  // namespace ddp::train::kernels::device
