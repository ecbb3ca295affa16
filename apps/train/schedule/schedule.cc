#include "apps/train/schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <string>
#include <utility>

namespace ddp::train {

std::uint64_t samples_per_rank(const SamplerConfig& config) {
  const std::uint64_t world = static_cast<std::uint64_t>(config.world_size);
  const std::uint64_t rest = config.samples - std::min(config.begin, config.samples);
  return (rest + world - 1) / world;
}

Result<std::vector<std::uint32_t>> sample_order(const SamplerConfig& config, std::int64_t epoch) {
  const std::uint64_t n = config.samples;
  if (n == 0) return Error{ErrorCode::kUsage, "the data set has no samples"};
  if (n >= kMaxSamples) {
    return usage_error("the data set has ", n, " samples; the sampler's limit is ", kMaxSamples - 1);
  }
  if (config.begin > n) {
    return usage_error("sample ", config.begin, " of ", n, " is not a valid first sample");
  }
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  // Unsigned, since seed + epoch may pass the largest signed number; only the low 32 bits count.
  std::mt19937 generator(static_cast<std::uint32_t>(static_cast<std::uint64_t>(config.seed) +
                                                    static_cast<std::uint64_t>(epoch)));
  for (std::uint64_t i = 0; i + 1 < n; ++i)
    std::swap(order[i], order[i + generator() % (n - i)]);

  const std::uint64_t world = static_cast<std::uint64_t>(config.world_size);
  std::vector<std::uint32_t> mine(samples_per_rank(config));
  for (std::uint64_t k = 0; k < mine.size(); ++k) {
    mine[k] =
        order[config.begin + (k * world + static_cast<std::uint64_t>(config.rank)) % (n - config.begin)];
  }
  return mine;
}

double LrSchedule::rate(std::int64_t step, double progress, double warmed_up) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (shape == LrShape::kConstant) return peak;
  const double part = warmed_up < 1 ? (progress - warmed_up) / (1 - warmed_up) : 1;
  return peak * 0.5 * (1 + std::cos(std::numbers::pi * std::clamp(part, 0.0, 1.0)));
}

}  // namespace ddp::train
