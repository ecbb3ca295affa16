#pragma once

#include <memory>

#include "apps/train/communicator.h"
#include "apps/train/options.h"
#include "apps/train/store_host.h"
#include "apps/train/worker_environment.h"
#include "base/result.h"

namespace ddp::train {

/// This rank's way to the others, and the store where this rank serves it.
struct World {
  std::unique_ptr<StoreHost> store;
  std::unique_ptr<Communicator> communicator;
};

/// Chooses the backend and connects it through the store. The place where nccl and shm will be chosen.
Result<World> join_world(const WorkerEnvironment& environment, const Options& options);

}  // namespace ddp::train
