#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/node_lease.h"
#include "rendezvous/membership/slot_table.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/worker/worker_session.h"
#include "tests/sim/survivors_history.h"
#include "tests/sim/survivors_simulation.h"

/// The data of SurvivorsWorld. Agents and workers are identified by their index.
namespace ddp::sim {

using Time = std::chrono::nanoseconds;
/// Delay of a line between a worker and its agent.
inline constexpr Time kSimLineTime = std::chrono::microseconds(200);

struct SimHost {
  Time cut{0};   ///< end of a cut from the master
  Time down{0};  ///< end of the machine's downtime
  std::uint32_t incarnation = 1;
  bool being_started = false;
  bool store_refused = false;  ///< the next store cannot be opened
};

/// An agent's state, as launcher/agent/agent.h keeps it.
struct SimAgent {
  struct WorkerProcessState {
    std::uint32_t worker = 0;
    bool can_rejoin = false;
    bool ready = false;
    std::optional<rendezvous::WorkerRevoked> answer;
    std::optional<std::string> killed;
    rendezvous::WorkerSession session;
  };
  std::uint32_t id = 0;
  std::size_t host = 0;
  std::uint32_t incarnation = 1;
  rendezvous::NodeLease lease{Time(0), Time(0)};
  bool alive = true;
  bool node_open = true, master_open = true;  ///< the two ends of the link
  bool gone_reported = false;
  bool ping_owed = false;
  Time frozen{0}, to_node{0}, to_master{0};
  bool greeted = false;  ///< its hello arrived
  bool leased = false;
  std::map<std::uint32_t, WorkerProcessState> processes;
  std::uint32_t attempt = 0, first_rank = 0, local_world = 0;
  bool greeted_reported = false, ready_reported = false, leaving_attempt = false, waiting = false,
       running = false;
  bool leaving = false, stopping = false, ending = false;
  std::optional<rendezvous::Spawn> next_spawn;
  std::uint64_t turn = 0;  ///< counts revokes
  Time accepted{0};
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
  // The members of rendezvous/worker_client/worker_link_client.cc.
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

struct SimAttempt {
  std::uint32_t number = 0;
  std::uint32_t world = 0;
  std::optional<std::uint32_t> reported_from;  ///< computed from the nodes' reports
  std::optional<std::uint32_t> from;           ///< the same, unless a bug is injected
  std::map<int, SimRound> rounds;
  std::map<std::uint32_t, std::uint32_t> ranks;  ///< worker by rank, as they join
  bool torn = false;                             ///< a rank has left it: most rounds cannot complete
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
