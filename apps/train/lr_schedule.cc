#include "apps/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddp::train {

double LrSchedule::rate(std::int64_t step, double progress) const {
  double rate = peak;
  if (step < warmup_steps) rate *= static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (shape == LrShape::kCosine)
    rate *= 0.5 * (1 + std::cos(std::numbers::pi * std::clamp(progress, 0.0, 1.0)));
  return rate;
}

}  // namespace ddp::train
