#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_spec.h"

namespace ddp::sim {

/// What can befall a job whose workers live through failures.
enum class SimulatedFault : std::uint8_t {
  kWorkerKilled,
  kWorkerFrozen,    ///< it never answers
  kWorkerSlow,      ///< lets go late, perhaps after the deadline
  kKilledOnRevoke,  ///< a worker, while the next revoke is being answered
  kKilledWaiting,   ///< after its node's answer, before the next order
  kKilledSharing,   ///< while the state is given to the others
  kAgentKilled,     ///< its keeper cleans up and says so
  kKeepersKilled,   ///< agent and keeper: nobody says so
  kAgentStopped,    ///< by a SIGTERM: it ends its workers and says so
  kAgentFrozen,
  kHostLost,  ///< without a word
  kCut,       ///< master and node, both ways
  kLinkReset,
  kPeersCut,      ///< two workers cannot reach each other
  kStoreRefused,  ///< the next store cannot be opened
  kStale,         ///< something of another life or attempt arrives
  kMasterAsleep,
  kUserStops,
};
constexpr int kMishaps = 18;

/// A mistake made on purpose, to see that it is found. The Supervisor is as it is; agents, workers and what
/// drives it are not.
enum class SurvivorsBug : std::uint8_t {
  kNone,
  kFromLowest,         ///< the state is taken from the lowest rank that lives, not from the most advanced
  kOldAnswerBelieved,  ///< what a worker answered to an earlier revoke counts for the next one
  kHalfStepKept,       ///< a worker that lets go within a step counts it
  kSplitKept,          ///< a new number of ranks divides samples as the one before did
  kAnswersForged,      ///< nodes pass for waiting before they have answered
  kLeaseForgotten,     ///< workers of a lost node pass for dead
  kPredecessorUnseen,  ///< an agent says that nothing is left of the one before, and has not looked
  kFenceOff,           ///< nobody waits for a rank 0 that is cut off
};

struct SurvivorsSetup {
  launcher::JobSpec spec;
  std::uint64_t samples = 64;
  int batch_size = 4;
  std::int64_t epochs = 10;
  std::chrono::nanoseconds step_time{};  ///< of a rank, on average
  int mishaps = 0;
  std::chrono::nanoseconds between{};  ///< two of them, at most
  bool user_may_stop = false;
  SurvivorsBug bug = SurvivorsBug::kNone;
};
/// A small job of random shape and fortune.
SurvivorsSetup random_survivors_setup(std::uint64_t seed);

struct SurvivorsReport {
  std::optional<std::string> broken;  ///< which invariant, when
  int exit_code = 0;
  std::string why;  ///< the report's last words
  bool user_stopped = false;
  int attempts = 0;
  int restarts = 0;
  int lived_on = 0;  ///< attempts that went on from a survivor's state
  std::uint64_t steps = 0;
  std::uint64_t events = 0;
  std::map<SimulatedFault, int> mishaps;
  std::chrono::nanoseconds time{};
  std::string log;  ///< of one that is looked at: what the user was told
};

/// The real Supervisor, with simulated agents and workers that train, in virtual time: the same seed is the
/// same run. What must hold is checked at each step; it stops at the first thing that does not.
SurvivorsReport simulate_survivors(const SurvivorsSetup& setup, std::uint64_t seed);

}  // namespace ddp::sim
