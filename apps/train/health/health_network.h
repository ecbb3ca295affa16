#pragma once

#include <vector>

#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/world/worker_environment.h"
#include "apps/train/world/world.h"
#include "base/result.h"

namespace ddp::train {

/// Tests every two ranks, in rounds of disjoint pairs. Messages are compared byte by byte and timed. A pair
/// that fails is a result; an error ends the work of all ranks. All ranks call it and get the same result.
Result<std::vector<HealthPair>> test_pairs(const WorkerEnvironment& environment, const WorldOptions& options,
                                           CommWorld& world);

/// Sums 16 MiB over all ranks, `times` times. Returns the number of wrong elements on this rank. `inject`:
/// one element is made wrong on this rank.
Result<std::uint64_t> test_sum(Communicator& world, int times, bool inject);

}  // namespace ddp::train
