#pragma once

#include "apps/train/communicator.h"
#include "base/result.h"

namespace ddp::train {

/// What rank 0 met, on all ranks: nothing, or its error with the same code and text, so that a file that only
/// rank 0 reads ends all ranks for the same reason. All ranks call it; `mine` counts on rank 0 only.
Result<> share_outcome(Communicator& world, const Result<>& mine);

}  // namespace ddp::train
