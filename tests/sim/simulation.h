#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "rendezvous/membership/member.h"
#include "rendezvous/membership/membership.h"

namespace ddp::sim {

using Time = std::chrono::nanoseconds;

/// An injected bug, to test that the simulation finds it. The cores stay correct; the code that drives them
/// has the bug.
enum class InjectedBug : std::uint8_t {
  kNone,
  kNoLease,       ///< the next attempt does not wait for the lease of a lost node
  kPingsUnasked,  ///< a node is pinged although it has not answered the last Ping
  kLateBelieved,  ///< a message about an ended attempt counts for the next one
  kWorldDiffers,  ///< the last node of an attempt receives another world
  kOneNodeLess,   ///< attempts begin with one node fewer than MIN
  kFreeRestarts,  ///< the budget is not the user's
  kNoTicks,       ///< the master receives no ticks
};

/// One world: the job's rules, and its faults.
struct Setup {
  rendezvous::MembershipRules rules;
  std::vector<int> slots;  ///< per host
  Time term{};             ///< term of the nodes' leases
  Time grace{};
  Time kill{};                    ///< the longest time that a keeper takes to kill a tree
  Time work{};                    ///< time after which an attempt's workers succeed
  Time min_delay{}, max_delay{};  ///< delay of a message
  int drift_ppm = 0;              ///< largest drift of the nodes' clocks
  int faults = 0;                 ///< number of faults, at random times of the first `fault_time`
  Time fault_time{};
  bool worker_faults = true;
  InjectedBug bug = InjectedBug::kNone;
};
/// Returns a small world of random shape with random faults.
Setup random_setup(std::uint64_t seed);

/// The faults of one host, or of the master (docs/developers/states.md).
enum class Fault : std::uint8_t {
  kCrash,        ///< without notice; the machine is back after the time
  kAgentKilled,  ///< its keeper cleans up and reports it
  kAgentFrozen,
  kMachinePaused,
  kMasterFrozen,
  kCut,  ///< in both directions
  kCutFromNode,
  kCutToNode,
  kLinkReset,
  kWorkerFails,
  kStale,  ///< a message of another job, incarnation or attempt arrives
  kUserStops,
};
constexpr int kFaults = 12;

struct SimulationReport {
  std::optional<std::string> broken;  ///< broken invariant, with its time
  bool ended = false;
  rendezvous::Outcome outcome = rendezvous::Outcome::kDone;
  std::string reason;
  int attempts = 0;
  int restarts = 0;
  std::uint64_t events = 0;
  Time began{};  ///< start of the first attempt
  Time time{};   ///< end of the job
};

/// Membership and a Member on each node, in virtual time, on a simulated network. Links keep their order,
/// delay messages during a cut, and break in the end. The same seed gives the same run. Invariants are
/// checked at each step; run() stops at the first violation.
class Simulation {
 public:
  Simulation(Setup setup, std::uint64_t seed);
  /// Adds a fault to the random ones; call it before run().
  void plan(Fault fault, rendezvous::HostNumber host, Time at, Time lasts);
  SimulationReport run();

 private:
  enum class Kind : std::uint8_t {
    kToNode,
    kToMaster,
    kMasterTick,
    kPing,
    kMemberTick,
    kKeeper,
    kKeeperKilled,
    kWorkerDone,
    kWorkersDie,
    kFault,
    kResume,
    kAgentStart,
    kRecallAnswer,
  };
  enum class Word : std::uint8_t {
    kRun,
    kStop,
    kPing,
    kLeave,
    kEnd,
    kHello,
    kPong,
    kEnded,
    kFailed,
    kEndDead
  };
  struct Event {
    Time at;
    std::uint64_t order;
    Kind kind;
    Word word;
    std::uint32_t id;  ///< agent or host
    std::uint32_t attempt;
    std::uint32_t number;
    Time lasts;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Machine {
    Time offset{0};
    std::int64_t ppm = 0;
    Time cut_from{0}, cut_to{0}, paused{0};  ///< end of each condition
    bool paused_now = false;
    std::uint32_t is_alive = 0;
    std::vector<std::uint32_t> agents;
  };
  struct SimulatedAgent {
    rendezvous::HostNumber host;
    std::uint32_t incarnation;
    rendezvous::Member member;
    bool alive = true;
    bool node_open = true, master_open = true, joined = false, ping_owed = false;
    Time frozen{0}, last_to_node{0}, last_to_master{0};
    Time tick_at{-1}, keeper_at{-1};
    std::uint32_t attempt = 0;
    rendezvous::RankAssignment assignment;
    std::size_t world_hash = 0;
    std::vector<std::uint32_t> ranks;  ///< ranks of live workers
  };

  void push(Time at, Kind kind, std::uint32_t id, std::uint32_t attempt = 0, std::uint32_t number = 0,
            Word word = Word::kEnd, Time lasts = Time(0));
  void handle(const Event& event);
  bool held_back(const Event& event);
  Time some(Time from, Time to);
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  Time local(const Machine& machine, Time at) const;
  Time global(const Machine& machine, Time at) const;
  void send(bool to_node, std::uint32_t agent, Word word, std::uint32_t attempt = 0,
            std::uint32_t number = 0);

  // the master
  void notify_master(const rendezvous::Sender& from, const rendezvous::MemberEvent& event);
  void carry_out(const rendezvous::MemberAction& action);
  void begin(const rendezvous::Begin& action);
  void at_master(const Event& event);
  void ping();
  std::uint32_t link_of(rendezvous::HostNumber host) const;
  rendezvous::Sender sender(const SimulatedAgent& agent, std::uint32_t attempt) const;

  // a node
  void start_agent(rendezvous::HostNumber host);
  void at_node(const Event& event);
  void notify_member(std::uint32_t id, const rendezvous::Member::Event& event);
  void start_workers(std::uint32_t id);
  void kill_workers(SimulatedAgent& agent);
  void worker_done(const Event& event);
  void fault(const Event& event);
  void stale();

  // invariants
  void fail(const std::string& what);
  void worker_processes(std::uint32_t id, std::uint32_t rank);
  void worker_is_gone(const SimulatedAgent& agent, std::uint32_t rank);
  void check_end();

  const Setup setup_;
  std::mt19937_64 random_;
  rendezvous::Membership membership_;
  std::priority_queue<Event> queue_;
  std::uint64_t order_ = 2;  ///< 0 and 1 precede other events of the same time
  Time now_{0};
  Time master_frozen_{0};
  Time master_tick_{-1};
  std::vector<Machine> machines_;
  std::deque<SimulatedAgent> agents_;
  std::vector<std::size_t> world_hashes_;    ///< by attempt
  std::vector<std::uint32_t> participants_;  ///< agents of the attempt
  std::vector<std::uint32_t> owner_;         ///< rank → agent + 1
  std::vector<std::int64_t> alive_;          ///< workers by attempt, on machines that are not paused
  std::int64_t alive_all_ = 0;
  std::vector<bool> spoilt_;  ///< attempts with an abnormal exit: their other workers wait forever
  int growths_ = 0;
  SimulationReport report_;
};

}  // namespace ddp::sim
