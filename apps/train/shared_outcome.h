#pragma once

#include <chrono>
#include <functional>

#include "apps/train/communicator.h"
#include "base/result.h"

namespace ddp::train {

/// What rank 0 met, on all ranks: nothing, or its error with the same code and text, so that a file that only
/// rank 0 reads ends all ranks for the same reason. All ranks call it; `mine` counts on rank 0 only.
Result<> share_outcome(Communicator& world, const Result<>& mine);

/// The same for `work` that may take longer than the ranks bear each other's silence (a slow disk): each rank
/// does its own on another thread, and the ranks meet every `sign` until all are through with it. `sign` is
/// well below the time limit of `world`'s operations.
Result<> share_outcome(Communicator& world, const std::function<Result<>()>& work,
                       std::chrono::milliseconds sign);

}  // namespace ddp::train
