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

}  // namespace ddp::train
