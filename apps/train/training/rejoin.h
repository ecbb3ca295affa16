#pragma once

#include "apps/train/options/options.h"
#include "apps/train/world/world.h"
#include "base/result.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::train {

/// Runs a rank with --on-peer-loss rejoin: attempt after attempt, as the launcher's agent orders at
/// `environment.control`, until the training is complete. When a rank is lost, the survivors leave the
/// attempt. They continue in the next attempt, in the same process and with the state in memory. A new
/// process gets the state from a rank that has it, and also the data if a rank on its node has it.
///
/// An error that is no peer's loss ends the run, and so does a loss without a following order.
Result<> run_rejoining(const TrainOptions& options, const WorkerEnvironment& environment);

/// Applies an order's rank assignment to `before`. kProtocol when the store's address is invalid.
Result<WorkerEnvironment> ordered(WorkerEnvironment before, const rendezvous::AttemptOrder& order);

}  // namespace ddp::train
