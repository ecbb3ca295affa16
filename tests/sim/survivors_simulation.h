#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_spec.h"

namespace ddp::sim {

/// The faults of a job.
enum class SimulatedFault : std::uint8_t {
  kWorkerKilled,
  kWorkerFails,     ///< it exits with an error
  kWorkerFrozen,    ///< it never answers
  kWorkerSlow,      ///< leaves the attempt late, perhaps after the deadline
  kKilledOnRevoke,  ///< a worker, while the workers answer the next revoke
  kKilledWaiting,   ///< after its node's answer, before the next order
  kKilledSharing,   ///< while the state is sent to the others
  kAgentKilled,     ///< its keeper cleans up and reports it
  kKeepersKilled,   ///< agent and keeper: no process reports it
  kAgentStopped,    ///< by a SIGTERM: it ends its workers and reports it
  kAgentFrozen,
  kFrozenOnSpawn,  ///< an agent, while the next order to spawn is on its way to it
  kHostLost,       ///< without notice
  kMachinePaused,  ///< the whole machine is suspended; its clock goes on
  kCut,            ///< between master and node, in both directions
  kCutToNode,
  kCutFromNode,
  kLinkReset,
  kPeersCut,      ///< two workers cannot reach each other
  kStoreRefused,  ///< the next store cannot be opened
  kStale,         ///< a message of another incarnation or attempt arrives
  kMasterAsleep,
  kUserStops,
};
constexpr int kMishaps = 23;

/// An injected bug, to test that the simulation finds it. Supervisor and AgentCore stay correct; their
/// drivers, their rules or the workers have the bug.
enum class SurvivorsBug : std::uint8_t {
  kNone,
  kFromLowest,         ///< the state comes from the lowest live rank, not from the most advanced one
  kOldAnswerBelieved,  ///< a worker's answer to an earlier revoke counts for the next one
  kHalfStepKept,       ///< a worker that leaves the attempt within a step counts the step
  kSplitKept,          ///< a new number of ranks divides samples as the previous one did
  kAnswersForged,      ///< nodes count as waiting before they have answered
  kLeaseForgotten,     ///< workers of a lost node count as dead
  kPredecessorUnseen,  ///< an agent reports, without a check, that nothing is left of its predecessor
  kDismissedForged,    ///< nodes count as empty before they have ended survivors without a slot
  kSilenceForgotten,   ///< after a late tick each node counts as heard
  kFenceOff,           ///< no attempt waits for a rank 0 that is cut off
  kPingsUnasked,       ///< a node is pinged although it has not answered the last Ping
  kLateBelieved,       ///< a message of an earlier link or attempt counts for the current one
  kWorldDiffers,       ///< the last node of an attempt receives another world
  kOneNodeLess,        ///< attempts begin with one node fewer than MIN
  kFreeRestarts,       ///< the budget is not the user's
  kNoTicks,            ///< the master receives no ticks
  kNoHeartbeats,       ///< agents receive no HeartbeatDue
  kClockBehind,        ///< an agent handles each event at the time of the previous one
};

struct PlannedFault {
  SimulatedFault kind;
  std::size_t host = 0;
  std::chrono::nanoseconds at{}, lasts{};
};

struct SurvivorsSetup {
  launcher::JobSpec spec;
  bool workers_rejoin = true;  ///< false: all processes restart after a failure
  std::uint64_t samples = 64;
  int batch_size = 4;
  std::int64_t epochs = 10;
  std::chrono::nanoseconds step_time{};  ///< time per step of a rank, on average
  std::vector<PlannedFault> planned = {};
  int mishaps = 0;
  std::chrono::nanoseconds between{};  ///< longest time between two faults
  bool user_may_stop = false;
  int host_faults = 3;  ///< of launcher::JobRules
  SurvivorsBug bug = SurvivorsBug::kNone;
};
/// Returns a small job of random shape with many random faults, whose workers survive.
SurvivorsSetup random_survivors_setup(std::uint64_t seed);
/// Returns a short job of random shape and random rules, some of which end it early.
SurvivorsSetup random_short_setup(std::uint64_t seed);

struct SurvivorsReport {
  std::optional<std::string> broken;  ///< broken invariant, with its time
  int exit_code = 0;
  std::string why;  ///< last line of the report
  bool user_stopped = false;
  int attempts = 0;
  int restarts = 0;
  int lived_on = 0;  ///< attempts that continued from a survivor's state
  std::uint64_t steps = 0;
  std::uint64_t events = 0;
  std::map<SimulatedFault, int> mishaps;
  std::chrono::nanoseconds time{};
  std::string log;  ///< user messages, for a run under inspection
};

/// Runs the real Supervisor and the real AgentCore of each node with simulated workers that train, in virtual
/// time. The same seed
/// gives the same run. Invariants are checked at each step; the run stops at the first violation.
SurvivorsReport simulate_survivors(const SurvivorsSetup& setup, std::uint64_t seed);

}  // namespace ddp::sim
