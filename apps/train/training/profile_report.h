#pragma once

#include <string>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/training/step_profile.h"
#include "base/result.h"

namespace ddp::train {

/// "trace.json" of rank 3 is "trace.rank3.json"; in a world of one it keeps its name.
std::string profile_path(const std::string& path, const Communicator& world);

/// What a rank computes per step itself, the median.
struct RankTime {
  int rank = 0;
  double seconds = 0;
};

/// Rank 0's lines: of its own `profile` where the time went, of `ranks`, which made a step, who is slowest.
/// Each knows the steps of its own process: where that was started in the middle of the training, a line says
/// so.
std::string profile_text(const StepProfile& profile, std::vector<RankTime> ranks);

/// The end of --profile: each rank writes its trace to `path`, rank 0 prints where the time went and which
/// rank computes slowest. `traces`: how writing them went, the same on all ranks.
Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces);

}  // namespace ddp::train
