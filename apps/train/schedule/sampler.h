#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace ddp::train {

/// The order in which PyTorch's DistributedSampler gives its samples; [core]. The same numbers for the same
/// arguments: a permutation by std::mt19937 seeded with the low 32 bits of seed + epoch (torch.randperm),
/// padded by its own beginning to a multiple of the ranks, of which each rank takes every world-th.
struct SamplerConfig {
  std::uint64_t samples = 0;  ///< below kMaxSamples; not 0
  int world_size = 1;
  int rank = 0;
  std::int64_t seed = 0;
  /// So many samples at the permutation's beginning are used up: only the rest is divided (and padded). What
  /// any number of ranks has used after equal steps is such a beginning, so an epoch can go on with another
  /// number of ranks. Below `samples`.
  std::uint64_t begin = 0;
};

/// From here on newer PyTorch draws the permutation in another way; refused rather than silently different.
inline constexpr std::uint64_t kMaxSamples = 214'748'364;

/// How many samples each rank gets.
std::uint64_t samples_per_rank(const SamplerConfig& config);

/// The rank's sample numbers of one epoch. Errors: kUsage for no samples or too many.
Result<std::vector<std::uint32_t>> sample_order(const SamplerConfig& config, std::int64_t epoch);

/// How far a training has come. What W ranks have used of an epoch's permutation is always its beginning, so
/// one number says it. A segment is what one number of ranks divides among itself: it begins with the epoch,
/// or where a training went on with another number of ranks.
struct TrainingPosition {
  std::uint64_t step = 0;           ///< steps made, dropped ones too
  std::int64_t epoch = 0;           ///< from 0
  std::uint64_t segment_begin = 0;  ///< in samples of the epoch's permutation
  std::uint64_t segment_step = 0;   ///< steps made in the segment
  double warmed_up = 0;             ///< part of the training that was over when the warm-up was
};

}  // namespace ddp::train
