#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/hang/hang_investigation.h"
#include "launcher/job/job_spec.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/failure_log.h"
#include "launcher/supervisor/job_events.h"
#include "launcher/supervisor/master_address.h"
#include "launcher/supervisor/net_choice.h"
#include "launcher/supervisor/network_text.h"
#include "launcher/supervisor/survivors.h"
#include "rendezvous/membership/membership.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Decides the life of one job on the master (sans-IO), from the first hello to the last goodbye. It takes an
/// event and the time, and returns actions. The Membership that it owns decides which nodes are in the job,
/// when an attempt begins, and what follows its end. The Supervisor decides what happens within an attempt.
/// docs/developers/states.md lists the states.
///
/// The driver's duties:
///   1. Call `start` once, then `step` for every event in the order in which they happened. The first
///   incarnation of a host is 1. Each new link to it has the next one, and the old link is closed.
///   2. Carry out all actions of a step, in order, before the next event. Drop messages to a node that is
///   gone.
///   3. Call `step(Tick)` no later than `deadline()`. Ping a node only when it has answered the last Ping.
///   4. Stop when `finished()`; no message follows. `end()` then says how the job ended.
class Supervisor {
 public:
  using Time = job::Time;

  enum class State : std::uint8_t {
    kConnecting,    ///< waiting for enough nodes and their consent to the job
    kBackingOff,    ///< an attempt failed; the next one has to wait
    kOpeningStore,  ///< node rank 0 opens the store
    kProbing,       ///< the other nodes probe the addresses of the store
    kRunning,
    kInspecting,  ///< the job hangs; the nodes inspect their workers
    kStopping,    ///< Stop was sent to every node
    kLeaving,     ///< Leave was sent to every node
    kFinished,
  };

  /// Time from the first exit with 0 of an attempt to the notice that other ranks still run.
  static constexpr std::chrono::seconds kEarlyExitNotice{60};
  /// Time until a start that takes long is reported, and then every second.
  static constexpr std::chrono::seconds kLongStart{3};

  explicit Supervisor(const JobSpec& spec);

  job::Actions start(Time now);
  job::Actions step(const job::Event& event, Time now);

  State state() const { return state_; }
  bool finished() const { return state_ == State::kFinished; }
  std::optional<Time> deadline() const;
  /// Says how the job ended. The driver adds what only it knows (stderr lines, file names).
  const JobEnd& end() const { return failures_.end(); }
  /// Passes the last output of a rank in end().failures to FailureLog::set_last_output. Call it before the
  /// step that ends the attempt of the rank.
  void set_last_output(int rank, std::vector<std::string> lines, std::string file) {
    failures_.set_last_output(rank, std::move(lines), std::move(file));
  }

  /// Sets the step at which the connection to a node is. Call it before a Tick or a UserSignal.
  void set_start_step(std::size_t node, const char* step) { nodes_[node].start_step = step; }

  std::size_t node_count() const { return nodes_.size(); }
  /// Returns the node's name as the user knows it.
  const std::string& name(std::size_t node) const { return nodes_[node].name; }
  /// Returns the world of the attempt; empty before the first.
  const rendezvous::World& world() const { return world_; }
  /// Returns the node's assignment in the attempt; null: it has none.
  const rendezvous::RankAssignment* assignment(std::size_t node) const;
  /// Returns the node that runs `rank`, one of the world's.
  std::size_t node_of_rank(std::uint32_t rank) const;
  std::uint32_t attempt() const { return attempt_; }
  /// True when `node` was assigned `rank`.
  bool runs(std::size_t node, std::uint32_t rank) const;
  /// Returns the local rank of `rank` in the last attempt that the node spawned. Workers of that attempt may
  /// still live while the next one begins.
  std::optional<int> ran(std::size_t node, std::uint32_t attempt, std::uint32_t rank) const;

 private:
  /// kWaiting: the node's workers live and have left their attempt.
  enum class NodeState : std::uint8_t {
    kConnecting,
    kUp,
    kAccepted,
    kSpawned,
    kWaiting,
    kEnded,
    kLeaving,
    kGone
  };
  struct NodeTrouble {
    Error error;
    Time at{0};
  };
  struct Predecessor {
    std::uint32_t incarnation = 0;
    std::string machine;  ///< machine on which the PIDs are valid (machine_of)
    std::vector<std::uint32_t> pids;
  };
  struct Node {
    std::string name;
    NodeState state = NodeState::kConnecting;
    std::uint32_t incarnation = 0;
    rendezvous::Hello hello;
    std::string connected;
    const char* start_step = "connecting";  ///< until the agent's hello
    std::string local;                      ///< its own address on the way to node rank 0
    NodeInfiniband infiniband;
    std::string slots_reason;                     ///< why it runs this number of workers
    std::optional<std::size_t> participant;       ///< its index in the attempt
    bool lost = false;                            ///< its failure is known; its end is awaited
    bool reason_reported = false;                 ///< the reason of its failure was reported
    Time up_at{0};                                ///< when it said hello
    std::uint32_t spawned = 0;                    ///< the last attempt that its workers joined
    rendezvous::RankAssignment ran;               ///< its ranks in that attempt
    std::vector<std::uint32_t> worker_pids;       ///< by local rank, of the last start; 0: unknown
    std::optional<Predecessor> predecessor;       ///< a lost incarnation whose workers may live
    std::vector<rendezvous::Survivor> survivors;  ///< while in kWaiting
    bool ending = false;                          ///< its workers left all attempts and are being ended
    std::optional<NodeTrouble> trouble;           ///< why it is absent
  };
  struct MembershipUpdate {  ///< an event for the Membership
    rendezvous::MemberEvent event;
    std::size_t node = 0;
    std::uint32_t incarnation = 0;
    std::uint32_t attempt = 0;
  };

  void on(const job::NodeUp& event, Time now);
  void on(const job::NodeFailed& event, Time now);
  void on(const job::NodeHeartbeat& event, Time now);
  void on(const job::FromNode& event, Time now);
  void on(const job::LinkEnded& event, Time now);
  void on(const job::NodeGone& event, Time now);
  void on(const job::UserSignal& event, Time now);
  void on(const job::Tick& event, Time now);
  bool ended_by_slurm(const Error& error) const;
  bool only_stopped_by(int signal) const;

  void handle(std::size_t node, const rendezvous::JobAccepted& message, Time now);
  void handle(std::size_t node, const rendezvous::Refused& message, Time now);
  void handle(std::size_t node, const rendezvous::StoreOpened& message, Time now);
  void handle(std::size_t node, const rendezvous::ProbeResult& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerStarted& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerExited& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerEvidence& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerCollectives& message, Time now);
  void handle(std::size_t node, const rendezvous::AttemptEnded& message, Time now);
  void handle(std::size_t node, const rendezvous::Quiet& message, Time now);
  void handle(std::size_t node, const rendezvous::Inspection& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkersGreeted& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkersReady& message, Time now);
  void handle(std::size_t node, const rendezvous::WorkerInTrouble& message, Time now);
  void handle(std::size_t node, const rendezvous::AttemptRevoked& message, Time now);
  /// Ignores messages that need no decision, and messages that only the master sends.
  template <class M>
  void handle(std::size_t, const M&, Time) {}

  // Events for the Membership, and its decisions.
  void inform(std::size_t node, rendezvous::MemberEvent event);
  void inform(rendezvous::MemberEvent event);
  void follow_membership(Time now);
  void carry_out(const rendezvous::Begin& action, Time now);
  void carry_out(const rendezvous::StopAttempt& action, Time now);
  void carry_out(const rendezvous::Drop& action, Time now);
  void carry_out(const rendezvous::RecallHost& action, Time now);
  void carry_out(const rendezvous::NotifyUser& action, Time now);
  void carry_out(const rendezvous::BackOff& action, Time now);
  void carry_out(const rendezvous::EndJob& action, Time now);
  void absent(std::size_t node, Error error, Time now);
  void lose(std::size_t node, Error error, Time now);
  void take_loss(std::size_t node, const Error& error, Time now);
  bool can_see_predecessor(std::size_t node) const;
  std::string name_of_joined(std::size_t node) const;
  void take_as_failed(std::size_t node, Error error, Time now);
  void report_missing(bool at_start, Time now);

  void send(std::size_t node, rendezvous::Message message);
  void send_away(std::size_t node);
  void send_away(std::size_t node, const Error& error);
  void give_up_slow_joins(Time now);
  rendezvous::ProcsWanted workers_wanted(const rendezvous::Hello& hello) const;
  void detail(std::string text) { actions_.emplace_back(job::Detail{std::move(text)}); }
  void say(std::string text) { actions_.emplace_back(job::PrintLine{std::move(text)}); }
  /// For the user, unless --quiet.
  void notify(std::string text) { spec_.quiet ? detail(std::move(text)) : say(std::move(text)); }
  void report_start();
  bool choose_network();
  void open_store();
  std::vector<std::string> store_guests(bool all) const;
  void send_probes(const std::vector<MasterAddress::AddressProbe>& probes);
  Error no_route_error(std::size_t participant, const std::string& text) const;
  std::string interface_for(std::size_t participant) const;
  void report_network();
  void probe_or_spawn(Time now);
  void spawn_all(Time now);
  void fail_start(std::size_t node, Error error, Time now);
  void on_start_deadline(Time now);
  void stop_all(std::chrono::milliseconds grace, const std::string& reason, Time now);
  void revoke_all(const std::string& reason, Time now);
  void end_survivors(std::size_t node, std::chrono::milliseconds grace, const std::string& reason);
  void survivors_gone(std::size_t node, std::uint32_t left, Time now);
  void report_early_exits(Time now);
  /// Says that the user's signal stops the workers, and when they are killed.
  void say_stopping(int signal);
  void report_stop(std::chrono::milliseconds grace);
  void report_lost_survivor(std::size_t node, const rendezvous::WorkerExited& message);
  void shorten_stop(Time now);
  std::optional<Survivors::StateSource> source_of_state() const;
  void report_source();
  void report_ready(Time now);
  void check_survivors(Time now);
  void on_stop_deadline(Time now);
  void leave_when_quiet(Time now);
  void leave_all(Time now);
  void finish_if_gone();
  void arm_running();
  void monitor_hangs(Time now);
  void check_for_hang(Time now);
  void conclude_hang(Time now);
  bool running() const { return state_ == State::kRunning || state_ == State::kInspecting; }
  bool starting() const { return state_ == State::kOpeningStore || state_ == State::kProbing; }
  bool in_attempt() const { return starting() || running() || state_ == State::kStopping; }
  std::size_t node_of(std::size_t participant) const { return world_.assignments[participant].host; }
  /// Returns the node's participant if `attempt` is the current one and the node runs it. Returns nothing for
  /// a node that is lost, or whose agent only ends the workers of an earlier attempt. Worker messages of such
  /// nodes are ignored.
  std::optional<std::size_t> running_participant(std::size_t node, std::uint32_t attempt) const;
  Node& participant_node(std::size_t participant) { return nodes_[node_of(participant)]; }
  const Node& participant_node(std::size_t participant) const { return nodes_[node_of(participant)]; }
  std::string missing_step(std::size_t node) const;
  std::string awaited_text() const;
  void report_waiting(Time now);

  const JobSpec& spec_;
  std::vector<Node> nodes_;
  rendezvous::Membership membership_;
  std::deque<MembershipUpdate> updates_;
  State state_ = State::kConnecting;
  std::optional<Time> deadline_;
  Time started_at_{0};
  std::optional<Time> waiting_check_;  ///< when to look again at what the first attempt waits for
  Time waiting_due_{0};                ///< time from the start to the next line in a log
  bool waiting_shown_ = false;
  Time start_limit_{0};  ///< end of --start-timeout, plus time for the hosts' reports
  job::Actions actions_;
  rendezvous::World world_;
  NetChoice network_;
  MasterAddress master_;  ///< by participant
  FailureLog failures_;
  HangInvestigation hang_;                        ///< by participant
  Survivors survivors_;                           ///< by participant
  std::vector<std::uint32_t> hung_;               ///< ranks that a revoke must kill
  std::optional<Survivors::StateSource> source_;  ///< the rank whose state this attempt uses
  Time revoked_at_{0};                            ///< when the previous attempt was revoked
  std::set<std::uint32_t> exited_;                ///< ranks of the attempt that have ended
  std::optional<Time> early_exit_notice_;         ///< when to report ranks that exited 0
  const job::FromNode* current_ = nullptr;        ///< the message being handled
  std::optional<std::size_t> joining_;            ///< the node whose join the Membership handles
  std::string stop_reason_;                       ///< reason of the stop that the Membership will order
  bool user_wants_end_ = false;
  bool growing_ = false;       ///< the attempt is stopped without a failure
  bool revoking_ = false;      ///< the attempt is stopped, and its workers survive
  rendezvous::Leave goodbye_;  ///< carries the job's result once it is known
  bool ended_ = false;         ///< the Membership has ended the job; lost nodes may still end workers
  std::size_t left_ = 0;       ///< while in kLeaving: all nodes before this one are gone
  bool slurm_ends_ = false;    ///< a node reported Slurm's SIGTERM; the master's own is the same stop
  std::uint32_t attempt_ = 0;
  std::uint16_t store_port_ = 0;
  std::string store_token_;
};

}  // namespace ddp::launcher
