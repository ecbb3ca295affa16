#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace ddp::train {

/// The order in which PyTorch's DistributedSampler gives its samples; [core]. Equal arguments give equal
/// numbers. std::mt19937, seeded with the low 32 bits of seed + epoch (torch.randperm), draws a permutation.
/// Its beginning pads it to a multiple of the ranks, and each rank takes every world-th sample.
struct SamplerConfig {
  std::uint64_t samples = 0;  ///< below kMaxSamples; not 0
  int world_size = 1;
  int rank = 0;
  std::int64_t seed = 0;
  /// Number of samples at the permutation's beginning that are already used; only the rest is divided (and
  /// padded). After equal steps, any number of ranks has used such a beginning, so an epoch can continue with
  /// another number of ranks. Below `samples`.
  std::uint64_t begin = 0;
};

/// Newer PyTorch draws larger permutations in another way; they are refused instead of silently differing.
inline constexpr std::uint64_t kMaxSamples = 214'748'364;

/// Returns the number of samples per rank.
std::uint64_t samples_per_rank(const SamplerConfig& config);

/// Returns the rank's sample numbers of one epoch. Errors: kUsage for no samples or too many.
Result<std::vector<std::uint32_t>> sample_order(const SamplerConfig& config, std::int64_t epoch);

/// What divides the samples among the steps, besides the number of ranks.
struct BatchPlan {
  int batch_size = 100;   ///< per rank
  int accumulate = 1;     ///< batches per step
  std::int64_t seed = 0;  ///< of shuffling and first weights
};

/// The progress of a training. The samples that W ranks have used of an epoch's permutation are always its
/// beginning, so one number describes them. A segment is divided among a fixed number of ranks: it begins
/// with the epoch, or at the point where a training continued with another number of ranks.
struct TrainingPosition {
  std::uint64_t step = 0;           ///< steps made, including dropped ones
  std::int64_t epoch = 0;           ///< from 0
  std::uint64_t segment_begin = 0;  ///< in samples of the epoch's permutation
  std::uint64_t segment_step = 0;   ///< steps made in the segment
  double warmed_up = 0;             ///< progress of the training at the end of the warm-up
};

enum class LrShape : std::uint8_t { kConstant, kCosine };

/// The learning rate over the training; [core]. During the first `warmup_steps` steps the rate rises linearly
/// to `peak` (step 1 has peak / warmup_steps). Afterwards it stays constant, or falls along half a cosine to
/// zero at the end: PyTorch's SequentialLR of LinearLR and CosineAnnealingLR. Progress is counted in samples,
/// so that a change of the number of ranks does not bend the curve.
struct LrSchedule {
  LrShape shape = LrShape::kConstant;
  double peak = 0.01;
  std::int64_t warmup_steps = 0;

  /// `step` counts from 0. `progress` is between 0 (begin of the training) and 1 (its end), at the begin of
  /// this step. `warmed_up` is the progress at the begin of step `warmup_steps`; it is unused before that
  /// step.
  double rate(std::int64_t step, double progress, double warmed_up) const;
};

}  // namespace ddp::train
