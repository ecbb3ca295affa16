#pragma once

#include <cstdint>
#include <variant>

#include "rendezvous/protocol/check_messages.h"
#include "rendezvous/protocol/job_messages.h"
#include "rendezvous/protocol/link_messages.h"
#include "rendezvous/protocol/node_messages.h"
#include "rendezvous/protocol/worker_messages.h"

/// The messages of the control protocol between master and agents, as described in
/// docs/developers/protocol.md. Plain data; each struct lists its fields once (`fields`), and the codec reads
/// and writes by that list. Type numbers are never reused.
namespace ddp::rendezvous {

/// Both ends must have the same version: the launcher starts (or copies) the matching agent.
inline constexpr std::uint32_t kProtocolVersion = 1;

using Message =
    std::variant<Hello, JobAccepted, Refused, StoreOpened, ProbeResult, WorkerStarted, WorkerExited, Output,
                 AttemptEnded, Pong, Notice, StdinTaken, WorkerEvidence, Quiet, Inspection, NodeChecked,
                 WorkersGreeted, WorkersReady, WorkerInTrouble, AttemptRevoked, WorkerCollectives,
                 QueryAnswer, WorkerSteps, JobStart, OpenStore, Probe, Spawn, Stop, Revoke, Signal, Leave,
                 Ping, Credit, Stdin, Inspect, NodeCheck, Query, CancelQuery>;

}  // namespace ddp::rendezvous
