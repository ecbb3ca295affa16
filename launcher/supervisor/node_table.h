#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "launcher/supervisor/job_events.h"
#include "launcher/supervisor/network_text.h"
#include "rendezvous/membership/slot_table.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The master's knowledge of each node of a job, and of the ranks that the nodes run in the attempt
/// (sans-IO). The Supervisor decides when a node changes its state. A node is its host's index in the job's
/// list, and a participant is a node's index among those of the attempt.
class NodeTable {
 public:
  using Time = job::Time;

  /// kWaiting: the node's workers live and have left their attempt. kGone: no link, and none is expected.
  enum class State : std::uint8_t {
    kConnecting,
    kUp,
    kAccepted,
    kSpawned,
    kWaiting,
    kEnded,
    kLeaving,
    kGone
  };
  struct Trouble {
    Error error;
    Time at{0};
  };
  struct Predecessor {
    std::uint32_t incarnation = 0;
    std::string machine;  ///< machine on which the PIDs are valid; empty: unknown
    std::vector<std::uint32_t> pids;
  };
  struct Node {
    std::string name;
    State state = State::kConnecting;
    std::uint32_t incarnation = 0;
    rendezvous::Hello hello;
    std::string connected;
    const char* start_step = "connecting";  ///< until the agent's hello
    NodeInfiniband infiniband;
    std::string slots_reason;                ///< why it runs this number of workers
    std::optional<std::size_t> participant;  ///< its index in the attempt
    bool lost = false;                       ///< its failure is known; its end is awaited
    bool reason_reported = false;            ///< the reason of its failure was reported
    bool ending = false;                     ///< its workers left all attempts and are being ended
    Time up_at{0};                           ///< when it said hello
    std::uint32_t spawned = 0;               ///< the last attempt that its workers joined
    rendezvous::RankAssignment ran;          ///< its ranks in that attempt
    std::uint32_t spawned_before = 0;        ///< the attempt that they joined before it
    rendezvous::RankAssignment ran_before;
    std::vector<std::uint32_t> worker_pids;  ///< by local rank, of the last start; 0: unknown
    std::optional<Predecessor> predecessor;  ///< a lost incarnation whose workers may live
    std::optional<Trouble> trouble;          ///< why it is absent

    /// It has accepted the job and was not sent away.
    bool is_member() const { return state >= State::kAccepted && state <= State::kEnded; }
    bool has_workers() const { return state == State::kSpawned || state == State::kWaiting; }
  };

  /// Names the nodes as `spec` names their hosts.
  explicit NodeTable(const JobSpec& spec);

  std::size_t size() const { return nodes_.size(); }
  Node& operator[](std::size_t node) { return nodes_[node]; }
  const Node& operator[](std::size_t node) const { return nodes_[node]; }
  std::vector<Node>::const_iterator begin() const { return nodes_.begin(); }
  std::vector<Node>::const_iterator end() const { return nodes_.end(); }

  // ---- the attempt
  /// Assigns the ranks of the attempt. Nodes that have ended their part of the last one can take part again.
  void begin_attempt(std::uint32_t attempt, rendezvous::World world);
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
  /// A new incarnation of the node said hello.
  void came_up(const job::NodeUp& event, Time now);
  /// The participant got the order to start its workers.
  void spawned(std::size_t participant);
  /// The node has refused that order: only survivors of the attempt before it live, and they are being ended.
  void refused(std::size_t node);
  /// The node runs `rank` in this process.
  void worker_started(std::size_t node, std::uint32_t rank, std::uint32_t pid);
  /// The node is lost. Its processes may still run.
  void lose(std::size_t node, const Error& error, Time now);

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
  std::vector<Node> nodes_;
  std::uint32_t attempt_ = 0;
  rendezvous::World world_;
  std::size_t gone_ = 0;  ///< of all_gone: the nodes before this one are gone
};

}  // namespace ddp::launcher
