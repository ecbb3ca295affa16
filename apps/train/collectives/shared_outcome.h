#pragma once

#include <chrono>
#include <functional>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/interrupt.h"
#include "base/result.h"

namespace ddp::train {

/// Gives rank 0's outcome to all ranks: success, or its error with the same code and text. So a file that
/// only rank 0 reads ends all ranks for the same reason. All ranks call it; `mine` counts on rank 0 only.
Result<> share_outcome(Communicator& world, const Result<>& mine);

/// Gives the failure of the lowest rank that has one to all ranks.
Result<> share_first_failure(Communicator& world, const Result<>& mine);

/// Makes the ranks meet every `sign` until all have finished, so that long work does not look like silence.
/// `sign` is well below the time limit of `world`'s operations. An error of such an operation ends the call
/// at once, as does `interrupt` (a descriptor, or -1).
Result<> meet_until(Communicator& world, const IsThrough& through, std::chrono::milliseconds sign,
                    int interrupt = -1);

/// Do the same for `work` that may take longer than that limit (a slow disk). Each rank does its own work on
/// another thread, and the ranks meet until all have finished.
Result<> share_outcome(Communicator& world, const std::function<Result<>()>& work,
                       std::chrono::milliseconds sign, int interrupt = -1);
Result<> share_first_failure(Communicator& world, const std::function<Result<>()>& work,
                             std::chrono::milliseconds sign, int interrupt = -1);

}  // namespace ddp::train
