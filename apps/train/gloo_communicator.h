#pragma once

#include <chrono>
#include <memory>

#include "apps/train/communicator.h"
#include "apps/train/peer_directory.h"
#include "base/result.h"

namespace ddp::train {

/// All ranks over Gloo's TCP transport, as torch.distributed uses it: for comparison. A build without
/// -DDDP_GLOO=ON has an error of kind kUsage instead. Gloo's calls cannot be revoked: a rank that is not next
/// to a dead one may wait for the whole `timeout`.
Result<std::unique_ptr<Communicator>> connect_gloo(int rank, int world_size,
                                                   std::chrono::milliseconds timeout,
                                                   PeerDirectory& directory);

}  // namespace ddp::train
