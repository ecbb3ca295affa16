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
#include "launcher/supervisor/master_address.h"
#include "launcher/supervisor/net_choice.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What came to light about one host.
struct CheckedNode {
  std::optional<Error> error;        ///< it could not be reached, or did not answer to the end
  bool up = false;                   ///< its agent said hello, so `hello` holds
  std::chrono::nanoseconds took{0};  ///< from the start to its hello
  rendezvous::Hello hello;
  std::string connected;  ///< address it was reached at; empty: not known
  std::optional<rendezvous::NodeChecked> facts;
  std::optional<std::chrono::nanoseconds>
      wall_ahead;                          ///< its wall clock before ours; filled in by the driver
  std::chrono::nanoseconds wall_error{0};  ///< ± of it
  enum class Reach : std::uint8_t { kNotTried, kReached, kFailed };
  Reach reach = Reach::kNotTried;  ///< of node 0's store; node 0 itself is kReached when it could open one
  std::string reach_text;          ///< the address that answered, or why none did
  std::string local;               ///< its own address on that way; empty: not known
};

/// What came to light about all of them.
struct CheckResult {
  std::vector<CheckedNode> nodes;  ///< as the hosts of the job
  int stop_signal = 0;             ///< by which the user ended it before all was known
  /// Of the nodes that are up, in their order (`networked`); unset when none is.
  std::vector<std::size_t> networked;
  std::optional<Result<NetChoice>> network;
  std::optional<Result<rendezvous::RankPlan>> plan;  ///< of all nodes; unset unless all are up
  std::string master_addr;                           ///< empty: no address was agreed on
  struct RejectedNetwork {
    std::string master_addr, network;  ///< of the NetRoute
    std::vector<std::size_t> nodes;    ///< that do not reach it
  };
  std::vector<RejectedNetwork> rejected_networks;  ///< ways better than that of `master_addr`
  std::uint16_t store_port = 0;                    ///< on which node 0 listened; 0: it did not
};

/// Leads all hosts of a job through a check (sans-IO): who answers is asked, then the way to node 0 is tried
/// as a job would try it, then everybody leaves. No host that fails ends it for the others, and none holds it
/// up beyond the deadline.
///
/// The driver's duties: 1. `start` once, then `step` for each event in order; 2. carry out all actions of a
/// step before the next event, a message to a node that is gone is dropped; 3. `step(Tick)` no later than
/// `deadline()`; 4. stop when `finished()`.
class CheckRun {
 public:
  using Time = std::chrono::nanoseconds;  ///< our CLOCK_MONOTONIC

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
  struct Disconnect {  ///< give it up, or drop its link
    std::size_t node;
  };
  using Action = std::variant<ToNode, Disconnect>;
  using Actions = std::vector<Action>;

  struct CheckScope {
    bool inspect = true;       ///< ask for NodeChecked, not only for the hello
    bool has_program = false;  ///< spec.command is to be looked for
  };

  /// `spec` outlives this. Of its hosts those count that a job would use.
  CheckRun(const JobSpec& spec, CheckScope scope);

  Actions start(Time now);
  Actions step(const Event& event, Time now);
  bool finished() const { return state_ == State::kFinished; }
  std::optional<Time> deadline() const { return deadline_; }
  /// The time from start() until which hosts are waited for; what is left of --start-timeout is for the way
  /// between them.
  std::chrono::milliseconds answer_time() const;
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
  bool usable(std::size_t node) const { return stage_[node] == Stage::kAnswered; }

  const JobSpec& spec_;
  const CheckScope scope_;
  CheckResult result_;
  std::vector<Stage> stage_;
  std::vector<std::size_t> probing_;  ///< node by the index that MasterAddress knows
  MasterAddress master_;
  std::string store_token_;
  State state_ = State::kAsking;
  Time began_{0};
  std::optional<Time> deadline_;
  Actions actions_;
};

}  // namespace ddp::launcher
