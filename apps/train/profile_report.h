#pragma once

#include <string>

#include "apps/train/communicator.h"
#include "apps/train/step_profile.h"
#include "base/result.h"

namespace ddp::train {

/// "trace.json" of rank 3 is "trace.rank3.json"; in a world of one it keeps its name.
std::string profile_path(const std::string& path, const Communicator& world);

/// The end of --profile: each rank writes its trace to `path`, rank 0 prints where the time went and which
/// rank computes slowest. `traces`: how writing them went, the same on all ranks.
Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces);

}  // namespace ddp::train
