#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/worker/worker_protocol.h"

/// Events and actions of AgentCore, as plain data. `local` is a worker's number on its node (LOCAL_RANK).
namespace ddp::launcher::node {

using Time = std::chrono::nanoseconds;  ///< the node's CLOCK_BOOTTIME

// ---- events: orders of the master. These and OpenStore, Spawn, Revoke, Stop and Leave are passed as they
// arrive.
struct JobReceived {
  Time patience;            ///< silence after which the master counts as lost; the term of the lease
  Time link_grace;          ///< SIGTERM to SIGKILL when the agent leaves without an order
  bool may_restart = true;  ///< another attempt may begin while this node is silent
};
struct Pinged {};  ///< the Pong is sent

// ---- events: this node
struct JobAccepted {  ///< this node can run workers; the answer to the master follows
  bool local;         ///< on the master's machine, which a suspension stops as well
};
struct AttemptPrepared {};  ///< answer to PrepareAttempt
struct AttemptImpossible {  ///< the other answer: nothing was started
  Error error;
};
struct WorkerStarted {
  std::uint32_t local;
  std::uint32_t pid;
  std::uint64_t clock_ns;  ///< CLOCK_MONOTONIC
};
struct WorkerExited {
  std::uint32_t local;
  rendezvous::WorkerExited exit;  ///< without attempt, rank and revoke; pid 0: it could not be started
};
struct WorkersStarted {};  ///< StartWorkers is complete
struct WorkerGreeted {
  std::uint32_t local;
  bool can_rejoin;  ///< false also once its connection has ended
};
struct WorkerReady {
  std::uint32_t local;
};
struct WorkerTroubled {
  std::uint32_t local;
  rendezvous::WorkerTrouble trouble;
};
struct WorkerLeft {  ///< the worker's answer to OrderLeave
  std::uint32_t local;
  rendezvous::WorkerRevoked answer;
};
struct LeftoversKilled {};  ///< answer to KillLeftovers
struct OutputRead {};       ///< answer to ReadOutput
struct LossesReported {};   ///< answer to ReportLosses
struct WorkersEnded {};     ///< every worker is reaped, and its output is read
struct AttemptCleaned {     ///< answer to CleanUp
  std::uint32_t left;       ///< processes that could not be killed
  std::string text;         ///< their names
};
struct LinkLost {};
struct MustLeave {  ///< this node cannot serve the job any longer
  std::string why;
  int signal = 0;  ///< that stopped this agent; 0: none
};
struct HeartbeatDue {  ///< once a second, or later if this process could not run
  Time silence;        ///< since the last byte of the master
};
struct Tick {};  ///< at deadline()

using Event =
    std::variant<JobReceived, Pinged, rendezvous::OpenStore, rendezvous::Spawn, rendezvous::Revoke,
                 rendezvous::Stop, rendezvous::Leave, JobAccepted, AttemptPrepared, AttemptImpossible,
                 WorkerStarted, WorkerExited, WorkersStarted, WorkerGreeted, WorkerReady, WorkerTroubled,
                 WorkerLeft, LeftoversKilled, OutputRead, LossesReported, WorkersEnded, AttemptCleaned,
                 LinkLost, MustLeave, HeartbeatDue, Tick>;

// ---- actions
struct Send {
  rendezvous::Message message;
};
struct OpenStore {  ///< open the attempt's store, and answer the master
  rendezvous::OpenStore order;
};
struct PrepareAttempt {  ///< make all that the attempt's workers need; survivors keep what they have
  rendezvous::Spawn spawn;
};
struct StartWorkers {};  ///< those that are not alive; WorkersEnded follows once all have ended
struct OrderAttempt {
  std::uint32_t local;
  rendezvous::AttemptOrder order;
};
struct OrderLeave {
  std::uint32_t local;
  rendezvous::RevokeOrder order;
};
struct TerminateWorker {
  std::uint32_t local;
};
struct KillWorker {
  std::uint32_t local;
};
struct KillLeftovers {  ///< all processes that these workers left
  std::vector<std::uint32_t> locals;
};
struct ReadOutput {};    ///< what ended workers and survivors have written
struct ReportLosses {};  ///< what explains the failure, behind all output
struct StopWorkers {     ///< `signal` now, SIGKILL after the grace; a shorter grace replaces an earlier one
  rendezvous::StopOrder order;
  int signal;
};
struct CleanUp {};  ///< after the last worker: kill what is left, report what explains the failures
struct SetLease {   ///< the keeper kills the workers then, even if this process no longer runs
  Time left;        ///< 0: never
};
struct RenewKeeper {};    ///< the agent is alive; the workers have no lease
struct CloseLink {};      ///< nothing is sent any more, but the workers' pipes are drained
struct StopPreparing {};  ///< --setup, disk checks and checks of `ddplaunch check`
struct Quit {};           ///< no worker runs: end the agent
using Action = std::variant<Send, OpenStore, PrepareAttempt, StartWorkers, OrderAttempt, OrderLeave,
                            TerminateWorker, KillWorker, KillLeftovers, ReadOutput, ReportLosses, StopWorkers,
                            CleanUp, SetLease, RenewKeeper, CloseLink, StopPreparing, Quit>;
using Actions = std::vector<Action>;

}  // namespace ddp::launcher::node
