#include "apps/train/schedule/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddp::train {

double LrSchedule::rate(std::int64_t step, double progress, double warmed_up) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (shape == LrShape::kConstant) return peak;
  const double part = warmed_up < 1 ? (progress - warmed_up) / (1 - warmed_up) : 1;
  return peak * 0.5 * (1 + std::cos(std::numbers::pi * std::clamp(part, 0.0, 1.0)));
}

}  // namespace ddp::train
