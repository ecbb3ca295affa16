#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/gpu/convolution_body.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/kernels/gpu/head_body.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"
#include "apps/train/kernels/gpu/update_body.h"

namespace ddp::train::kernels::device {

/// Position of one array in an arena, for a program that compares two memories.
struct ArenaPart {
  std::size_t begin;  ///< bytes
  std::size_t count;  ///< numbers
  std::size_t size;   ///< bytes of a number
  bool floating_point;
};

/// Divides one piece of memory, the host's or a GPU's, into arrays. Without memory, it only counts:
///
///   Arena counting;  lay_out(counting);  allocate(counting.size());  Arena arena(memory);  lay_out(arena);
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::byte* memory) : memory_(memory) {}
  /// Only counts, and records each array in `parts`.
  explicit Arena(std::vector<ArenaPart>& parts) : parts_(&parts) {}

  template <class T>
  T* allocate(std::size_t count) {
    const std::size_t at = size_;
    size_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (parts_ != nullptr) parts_->push_back({at, count, sizeof(T), std::is_floating_point_v<T>});
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kAlignment = 256;  // bytes that a GPU reads at once
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::vector<ArenaPart>* parts_ = nullptr;
};

/// Backward calls it when the launches so far compute all gradients from element `begin` on.
using OnReady = std::function<void(std::size_t begin)>;

/// Memory for a step of any model: a batch, the flat vectors, the score and the update's state. It begins
/// with zeros.
template <class T>
struct TrainingMemory {
  int count = 0;          ///< parameters
  int running_count = 0;  ///< running statistics
  T* images = nullptr;
  std::uint8_t* labels = nullptr;
  // The learned state, in one piece of memory.
  T* parameters = nullptr;
  T* first = nullptr;  ///< the optimizer's state
  T* second = nullptr;
  T* running = nullptr;
  StepState* state = nullptr;
  T* gradients = nullptr;  ///< [count + 1]: the mean loss follows them
  T* next_running = nullptr;
  ImageScores scores{};
  BatchScore* score = nullptr;
  double* squares = nullptr;
  int* infinite = nullptr;
  unsigned* update_ticket = nullptr;
  StepSlots step{};  ///< whoever runs programs on a GPU places the slots in host memory

  TrainingMemory() = default;
  TrainingMemory(Arena& arena, int parameter_count, int running, int max_batch, int image_size)
      : count(parameter_count),
        running_count(running),
        images(arena.allocate<T>(static_cast<std::size_t>(max_batch) * image_size)),
        labels(arena.allocate<std::uint8_t>(max_batch)),
        parameters(arena.allocate<T>(parameter_count)),
        first(arena.allocate<T>(parameter_count)),
        second(arena.allocate<T>(parameter_count)),
        running(arena.allocate<T>(running)),
        state(arena.allocate<StepState>(1)),
        gradients(arena.allocate<T>(static_cast<std::size_t>(parameter_count) + 1)),
        next_running(arena.allocate<T>(running)),
        scores{arena.allocate<double>(max_batch), arena.allocate<int>(max_batch)},
        score(arena.allocate<BatchScore>(1)),
        squares(arena.allocate<double>(GradientCheck<T>::blocks({parameter_count, {}, {}, {}, {}, {}}))),
        infinite(arena.allocate<int>(GradientCheck<T>::blocks({parameter_count, {}, {}, {}, {}, {}}))),
        update_ticket(arena.allocate<unsigned>(1)),
        step{arena.allocate<StepSlot>(StepSlots::kCount), arena.allocate<unsigned>(1)} {}

  std::byte* learnt() const { return reinterpret_cast<std::byte*>(parameters); }
  std::size_t learnt_bytes() const {
    return static_cast<std::size_t>(reinterpret_cast<std::byte*>(state + 1) - learnt());
  }
};

/// Adds the weights that the forward and backward kernels read, stored as S. If S is T, they are the
/// parameters. Else Update writes both, and run_round_weights() must follow every other write to the
/// parameters.
template <class T, class S = T>
struct WeightMemory : TrainingMemory<T> {
  S* weights = nullptr;  ///< [count], as parameters

  WeightMemory() = default;
  WeightMemory(Arena& arena, int parameter_count, int running, int max_batch, int image_size)
      : TrainingMemory<T>(arena, parameter_count, running, max_batch, image_size) {
    if constexpr (std::is_same_v<S, T>) {
      weights = this->parameters;
    } else {
      weights = arena.allocate<S>(parameter_count);
    }
  }
};

template <class T, class S, class Runner>
void run_round_weights(const Runner& runner, const WeightMemory<T, S>& m) {
  if constexpr (!std::is_same_v<S, T>)
    runner.template run<RoundNumbers<T, S>>({m.count, m.parameters, m.weights});
}

/// Computes new parameters and weights from the reduced gradient; `share` as in GradientCheck.
template <class T, class S, class Runner>
void run_update(const Runner& runner, const WeightMemory<T, S>& m, const UpdateSettings& settings, T share) {
  const typename GradientCheck<T>::Args check{m.count,   m.gradients, share, settings.clip_value,
                                              m.squares, m.infinite};
  runner.template run<WithLast<GradientCheck<T>, StepDecision<T>>>(
      {check,
       {GradientCheck<T>::blocks(check), m.squares, m.infinite, settings, m.gradients + m.count, m.state,
        m.step},
       m.update_ticket});
  runner.template run<Update<T, S>>({m.count, m.parameters, m.gradients, m.first, m.second, m.running_count,
                                     m.running, m.next_running, settings, m.state, m.weights});
}

// The memory of the ConvNet of model.h. The flat vectors have the same layout there; a test compares them.
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
    convolved = arena.allocate<S>(batch * kPixels * Out);
    mean_parts = arena.allocate<T>(batch * Forward::kBands * Out);
    square_parts = arena.allocate<T>(batch * Forward::kBands * Out);
    for (T** array : {&scale, &shift, &gain, &offset, &slope})
      *array = arena.allocate<T>(Out);
    sums = arena.allocate<T>(batch * Out);
    products = arena.allocate<T>(batch * Out);
    mean = arena.allocate<double>(Out);
    inverse = arena.allocate<double>(Out);
    forward_ticket = arena.allocate<unsigned>(1);
    backward_ticket = arena.allocate<unsigned>(1);
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
    hidden = arena.allocate<S>(batch * 18 * 18 * 16);
    hidden_gradient = arena.allocate<T>(batch * 14 * 14 * 16);
    features = arena.allocate<S>(batch * kConvNetFeatures);
    features_gradient = arena.allocate<T>(batch * kConvNetFeatures);
    gradient2 = arena.allocate<T>(batch * 18 * 18 * 32);
    logit_gradient = arena.allocate<T>(batch * kClasses);
    weight_parts1 = arena.allocate<T>(static_cast<std::size_t>(Weights1::kMaxGroups) * Weights1::kSize);
    weight_parts2 = arena.allocate<T>(static_cast<std::size_t>(Weights2::kMaxGroups) * Weights2::kSize);
    head_ticket = arena.allocate<unsigned>(1);
  }
};

// The ConvNet of model.h as a list of launches, written once for the GPU and for tests on the host.

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

/// The multi-layer perceptron of model.h, with the same layout of its flat vectors. T and S as in
/// ConvNetMemory. All factors of products are stored as S. If S is not T, images and the logits' gradient
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
      if (i < depth) layer.output = arena.allocate<S>(batch * layer.outputs);
      layers.push_back(layer);
    }
    logits = arena.allocate<T>(batch * kClasses);
    logits_gradient = arena.allocate<T>(batch * kClasses);
    for (S*& gradient : gradients)
      gradient = arena.allocate<S>(batch * width);
    if constexpr (!std::is_same_v<S, T>) {
      rounded_images = arena.allocate<S>(batch * kImagePixels);
      rounded_gradient = arena.allocate<S>(batch * kClasses);
    }
    loss_ticket = arena.allocate<unsigned>(1);
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
