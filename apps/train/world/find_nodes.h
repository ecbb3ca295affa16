#pragma once

#include <chrono>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/cpu/node_communicator.h"
#include "apps/train/world/worker_environment.h"
#include "base/result.h"

namespace ddp::train {

/// Returns all nodes with their ranks, as the first rank of each node reports them through the store. All
/// ranks call it. kTimeout names the node that is missing; kUsage: the environment contradicts itself.
Result<NodeMap> find_nodes(const WorkerEnvironment& environment, std::chrono::milliseconds start_timeout,
                           PeerDirectory& directory);

}  // namespace ddp::train
