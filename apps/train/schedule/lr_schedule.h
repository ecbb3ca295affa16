#pragma once

#include <cstdint>

namespace ddp::train {

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
