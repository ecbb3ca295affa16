#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/data/image_size.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"

namespace ddp::train {

template <class T>
class ConvBlock;

/// The ConvNet of the usual DDP tutorials, with 29,034 parameters. It has two blocks of conv 5 x 5, batch
/// normalization, ReLU and 2 x 2 maximum, with 16 and 32 channels. A linear layer to 10 classes follows. Its
/// tensors have the names of the tutorials' state_dict; the memory layout is that of our kernels.
template <class T>
class ConvNet final : public Model<T> {
 public:
  static constexpr int kParameters = 29'034;
  static constexpr int kRunning = 96;  ///< running means and variances of both blocks

  /// `threads` and `kernels` must outlive the model.
  ConvNet(int max_batch, ThreadPool& threads,
          const kernels::KernelTable<T>& kernels = kernels::best_kernels<T>());
  ~ConvNet() override;

  std::string_view name() const override { return "convnet"; }
  int image_border() const override { return kImageBorder; }
  const std::vector<TensorInfo>& parameter_tensors() const override;
  const std::vector<TensorInfo>& running_tensors() const override;
  std::vector<std::string> counter_names() const override;

  /// `images` are padded to kPaddedPixels each, with zero borders.
  kernels::BatchScore forward(const T* images, std::span<const std::uint8_t> labels) override;
  using OnReady = typename Model<T>::OnReady;
  void backward(const T* images, int batch, const OnReady& on_ready) override;
  kernels::BatchScore evaluate(const T* images, std::span<const std::uint8_t> labels) override;
  void share_statistics(GatherNumbers gather) override;

 private:
  using Model<T>::parameters_;
  using Model<T>::gradients_;
  using Model<T>::running_;
  void classify(int batch);

  const kernels::KernelTable<T>& kernels_;
  GatherNumbers gather_;
  std::unique_ptr<ConvBlock<T>> block1_, block2_;
  AlignedBuffer<T> hidden_;           ///< block 1's output, padded for block 2
  AlignedBuffer<T> hidden_gradient_;  ///< dense
  AlignedBuffer<T> features_, features_gradient_;
  AlignedBuffer<T> logits_, logits_gradient_;
};

}  // namespace ddp::train
