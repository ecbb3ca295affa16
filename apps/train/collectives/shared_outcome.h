#pragma once

#include <chrono>
#include <functional>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/interrupt.h"
#include "base/result.h"

namespace ddp::train {

/// What rank 0 met, on all ranks: nothing, or its error with the same code and text, so that a file that only
/// rank 0 reads ends all ranks for the same reason. All ranks call it; `mine` counts on rank 0 only.
Result<> share_outcome(Communicator& world, const Result<>& mine);

/// The failure of the lowest rank that has one, on all ranks.
Result<> share_first_failure(Communicator& world, const Result<>& mine);

/// Ranks that take longer than they bear each other's silence meet every `sign` until all are through. `sign`
/// is well below the time limit of `world`'s operations, whose error ends this at once, as `interrupt` (a
/// descriptor, or -1) does.
Result<> meet_until(Communicator& world, const IsThrough& through, std::chrono::milliseconds sign,
                    int interrupt = -1);

/// The same for `work` that may take longer than that (a slow disk): each rank does its own on another
/// thread, and the ranks meet until all are through with it.
Result<> share_outcome(Communicator& world, const std::function<Result<>()>& work,
                       std::chrono::milliseconds sign, int interrupt = -1);
Result<> share_first_failure(Communicator& world, const std::function<Result<>()>& work,
                             std::chrono::milliseconds sign, int interrupt = -1);

}  // namespace ddp::train
