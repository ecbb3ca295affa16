#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/data/image_size.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"

namespace ddp::train {

/// Offsets of one block's tensors in the flat vectors of the model.
struct ConvBlockOffsets {
  std::size_t weight = 0, bias = 0, gamma = 0, beta = 0;  ///< in parameters and in gradients
  std::size_t running_mean = 0, running_variance = 0;     ///< in running statistics
};

/// Convolution 5 x 5 → batch normalization → ReLU → 2 x 2 maximum, for up to `max_batch` images. The block
/// reads padded images and may write padded images, so that the next block needs no copy. It keeps what
/// backward needs of the last forward.
template <class T>
class ConvBlock {
 public:
  /// An array of images: image n begins at data + n * image_stride; its rows lie row_stride elements apart.
  struct Images {
    T* data;
    std::ptrdiff_t image_stride;
    std::ptrdiff_t row_stride;
  };

  ConvBlock(const kernels::KernelTable<T>& kernels, kernels::ConvShape shape, ConvBlockOffsets offsets,
            int max_batch, ThreadPool& threads);

  /// Null: this rank's statistics normalize a batch. Otherwise those of all ranks together; `gather` must
  /// outlive the block.
  void share_statistics(const GatherNumbers* gather) { gather_ = gather; }

  /// Normalizes by the batch's own statistics and moves the running ones towards them (momentum 0.1, unbiased
  /// variance, as in PyTorch).
  void forward_training(int batch, const T* padded, const T* parameters, T* running, Images pooled);
  /// Normalizes by the running statistics.
  void forward_evaluation(int batch, const T* padded, const T* parameters, const T* running, Images pooled);

  /// Computes the gradients of the parameters (overwritten) from the gradient of the pooled images (dense).
  /// The input's gradient (dense) is computed, too, unless `input_gradient` is null. `padded` is the input of
  /// the last forward_training.
  void backward(int batch, const T* padded, const T* parameters, const T* pooled_gradient, T* gradients,
                T* input_gradient);

  const kernels::ConvShape& shape() const { return shape_; }
  int pooled_size() const { return shape_.output_size() / 4; }

 private:
  struct Moments;

  void convolve_image(int n, const T* padded, const T* parameters);
  void pool_image(int n, Images pooled);
  Moments batch_moments(int batch) const;
  void share_moments(Moments& moments) const;
  void set_norm(std::span<const double> mean, std::span<const double> variance, const T* parameters);
  void sum_norm_gradients(int batch, const T* parameters, const T* pooled_gradient, T* gradients);
  void image_backward(int n, int worker, const T* padded, const T* pooled_gradient, T* weight_gradient,
                      T* bias_gradient, T* input_gradient);
  const T* convolved(int n) const {
    return convolved_.data() + static_cast<std::size_t>(n) * shape_.output_size();
  }

  const kernels::KernelTable<T>& kernels_;
  kernels::ConvShape shape_;
  kernels::ConvShape turned_shape_;  ///< shape of the convolution that gives the input's gradient
  ConvBlockOffsets at_;
  ThreadPool& threads_;
  const GatherNumbers* gather_ = nullptr;
  double count_ = 0;                 ///< pixels per channel in the last forward's statistics
  AlignedBuffer<T> convolved_;       ///< all images before normalization
  AlignedBuffer<T> image_gradient_;  ///< one convolved image per thread, padded
  AlignedBuffer<T> chunk_gradient_;  ///< gradients of weight and bias, by chunk
  AlignedBuffer<T> turned_weight_;
  AlignedBuffer<T> scale_, shift_;                               ///< kernels::NormScale of the last forward
  AlignedBuffer<T> spread_gain_, spread_offset_, spread_slope_;  ///< kernels::NormGradient
  AlignedBuffer<T> image_a_, image_b_;                           ///< results per channel, by image
  AlignedBuffer<double> mean_, inverse_deviation_;
};

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
  using Images = typename ConvBlock<T>::Images;
  using Model<T>::parameters_;
  using Model<T>::gradients_;
  using Model<T>::running_;
  Images hidden_images();
  Images feature_images();
  void classify(int batch);

  const kernels::KernelTable<T>& kernels_;
  GatherNumbers gather_;
  ConvBlock<T> block1_, block2_;
  AlignedBuffer<T> hidden_;           ///< block 1's output, padded for block 2
  AlignedBuffer<T> hidden_gradient_;  ///< dense
  AlignedBuffer<T> features_, features_gradient_;
  AlignedBuffer<T> logits_, logits_gradient_;
};

}  // namespace ddp::train
