#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

struct GradientSyncSettings {
  std::size_t bucket_bytes = 25 << 20;
  std::size_t first_bucket_bytes = 1 << 20;
  bool sharded = false;   ///< ZeRO-1: each rank gets only its part of the reduced gradient
  bool overlap = true;    ///< false: everything after backward (backward itself communicates)
  double clip_value = 0;  ///< 0: off
  double clip_norm = 0;
};

/// A step's result that all ranks know alike after the gradient was reduced.
struct ReducedGradient {
  double loss = 0;     ///< mean over micro-batches and ranks
  bool finite = true;  ///< false: the step is to be dropped
  double norm = 0;     ///< before clipping; only with clip_norm
};

/// One step's gradient over micro-batches and ranks. Buckets are sent as soon as backward has completed them,
/// in the last micro-batch only. The next steps are: mean, test for nan and infinity, clip by value, clip by
/// norm. The test needs no message unless `sharded`: a nan of one rank is in every rank's sum.
///
///   for each micro-batch: model.forward(); model.backward(…, [](begin) { sync.ready(begin); });
///                         sync.end_of_micro_batch();
///   sync.finish();
template <class T>
class GradientSync {
 public:
  /// `model` and `communicator` must outlive this object.
  GradientSync(const GradientSyncSettings& settings, Model<T>& model, Communicator& communicator);

  void begin_step(int micro_batches);
  /// The gradients from `begin` on are complete. finish() returns errors of this call.
  void ready(std::size_t begin);
  void end_of_micro_batch();
  /// Waits for all sums. The model's gradients() are then ready for the update: all of them, or with
  /// `sharded` only own_part().
  Result<ReducedGradient> finish();

  /// Range of the padded flat vectors, in elements; everything unless sharded.
  GradientBucket own_part() const;
  /// Returns the gradients of own_part() after finish().
  std::span<const T> own_gradients() { return own_gradients_; }
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  void start_buckets(std::size_t begin);
  void add_earlier(const GradientBucket& range);
  Result<ReducedGradient> finish_whole();
  Result<ReducedGradient> finish_sharded();
  void clip_norm(std::span<T> gradients, ReducedGradient& reduced, double squared) const;

  GradientSyncSettings settings_;
  Model<T>& model_;
  Communicator& communicator_;
  std::vector<GradientBucket> buckets_;
  std::size_t next_bucket_ = 0;
  std::vector<Communicator::Handle> started_;
  Result<> failed_;
  int micro_batches_ = 1, micro_batch_ = 0;
  std::span<const T> own_gradients_;
  AlignedBuffer<T> earlier_;  ///< sum over the micro-batches before this one
};

}  // namespace ddp::train
