#pragma once

#include <cstdint>

namespace ddp::train {

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
