#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"

namespace ddp::train {

/// A multi-layer perceptron: 784 pixels, `depth` hidden layers of `width` with ReLU, 10 classes. Its tensors
/// have the names of PyTorch's Sequential(Linear, ReLU, …, Linear): "0.weight", "0.bias", "2.weight", … Its
/// purpose is to load the network: 2048 wide and 7 deep, it has 107 MB of gradients.
template <class T>
class Mlp final : public Model<T> {
 public:
  /// `threads` and `kernels` must outlive the model.
  Mlp(int width, int depth, int max_batch, ThreadPool& threads,
      const kernels::KernelTable<T>& kernels = kernels::best_kernels<T>());

  static std::size_t parameters_of(int width, int depth);

  std::string_view name() const override { return "mlp"; }
  int image_border() const override { return 0; }
  const std::vector<TensorInfo>& parameter_tensors() const override { return tensors_; }
  const std::vector<TensorInfo>& running_tensors() const override { return no_tensors_; }
  std::vector<std::string> counter_names() const override { return {}; }

  kernels::BatchScore forward(const T* images, std::span<const std::uint8_t> labels) override;
  using OnReady = typename Model<T>::OnReady;
  void backward(const T* images, int batch, const OnReady& on_ready) override;
  kernels::BatchScore evaluate(const T* images, std::span<const std::uint8_t> labels) override;

 private:
  using Model<T>::parameters_;
  using Model<T>::gradients_;
  struct Layer {
    int inputs, outputs;
    std::size_t weight, bias;  ///< offsets
    AlignedBuffer<T> output;
  };

  /// Fills the outputs of the layers; the last layer's output is the logits.
  void compute(const T* images, int batch);
  void layer_forward(Layer& layer, const T* input, int batch, bool relu);
  void weight_gradients(const Layer& layer, const T* input, int batch);
  void input_gradients(const Layer& layer, int batch);

  const kernels::KernelTable<T>& kernels_;
  ThreadPool& threads_;
  std::vector<TensorInfo> tensors_, no_tensors_;
  std::vector<Layer> layers_;
  AlignedBuffer<T> gradient_, next_gradient_;  ///< gradients of a layer's outputs, and of its inputs
  AlignedBuffer<T> scratch_;                   ///< kGemmScratch per thread
};

}  // namespace ddp::train
