#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent_core/agent_core.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/worker/worker_protocol.h"
#include "tests/sim/survivors_history.h"
#include "tests/sim/survivors_simulation.h"

/// The data of SurvivorsWorld. Agents and workers are identified by their index.
namespace ddp::sim {

using Time = std::chrono::nanoseconds;
/// Delay of a line between a worker and its agent.
inline constexpr Time kSimLineTime = std::chrono::microseconds(200);

struct SimHost {
  Time offset{0};        ///< what its clock shows at the beginning
  std::int64_t ppm = 0;  ///< by how much its clock is fast
  Time cut_to{0};        ///< end of a cut in the direction from the master
  Time cut_from{0};      ///< end of a cut in the direction to the master
  Time down{0};          ///< end of the machine's downtime
  Time paused{0};        ///< end of a suspension of the whole machine
  std::uint32_t incarnation = 1;
  bool being_started = false;
  bool store_refused = false;         ///< the next store cannot be opened
  std::vector<std::uint32_t> agents;  ///< in the order of their starts

  Time local(Time at) const { return offset + at + Time(at.count() / 1'000'000 * ppm); }
};

/// An agent: the core that ships, and what its shell and its keeper would know.
struct SimAgent {
  struct Process {
    std::uint32_t worker = 0;
    rendezvous::WorkerSession session;
    std::optional<rendezvous::WorkerRevoked> last_answer;
  };
  SimAgent(std::uint32_t number, std::size_t machine, std::uint32_t link, launcher::AgentCore decisions)
      : id(number), host(machine), incarnation(link), core(std::move(decisions)) {}
  std::uint32_t id = 0;
  std::size_t host = 0;
  std::uint32_t incarnation = 1;
  launcher::AgentCore core;
  std::map<std::uint32_t, Process> processes;
  std::optional<rendezvous::Spawn> prepared;
  bool starting = false;
  std::optional<Time> killed_at;  ///< by the keeper, on the node's clock; unset: never
  bool keeper_watches = false;
  std::optional<Time> tick_at;
  Time last_event{0};  ///< on the node's clock
  bool alive = true;
  bool node_open = true, master_open = true;  ///< the two ends of the link
  bool gone_reported = false;
  bool ping_owed = false;
  bool greeted = false;  ///< its hello arrived
  Time frozen{0}, to_node{0}, to_master{0}, heard{0};
  Time delivered{0};  ///< when the master got its last message
  // The master driver's knowledge of the agent.
  std::optional<rendezvous::Spawn> spawned;  ///< the last one
  bool answered = true;                      ///< by AttemptEnded or AttemptRevoked
  std::vector<rendezvous::Survivor> survivors;
};

struct SimDeath {
  enum class By : std::uint8_t { kFault, kUs, kItself };
  By by = By::kFault;
  std::size_t host = 0;
  std::uint32_t rank = 0, attempt = 0;
  int code = 0, signal = 0;
};

struct SimWorker {
  enum class Activity : std::uint8_t {
    kLoading,
    kIdle,
    kJoining,
    kSharing,
    kTraining,
    kEnding,
    kTroubled,
    kLeavingAttempt
  };
  std::uint32_t id = 0, agent = 0, local = 0;
  bool alive = true, frozen = false;
  bool slow = false;
  Activity doing = Activity::kLoading;
  std::uint64_t turn = 0;  ///< actions planned in an earlier turn do not happen
  bool in_round = false;
  int round = 0;
  std::optional<TrainingState> state;
  // The members of rendezvous/worker_client/worker_client.cc.
  rendezvous::WorkerLines lines;
  std::deque<rendezvous::AttemptOrder> orders;
  std::optional<std::uint32_t> last;
  std::optional<rendezvous::AttemptOrder> present;
  bool revoked = false, answered = false;
  std::optional<std::uint64_t> held;
  SimDeath death;
};

/// A collective: it completes when all ranks have entered it. Each rank learns of that at its own time.
struct SimRound {
  struct Entered {
    std::uint32_t worker = 0;
    SimWorker::Activity doing = SimWorker::Activity::kIdle;
    std::optional<TrainingState> state;  ///< its contribution
  };
  int number = 0;
  std::map<std::uint32_t, Entered> entered;  ///< by rank
  bool complete = false;
  bool failed = false;  ///< complete, but no rank can continue from it
  std::string why;
  TrainingState result;
};

/// The values that each rank of a completed round learns.
struct SimOutcome {
  bool failed = false;
  std::string why;
  TrainingState result;
};

struct SimAttempt {
  std::uint32_t number = 0;
  std::uint32_t world = 0;
  std::optional<std::uint32_t> reported_from;  ///< computed from the nodes' reports
  std::optional<std::uint32_t> from;           ///< the same, unless a bug is injected
  std::map<int, SimRound> rounds;
  std::map<std::uint32_t, std::uint32_t> ranks;  ///< worker by rank, as they join
  bool torn = false;                             ///< a rank has left it: most rounds cannot complete
  int losses = 0;                                ///< ranks whose end others could see
  std::map<std::uint32_t, std::uint64_t> ended;  ///< hash by rank, of the ranks that completed the training
};

struct SimFault {
  SimulatedFault kind = SimulatedFault::kStale;
  std::optional<std::size_t> host;
  Time from{0}, until{0};
};
struct PeerCut {
  std::uint32_t a = 0, b = 0;  ///< workers
  Time until{0};
};

}  // namespace ddp::sim
