#pragma once

#include <string>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/training/step_profile.h"
#include "base/result.h"

namespace ddp::train {

/// Returns "trace.rank3.json" for "trace.json" on rank 3; in a world of one the name is unchanged.
std::string profile_path(const std::string& path, const Communicator& world);

/// Median time per step that a rank computes itself.
struct RankTime {
  int rank = 0;
  double seconds = 0;
};

/// Returns rank 0's lines: the parts of a step from its own `profile`, and the slowest of `ranks`, which made
/// a step. Each rank knows only the steps of its own process; a line says so if rank 0's process started in
/// the middle of the training.
std::string profile_text(const StepProfile& profile, std::vector<RankTime> ranks);

/// Ends --profile: each rank writes its trace to `path`, and rank 0 prints the parts of a step and the
/// slowest rank. `traces` becomes the outcome of writing, equal on all ranks.
Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces);

}  // namespace ddp::train
