#pragma once

#include <chrono>
#include <memory>

#include "apps/train/communicator.h"
#include "apps/train/peer_directory.h"
#include "base/result.h"

namespace ddp::train {

/// An error of kind kUsage in a build without -DDDP_GLOO=ON: before any rank waits for another.
Result<> gloo_is_here();

/// All ranks over Gloo's TCP transport, as torch.distributed uses it: for comparison. Gloo's calls cannot be
/// revoked: a rank that is not next to a dead one may wait for the whole `timeout`.
Result<std::unique_ptr<Communicator>> connect_gloo(int rank, int world_size,
                                                   std::chrono::milliseconds timeout,
                                                   PeerDirectory& directory);

}  // namespace ddp::train
