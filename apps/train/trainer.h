#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/train/aligned_buffer.h"
#include "apps/train/communicator.h"
#include "apps/train/conv_net.h"
#include "apps/train/dataset.h"
#include "apps/train/options.h"
#include "base/result.h"

namespace ddp::train {

/// The end of one step, equal on all ranks.
struct StepReport {
  int epoch = 0;           ///< from 0
  int step = 0;            ///< from 1
  int steps = 0;           ///< in this epoch
  double loss = 0;         ///< mean over the ranks' batches
  std::size_t images = 0;  ///< of all ranks in this step
};

struct Accuracy {
  std::uint64_t correct = 0;
  std::uint64_t total = 0;
  double percent() const { return 100.0 * static_cast<double>(correct) / static_cast<double>(total); }
};

/// Data-parallel training of the ConvNet on one rank. Every rank makes the same calls in the same order.
/// Between them all ranks hold equal weights: they begin equal and every update comes from the same reduced
/// gradient. Errors of the communicator are given with the step in which they happened.
template <class T>
class Trainer {
 public:
  using OnStep = std::function<void(const StepReport&)>;

  /// Both are used for the trainer's life. The weights are drawn from the seed.
  Trainer(const Options& options, Communicator& communicator, const DataSplit& data);

  /// Rank 0's weights to all ranks (a rank of another build could have drawn others).
  Result<> share_weights();
  /// One pass over this rank's part of the training images. kUsage when the loss stops being finite.
  Result<> train_epoch(int epoch, const OnStep& on_step);
  /// Every rank has seen other batches; after this all hold the mean of their running statistics.
  Result<> average_running_statistics();
  /// Over the test images, each counted once, whatever the number of ranks.
  Result<Accuracy> evaluate();

  /// Of parameters and running statistics; equal bits give equal numbers.
  std::uint64_t weights_hash();
  /// The hash of every rank, in rank order.
  Result<std::vector<std::uint64_t>> gather_hashes();

 private:
  Result<double> train_step(std::span<const std::uint32_t> samples);

  const Options& options_;
  Communicator& communicator_;
  const DataSplit& data_;
  ConvNet<T> net_;
  AlignedBuffer<T> velocity_;
  AlignedBuffer<T> images_;  ///< one batch, padded
  std::vector<std::uint8_t> labels_;
  std::uint64_t step_ = 0;  ///< since the start
};

}  // namespace ddp::train
