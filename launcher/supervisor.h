#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "launcher/exit_report.h"
#include "launcher/failure_log.h"
#include "launcher/hang_inquiry.h"
#include "launcher/job_spec.h"
#include "launcher/master_address.h"
#include "launcher/net_choice.h"
#include "launcher/network_words.h"
#include "rendezvous/message.h"
#include "rendezvous/rank_plan.h"

namespace ddp::launcher {

/// Decides the life of one job, on the master (sans-IO): from the first hello to the last goodbye. It takes
/// an event and the time, and gives actions. The states are those of docs/states.md.
///
/// The driver's duties:
///   1. call `start` once, then `step` for every event in the order in which they happened;
///   2. carry out all actions of a step, in order, before the next event; a message to a node that is gone is
///   dropped;
///   3. call `step(Tick)` no later than `deadline()`;
///   4. when `finished()`, stop: no message will follow. `end()` then tells how it went.
class Supervisor {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

  // ---- events
  struct NodeUp {  ///< its agent said hello
    std::size_t node;
    rendezvous::Hello hello;
    std::string connected;  ///< address it was reached at; empty: not known
  };
  struct NodeFailed {  ///< it could not be reached, or no agent answered there
    std::size_t node;
    Error error;
  };
  struct FromNode {
    std::size_t node;
    rendezvous::Message message;
    Time happened;  ///< when it happened by the master's clock, as well as the offset is known
    Time error{0};  ///< ± of `happened`
  };
  struct LinkEnded {  ///< nothing comes from it any more; NodeGone follows when it is known why
    std::size_t node;
    Error error;
  };
  struct NodeGone {  ///< its link ended; expected after Leave, a lost node otherwise
    std::size_t node;
    Error error;
  };
  struct UserSignal {
    int number;
  };
  struct Tick {};
  using Event = std::variant<NodeUp, NodeFailed, FromNode, LinkEnded, NodeGone, UserSignal, Tick>;

  // ---- actions
  struct ToNode {
    std::size_t node;
    rendezvous::Message message;
  };
  struct Disconnect {  ///< stop trying to reach it, or drop its link
    std::size_t node;
  };
  struct Say {  ///< for the user, one line
    std::string text;
  };
  struct Detail {  ///< a step done, for who asked for --verbose
    std::string text;
  };
  struct Dump {  ///< what is known of a rank that hangs: to be added to its file in the job directory
    std::uint32_t attempt;
    std::uint32_t rank;
    std::string text;
  };
  using Action = std::variant<ToNode, Disconnect, Say, Detail, Dump>;
  using Actions = std::vector<Action>;

  enum class State : std::uint8_t {
    kConnecting,    ///< hellos and the nodes' consent are awaited
    kBackingOff,    ///< an attempt failed; the next one has to wait
    kOpeningStore,  ///< node 0 opens the store
    kProbing,       ///< the others look for the way to it
    kRunning,
    kInspecting,  ///< the job hangs; the nodes are asked in what
    kStopping,    ///< Stop is with every node
    kLeaving,     ///< Leave is with every node
    kFinished,
  };

  explicit Supervisor(const JobSpec& spec);

  Actions start(Time now);
  Actions step(const Event& event, Time now);

  State state() const { return state_; }
  bool finished() const { return state_ == State::kFinished; }
  std::optional<Time> deadline() const { return deadline_; }
  /// How the job ended; the driver adds what only it knows (stderr lines, file names).
  const JobEnd& end() const { return failures_.end(); }
  /// Of a rank in end().failures, as FailureLog::last_words; wanted before the step that ends its attempt.
  void last_words(int rank, std::vector<std::string> lines, std::string file) {
    failures_.last_words(rank, std::move(lines), std::move(file));
  }

  std::size_t node_count() const { return nodes_.size(); }
  /// The plan, once all nodes have said hello; empty before.
  const rendezvous::RankPlan& plan() const { return plan_; }
  /// Which node runs `rank`; needs the plan, and a rank of it.
  std::size_t node_of_rank(std::uint32_t rank) const;
  std::uint32_t attempt() const { return attempt_; }
  /// Whether `rank` is one that `node` was told to run.
  bool runs(std::size_t node, std::uint32_t rank) const;

 private:
  enum class NodeState : std::uint8_t { kConnecting, kUp, kAccepted, kSpawned, kEnded, kLeaving, kGone };
  struct Node {
    NodeState state = NodeState::kConnecting;
    rendezvous::Hello hello;
    std::string connected;
    std::string local;  ///< its own address on the way to node 0
    NodeInfiniband infiniband;
    bool lost = false;            ///< its failure is known; its end is awaited
    bool told_why = false;        ///< by its agent itself
    bool start_failed = false;    ///< its failure to start is known
    bool left_processes = false;  ///< of the last attempt, which could not be ended
  };

  void on(const NodeUp& event, Time now);
  void on(const NodeFailed& event, Time now);
  void on(const FromNode& event, Time now);
  void on(const LinkEnded& event, Time now);
  void on(const NodeGone& event, Time now);
  void on(const UserSignal& event, Time now);
  bool ended_by_slurm(const Error& error) const;
  void on(const Tick& event, Time now);

  void handle(std::size_t node, const rendezvous::JobAccepted& message, Time now);
  void handle(std::size_t node, const rendezvous::Refused& message, Time now);
  void handle(std::size_t node, const rendezvous::StoreOpened& message, Time now);
  void handle(std::size_t node, const rendezvous::ProbeResult& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerStarted& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerExited& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerEvidence& message, Time now);
  void handle(std::size_t node, const rendezvous::AttemptEnded& message, Time now);
  void handle(std::size_t node, const rendezvous::Quiet& message, Time now);
  void handle(std::size_t node, const rendezvous::Inspection& message, Time now);
  /// Messages that no decision hangs on, and those that only go the other way.
  template <class M>
  void handle(std::size_t, const M&, Time) {}

  void send(std::size_t node, rendezvous::Message message);
  void detail(std::string text) { actions_.push_back(Detail{std::move(text)}); }
  /// For the user, unless --quiet.
  void tell(std::string text) {
    spec_.quiet ? actions_.push_back(Detail{std::move(text)}) : actions_.push_back(Say{std::move(text)});
  }
  void fail_start(std::size_t node, Error error, Time now);
  void make_plan(Time now);
  void begin_attempt(std::uint32_t attempt, Time now);
  void open_store();
  void send_probes(const std::vector<MasterAddress::Probe>& probes);
  Error no_way_error(std::size_t node, const std::string& text) const;
  std::string interface_for(std::size_t node) const;
  void tell_network();
  void probe_or_spawn(Time now);
  void spawn_all(Time now);
  void stop_all(std::chrono::milliseconds grace, const std::string& reason, Time now);
  void attempt_over(Time now);
  std::string why_no_restart() const;
  std::chrono::milliseconds backoff() const;
  void leave_all(Time now);
  void finish_if_gone();
  void count_as_lost(std::size_t node, Error error, Time now);
  void lose_node(std::size_t node, Error error, Time now);
  void on_start_deadline(Time now);
  void watch_for_hangs(Time now);
  void check_for_hang(Time now);
  void conclude_hang(Time now);
  bool running() const { return state_ == State::kRunning || state_ == State::kInspecting; }
  bool all(NodeState at_least) const;
  std::string missing_step(std::size_t node) const;

  const JobSpec& spec_;
  std::vector<Node> nodes_;
  State state_ = State::kConnecting;
  std::optional<Time> deadline_;
  Time start_limit_{0};  ///< when --start-timeout has run out, and the hosts had time to tell of it
  Actions actions_;
  rendezvous::RankPlan plan_;
  NetChoice network_;
  MasterAddress master_;
  FailureLog failures_;
  HangInquiry hang_;
  std::set<std::uint32_t> exited_;     ///< ranks of the attempt
  const FromNode* current_ = nullptr;  ///< the message being handled
  bool start_failed_ = false;
  bool user_wants_end_ = false;
  bool slurm_ends_ = false;  ///< its SIGTERM was taken from a node; our own is the same one
  std::uint32_t attempt_ = 0;
  std::uint16_t store_port_ = 0;
  std::string store_token_;
};

}  // namespace ddp::launcher
