#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "launcher/supervisor/net_choice.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The results of one host.
struct CheckedNode {
  std::optional<Error> error;        ///< it could not be reached, or did not complete the check
  bool up = false;                   ///< its agent sent a hello, so `hello` is set
  std::chrono::nanoseconds took{0};  ///< from the start to its hello
  rendezvous::Hello hello;
  std::string connected;  ///< the address that was used to reach it; empty: unknown
  std::optional<rendezvous::NodeChecked> facts;
  std::optional<std::chrono::nanoseconds> wall_ahead;  ///< its wall clock minus ours; set by the driver
  std::chrono::nanoseconds wall_error{0};              ///< ± of it
  enum class Reach : std::uint8_t { kNotTried, kReached, kFailed };
  Reach reach = Reach::kNotTried;  ///< of node 0's store; node 0 itself is kReached if it could open a store
  std::string reach_text;          ///< the address that answered, or why none did
  std::string local;               ///< its own address on that route; empty: unknown
};

/// The results of all hosts.
struct CheckResult {
  std::vector<CheckedNode> nodes;  ///< in the order of the job's hosts
  int stop_signal = 0;             ///< the signal by which the user ended the check early
  std::string awaited;             ///< with stop_signal: what the check waited for
  /// `networked` holds the nodes that are up, in order; `network` is unset if there are none.
  std::vector<std::size_t> networked;
  std::optional<Result<NetChoice>> network;
  std::optional<Result<rendezvous::RankPlan>> plan;  ///< of all nodes; unset unless all are up
  std::string master_addr;                           ///< empty: no common address was found
  struct RejectedNetwork {
    std::string master_addr, network;  ///< of the NetRoute
    std::vector<std::size_t> nodes;    ///< nodes that do not reach it
  };
  std::vector<RejectedNetwork> rejected_networks;  ///< better than the network of `master_addr`
  std::uint16_t store_port = 0;                    ///< port on which node 0 listened; 0: none
};

/// Checks all hosts of a job (sans-IO): asks each host that answers, probes the routes to node 0 as a job
/// would, then lets all agents leave. A failing host neither ends the check of the others nor delays it
/// beyond the deadline.
///
/// The driver's duties: 1. Call `start` once, then `step` for each event in order. 2. Carry out all actions
/// of a step before the next event; a message to a lost node is dropped. 3. Call `step(Tick)` no later than
/// `deadline()`. 4. Stop when `finished()`.
class CheckRun {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

  struct NodeUp {
    std::size_t node;
    rendezvous::Hello hello;
    std::string connected;
  };
  struct NodeFailed {  ///< not reached, or its link ended
    std::size_t node;
    Error error;
  };
  struct FromNode {
    std::size_t node;
    rendezvous::Message message;
  };
  struct UserInterrupt {
    int number;  ///< of the signal
  };
  struct Tick {};
  using Event = std::variant<NodeUp, NodeFailed, FromNode, UserInterrupt, Tick>;

  struct ToNode {
    std::size_t node;
    rendezvous::Message message;
  };
  struct Disconnect {  ///< give the node up, or drop its link
    std::size_t node;
  };
  using Action = std::variant<ToNode, Disconnect>;
  using Actions = std::vector<Action>;

  struct CheckScope {
    bool inspect = true;       ///< ask for NodeChecked, not only for the hello
    bool has_program = false;  ///< spec.command must be searched for
    bool clean = false;        ///< end what is left of the job instead, and ask nothing else
  };

  /// `spec` must outlive this object. Only the hosts that a job would use are checked.
  CheckRun(const JobSpec& spec, CheckScope scope);

  Actions start(Time now);
  Actions step(const Event& event, Time now);
  bool finished() const { return state_ == State::kFinished; }
  std::optional<Time> deadline() const { return deadline_; }
  /// The time after start() in which hosts may answer. The rest of --start-timeout is for the network between
  /// them.
  std::chrono::milliseconds answer_time() const;
  /// Sets the step of a host whose agent is being started.
  void set_start_step(std::size_t node, const char* step) { start_steps_[node] = step; }
  /// Returns the hosts that the check waits for, as attempt_start.h does. Empty: none.
  std::string awaited_text() const;
  std::size_t node_count() const { return result_.nodes.size(); }
  CheckResult take_result() { return std::move(result_); }

 private:
  enum class State : std::uint8_t { kAsking, kOpeningStore, kProbing, kLeaving, kFinished };
  enum class Stage : std::uint8_t { kConnecting, kAsked, kAnswered, kLeaving, kGone };

  void on(const NodeUp& event, Time now);
  void on(const NodeFailed& event, Time now);
  void on(const FromNode& event, Time now);
  void on(const UserInterrupt& event, Time now);
  void on(const Tick& event, Time now);
  void on_probed(std::size_t node, const rendezvous::ProbeResult& probed, Time now);
  void answered(std::size_t node, Time now);
  Error too_late(std::size_t node) const;
  void give_up(std::size_t node, Error error);
  Result<rendezvous::RankPlan> plan(std::vector<rendezvous::NodeSlots> slots) const;
  void try_network(Time now);
  void probe_all(Time now);
  void send_probes(const std::vector<MasterAddress::AddressProbe>& probes);
  void leave_if_probed(Time now);
  void note_route();
  void leave_all(Time now);
  void finish_if_gone();
  bool has_setup(std::size_t node) const { return !spec_.setup.empty() || !spec_.hosts[node].setup.empty(); }
  bool usable(std::size_t node) const { return stage_[node] == Stage::kAnswered; }

  const JobSpec& spec_;
  const CheckScope scope_;
  CheckResult result_;
  std::vector<Stage> stage_;
  std::vector<const char*> start_steps_;  ///< of kConnecting
  std::vector<std::size_t> probing_;      ///< nodes by their index in MasterAddress
  MasterAddress master_;
  std::string store_token_;
  State state_ = State::kAsking;
  Time began_{0};
  std::optional<Time> deadline_;
  Actions actions_;
};

}  // namespace ddp::launcher
