#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "apps/train/aligned_buffer.h"
#include "apps/train/conv_block.h"
#include "apps/train/kernels/kernel_table.h"
#include "apps/train/kernels/softmax_loss.h"

namespace ddp::train {

inline constexpr int kImageSide = 28;
inline constexpr int kImagePixels = kImageSide * kImageSide;
inline constexpr int kClasses = 10;
inline constexpr int kImageBorder = 2;
inline constexpr int kPaddedSide = kImageSide + 2 * kImageBorder;
inline constexpr int kPaddedPixels = kPaddedSide * kPaddedSide;

/// One tensor of the model in its flat vector. Names are those of the tutorials' state_dict. Memory layout is
/// the kernels' own: convolutions [ky][kx][in][out], the linear layer [class][y][x][channel].
struct TensorInfo {
  std::string_view name;
  int offset;
  int size;
  int fan_in;  ///< inputs of one output, for the initial bound; 0: not drawn at random
};

/// The ConvNet of the usual DDP tutorials: two blocks of conv 5 x 5, batch normalisation, ReLU and 2 x 2
/// maximum with 16 and 32 channels, then a linear layer to 10 classes; 29,034 parameters. All parameters lie
/// in one flat vector and all gradients in another, so that one all-reduce covers them. One thread at a time.
template <class T>
class ConvNet {
 public:
  static constexpr int kParameters = 29'034;
  static constexpr int kRunning = 96;  ///< running means and variances of both blocks

  explicit ConvNet(int max_batch, const kernels::KernelTable<T>& kernels = kernels::best_kernels<T>());

  static std::span<const TensorInfo> parameter_layout();
  static std::span<const TensorInfo> running_layout();

  /// PyTorch's defaults: uniform within ± 1 / sqrt(fan_in) for convolution and linear layer, weights and
  /// biases (that is kaiming_uniform with a = √5); gamma 1, beta 0, running mean 0, running variance 1. Equal
  /// on all ranks.
  void initialise(std::uint64_t seed);

  /// `padded`: one padded image of kPaddedPixels per label, borders zero, at most max_batch. Fills
  /// gradients() with those of the mean loss.
  kernels::BatchScore forward_backward(const T* padded, std::span<const std::uint8_t> labels);
  /// By the running statistics; changes nothing.
  kernels::BatchScore evaluate(const T* padded, std::span<const std::uint8_t> labels);

  std::span<T> parameters() { return parameters_.span(); }
  std::span<T> gradients() { return gradients_.span().first(kParameters); }
  /// The gradients and, behind them, the mean loss of the last forward_backward: one all-reduce carries both.
  std::span<T> gradients_and_loss() { return gradients_.span(); }
  std::span<T> running_statistics() { return running_.span(); }
  int max_batch() const { return max_batch_; }

 private:
  using Images = typename ConvBlock<T>::Images;
  Images hidden_images();
  Images feature_images();
  void classify(int batch);

  const kernels::KernelTable<T>& kernels_;
  int max_batch_;
  AlignedBuffer<T> parameters_, gradients_, running_;
  ConvBlock<T> block1_, block2_;
  AlignedBuffer<T> hidden_;           ///< block 1's output, padded for block 2
  AlignedBuffer<T> hidden_gradient_;  ///< dense
  AlignedBuffer<T> features_, features_gradient_;
  AlignedBuffer<T> logits_, logits_gradient_;
};

}  // namespace ddp::train
