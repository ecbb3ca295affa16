#include "apps/train/profile_report.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "apps/train/shared_outcome.h"
#include "apps/train/standard_output.h"

namespace ddp::train {

std::string profile_path(const std::string& path, const Communicator& world) {
  if (world.world_size() == 1) return path;
  const std::size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  const std::size_t dot = path.rfind('.');
  const std::size_t at = dot == std::string::npos || dot <= name ? path.size() : dot;
  return path.substr(0, at) + ".rank" + std::to_string(world.rank()) + path.substr(at);
}

Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces) {
  traces = share_first_failure(world, profile.write_trace(profile_path(path, world), world.rank()));
  const std::uint64_t mine[] = {std::bit_cast<std::uint64_t>(profile.compute_percentile(0.5))};
  const auto all = world.all_gather(mine);
  if (!all) return all.error();
  if (world.rank() != 0) return {};
  print_out("%-14s %10s %10s\n", "step (ms)", "p50", "p99");
  for (std::size_t i = 0; i < kPhases; ++i) {
    const Phase phase = static_cast<Phase>(i);
    print_out("%-14s %10.3f %10.3f\n", kPhaseNames[i].data(), 1e3 * profile.percentile(phase, 0.5),
              1e3 * profile.percentile(phase, 0.99));
  }
  const auto slowest = std::max_element(all->begin(), all->end(), [](std::uint64_t a, std::uint64_t b) {
    return std::bit_cast<double>(a) < std::bit_cast<double>(b);
  });
  std::vector<std::uint64_t> sorted(*all);  // of positive numbers the bits have the numbers' order
  std::sort(sorted.begin(), sorted.end());
  // The lower one in the middle: of two ranks the faster, or none could be slower than it.
  const double median = std::bit_cast<double>(sorted[(sorted.size() - 1) / 2]);
  const double most = std::bit_cast<double>(*slowest);
  print_out("slowest rank %td: computes %.3f ms per step, %.0f %% over the median rank\n",
            slowest - all->begin(), 1e3 * most, median > 0 ? 100 * (most / median - 1) : 0.0);
  return {};
}

}  // namespace ddp::train
