#include "apps/train/training/profile_report.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/training/run_output.h"
#include "base/format_text.h"

namespace ddp::train {

std::string profile_path(const std::string& path, const Communicator& world) {
  if (world.world_size() == 1) return path;
  const std::size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  const std::size_t dot = path.rfind('.');
  const std::size_t at = dot == std::string::npos || dot <= name ? path.size() : dot;
  return path.substr(0, at) + ".rank" + std::to_string(world.rank()) + path.substr(at);
}

std::string profile_text(const StepProfile& profile, std::vector<RankTime> ranks) {
  std::string text;
  const auto add = [&](auto... words) { text += format_text(words...); };
  if (profile.steps() == 0) {
    add("%s", "profile: the process of rank 0 was started after the last step and measured none\n");
  } else {
    if (profile.first_step() > 1)
      add("profile: begins at step %" PRIu64 ": rank 0's process started there\n", profile.first_step());
    add("%-14s %10s %10s\n", "step (ms)", "p50", "p99");
    for (std::size_t i = 0; i < kPhases; ++i) {
      const Phase phase = static_cast<Phase>(i);
      add("%-14s %10.3f %10.3f\n", kPhaseNames[i].data(), 1e3 * profile.percentile(phase, 0.5),
          1e3 * profile.percentile(phase, 0.99));
    }
  }
  if (ranks.empty()) return text;
  const auto faster = [](const RankTime& a, const RankTime& b) { return a.seconds < b.seconds; };
  const RankTime slowest = *std::max_element(ranks.begin(), ranks.end(), faster);
  std::sort(ranks.begin(), ranks.end(), faster);
  // The lower median: with two ranks it is the faster one, else no rank could be slower than the median.
  const double median = ranks[(ranks.size() - 1) / 2].seconds;
  add("slowest rank %d: computes %.3f ms per step, %.0f %% over the median rank\n", slowest.rank,
      1e3 * slowest.seconds, median > 0 ? 100 * (slowest.seconds / median - 1) : 0.0);
  return text;
}

Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces) {
  traces = share_first_failure(world, profile.write_trace(profile_path(path, world), world.rank()));
  const std::uint64_t mine[] = {std::bit_cast<std::uint64_t>(profile.compute_percentile(0.5)),
                                profile.steps()};
  const auto all = world.all_gather(mine);
  if (!all) return all.error();
  if (world.rank() != 0) return {};
  std::vector<RankTime> ranks;
  for (std::size_t i = 0; i + 1 < all->size(); i += 2) {
    if ((*all)[i + 1] != 0) ranks.push_back({static_cast<int>(i / 2), std::bit_cast<double>((*all)[i])});
  }
  print_out("%s", profile_text(profile, std::move(ranks)).c_str());
  return {};
}

}  // namespace ddp::train
