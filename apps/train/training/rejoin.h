#pragma once

#include "apps/train/options/options.h"
#include "apps/train/world/worker_environment.h"
#include "base/result.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::train {

/// The life of a rank with --on-peer-loss rejoin: attempt after attempt, as the launcher's agent orders them
/// at `environment.control`, until the training is complete. When a rank is lost the others let go of the
/// attempt and go on in the next, in the same process and with the state in memory; a new process gets the
/// state from a rank that has it, and the data too where one is on its node.
///
/// An error that is no peer's loss ends it, as does a loss after which no order comes.
Result<> run_rejoining(const TrainOptions& options, const WorkerEnvironment& environment);

/// This rank's place as an order says it; the rest is `before`'s. kProtocol when the store's address is none.
Result<WorkerEnvironment> ordered(WorkerEnvironment before, const rendezvous::AttemptOrder& order);

}  // namespace ddp::train
