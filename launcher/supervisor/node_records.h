#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "launcher/supervisor/job_events.h"
#include "launcher/supervisor/net_choice.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Everything that the master knows of each node of a job, and the world of the attempt (sans-IO). This is
/// the only record of a node, and a view: the node itself may already be in another state. The Supervisor
/// decides when it changes; the master, its links and the reports read it. A node is its host's index in the
/// job's list, and a participant is a node's index among those of the attempt.
class NodeRecords {
 public:
  using Time = job::Time;

  enum class State : std::uint8_t {
    kConnecting,  ///< its start has not been answered yet
    kUp,          ///< its agent said hello and prepares the job
    kAccepted,    ///< it can run workers, and runs none
    kSpawned,     ///< its workers run, or are being ended
    kWaiting,     ///< its workers live and have left their attempt
    kEnded,       ///< its workers of the attempt have ended
    kLeaving,     ///< it was sent away
    kGone         ///< no link, and none is expected
  };
  struct Trouble {
    Error error;
    Time at{0};
  };
  /// A lost incarnation of the host whose workers may still run. It is unset when a proof has come that none
  /// does.
  struct Predecessor {
    std::uint32_t incarnation = 0;
    std::string machine;  ///< machine on which the PIDs are valid; empty: unknown
    std::vector<std::uint32_t> pids;
    std::uint64_t clock_ns = 0;  ///< of its Hello
    std::string swept = {};      ///< why job::NodeSwept was no proof; empty: nobody looked
    Time busy_until{0};          ///< its lease: none of its workers runs after this time
    bool fenced = false;         ///< they may still write a checkpoint: --fence
  };
  struct Node {
    // ---- the host
    std::string name;
    std::deque<Time> faults;  ///< attempts that failed because of it
    Time excluded_until{0};
    // ---- the link. `state`, `lost` and `awaited` are counted: only the functions of NodeRecords change
    // them.
    State state = State::kConnecting;
    bool lost = false;  ///< its failure is known; the end of its link, or of its workers, is awaited
    std::uint32_t incarnation = 0;
    rendezvous::Hello hello;
    std::string connected;
    const char* start_step = "connecting";  ///< until the agent's hello
    Time up_at{0};                          ///< when it said hello
    Time heard{0};                          ///< last byte; its lease and every loss are counted from here
    Time silent_since{0};                   ///< `heard`, plus the time that the master itself slept since
    bool suspect = false;                   ///< silent, and reported
    bool probed = false;                    ///< job::NodeUp::probed
    Time answers_since{0};                  ///< of the uninterrupted series of answered probes
    Time answered_at{0};                    ///< last answered probe
    // ---- what it can run
    NodeInfiniband infiniband;
    int slots = 0;
    std::string slots_reason;  ///< why it runs this number of workers
    // ---- what it runs
    std::optional<std::size_t> participant;  ///< its index in the attempt
    bool awaited = false;                    ///< the attempt is not over before its part ends
    bool ending = false;                     ///< its workers left all attempts and are being ended
    std::uint32_t spawned = 0;               ///< the last attempt that its workers joined
    rendezvous::RankAssignment ran;          ///< its ranks in that attempt
    /// The attempt before it, and the ranks in it. Unset: its workers did not come from another attempt.
    std::optional<std::pair<std::uint32_t, rendezvous::RankAssignment>> survived;
    std::vector<std::uint32_t> worker_pids;  ///< by local rank, of the last start; 0: unknown
    // ---- its absence
    std::optional<Trouble> trouble;  ///< why it is absent
    bool reason_reported = false;    ///< the reason of its failure was reported
    std::optional<Predecessor> predecessor;
    bool sweeping = false;  ///< job::SweepNode is not answered
    std::optional<Time> recall_at;
    int recalls = 0;

    /// It has accepted the job and was not sent away.
    bool is_member() const { return state >= State::kAccepted && state <= State::kEnded; }
    bool is_present() const { return is_member() && !lost; }
    /// Its start has not been answered yet.
    bool is_coming() const { return state == State::kConnecting || state == State::kUp; }
    bool has_workers() const { return state == State::kSpawned || state == State::kWaiting; }
    /// Its workers survive the attempt, and no other one has begun with them.
    bool has_survivors() const { return state == State::kWaiting && !lost && !awaited; }
    /// It is silent, and its machine answers no probe, either.
    bool is_unreachable() const { return suspect && probed && answered_at < heard; }
    /// Workers of a lost incarnation may run.
    bool is_busy(Time now) const { return predecessor && predecessor->busy_until > now; }
  };

  /// Names the nodes as `spec` names their hosts.
  explicit NodeRecords(const JobSpec& spec);

  std::size_t size() const { return nodes_.size(); }
  Node& operator[](std::size_t node) { return nodes_[node]; }
  const Node& operator[](std::size_t node) const { return nodes_[node]; }
  std::vector<Node>::const_iterator begin() const { return nodes_.begin(); }
  std::vector<Node>::const_iterator end() const { return nodes_.end(); }
  int present() const { return present_; }
  int coming() const { return coming_; }
  /// Returns how many nodes of the attempt have not ended their part.
  int awaited() const { return awaited_; }

  // ---- the attempt
  /// Assigns the ranks of the attempt. Each of its nodes is present and runs no worker but survivors.
  void begin_attempt(std::uint32_t attempt, rendezvous::World world);
  /// The participant's part of the attempt is over.
  void end_part(std::size_t node);
  bool begun() const { return world_.world_size > 0; }
  /// Returns the number of the last attempt that has begun; 0 before the first.
  std::uint32_t attempt() const { return attempt_; }
  /// Returns the world of the attempt; empty before the first.
  const rendezvous::World& world() const { return world_; }
  std::size_t node_of(std::size_t participant) const { return world_.assignments[participant].host; }
  const Node& participant(std::size_t participant) const { return nodes_[node_of(participant)]; }
  /// Returns the node's assignment in the attempt; null: it has none.
  const rendezvous::RankAssignment* assignment(std::size_t node) const;
  /// Returns the node that runs `rank`, one of the world's.
  std::size_t node_of_rank(std::uint32_t rank) const;
  /// True when `node` was assigned `rank`.
  bool runs(std::size_t node, std::uint32_t rank) const;
  /// Returns the node's participant if `attempt` is the current one and the node runs it. Returns nothing for
  /// a node that is lost, or whose agent only ends the workers of an earlier attempt. Worker messages of such
  /// nodes are ignored.
  std::optional<std::size_t> running_participant(std::size_t node, std::uint32_t attempt) const;
  /// Returns the local rank of `rank` in the last attempt that the node's workers joined. They may still live
  /// while the next one begins.
  std::optional<int> ran(std::size_t node, std::uint32_t attempt, std::uint32_t rank) const;

  // ---- changes of a node
  void enter(std::size_t node, State state);
  /// A new incarnation of the node said hello.
  void came_up(const job::NodeUp& event, Time now);
  /// A byte of the node arrived. Returns for how long it had been silent.
  Time heard_from(std::size_t node, Time now);
  /// The master slept for `time`: the nodes were not silent then.
  void forgive_silence(Time time, Time now);
  /// The participant got the order to start its workers.
  void spawned(std::size_t participant);
  /// The node has refused that order. Survivors of the attempt before it are being ended.
  void refused(std::size_t node);
  /// The node runs `rank` in this process.
  void worker_started(std::size_t node, std::uint32_t rank, std::uint32_t pid);
  /// The node is lost. If it has workers, they may run until `lease` after its last byte.
  void lose(std::size_t node, const Error& error, Time lease, bool fenced, Time now);
  /// For certain, no worker of this incarnation of the node runs. Returns false if that changes nothing.
  bool prove_empty(std::size_t node, std::uint32_t incarnation);

  /// True when the current agent can find out whether workers of the lost incarnation live. `wrapped`: a
  /// wrapper command gives the agent other PIDs.
  bool can_see_predecessor(std::size_t node, bool wrapped) const;
  /// Returns the name of a node that joined by itself: its host's name, unless another node that is present
  /// has that name. Node 0 has its name before it is present, and a lost node's name is free for its host's
  /// return. `otherwise`: a name that no other node gets.
  std::string name_of_joined(std::size_t node, const std::string& otherwise) const;
  /// True when every node is gone. No gone node may come back after the first call.
  bool all_gone();

 private:
  void count(const Node& node, int sign);
  void check_counts() const;

  std::vector<Node> nodes_;
  int present_ = 0;
  int coming_ = 0;
  int awaited_ = 0;
  std::uint32_t attempt_ = 0;
  rendezvous::World world_;
  std::size_t gone_ = 0;  ///< of all_gone: the nodes before this one are gone
};

}  // namespace ddp::launcher
