#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/hang/hang_detection.h"
#include "launcher/job/job_spec.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/failure_log.h"
#include "launcher/supervisor/attempt_start.h"
#include "launcher/supervisor/job_events.h"
#include "launcher/supervisor/node_records.h"
#include "launcher/supervisor/survivors.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The rules of a job that follow from its spec; docs/developers/states.md explains each.
struct JobRules {
  using Duration = std::chrono::nanoseconds;
  int min_nodes = 1;
  int max_nodes = 1;  ///< if equal to min_nodes, the shape of the world is fixed
  int spares = 0;
  Duration join_limit = std::chrono::seconds(120);       ///< for the nodes of each attempt to join
  Duration admission_window = std::chrono::seconds(10);  ///< for further nodes to join the first attempt
  Duration debounce = std::chrono::seconds(1);           ///< wait for related events before acting
  Duration suspect_after = std::chrono::seconds(3);
  Duration node_timeout = std::chrono::seconds(15);
  /// From the last byte heard from a node until none of its workers can still run, in every case.
  Duration lease = std::chrono::seconds(45);
  FenceMode fence = FenceMode::kRank0;
  int max_restarts = 0;
  Duration backoff = std::chrono::seconds(1);
  Duration max_backoff = std::chrono::seconds(60);
  Duration progress_after = std::chrono::seconds(60);  ///< an attempt that ran this long made progress
  int host_faults = 3;  ///< this many within fault_window exclude the host; 0: never
  Duration fault_window = std::chrono::hours(1);
  Duration cool_down = std::chrono::minutes(10);
  bool recall = true;            ///< lost hosts can be started again, once the first attempt has begun
  bool recall_at_start = false;  ///< before that, too: a lost host returns by itself (per-node mode)
  Duration recall_every = std::chrono::seconds(5);  ///< initially; doubles up to max_recall_wait
  Duration max_recall_wait = std::chrono::seconds(60);
  bool scale_up_now = false;
};
JobRules rules_of(const JobSpec& spec);

/// Decides the life of one job on the master (sans-IO), from the first hello to the last goodbye: which nodes
/// are in the job, when an attempt begins, is stopped, is followed by another, or is the last, and what
/// happens in between. It takes an event and the time, and returns actions. NodeRecords holds what is known
/// of each node. The other parts hold the state of their subjects: each takes values and returns decisions,
/// and none knows another. docs/developers/states.md lists the states, the rules and the invariants.
///
/// The driver's duties:
///   1. Call `start` once, then `step` for every event in the order in which they happened; the time never
///   goes back. The first incarnation of a host is 1. Each new link to it has the next one, and the old link
///   is closed.
///   2. Carry out all actions of a step, in order, before the next event. Drop messages to a node that is
///   gone.
///   3. Call `step(Tick)` no later than `deadline()`. A Tick that is a second late means that this process
///   slept; silence of others during that time does not count. Ping a node only when it has answered the last
///   Ping, since its lease depends on that (NodeLease).
///   4. Stop when `finished()`; no message follows. `end()` then says how the job ended.
class Supervisor {
 public:
  using Time = job::Time;

  enum class State : std::uint8_t {  // each with the meaning of its deadline
    kConnecting,  ///< waiting for enough nodes, and for the end of all leases: --start-timeout
    kBackingOff,  ///< an attempt failed, and the next one has to wait: the end of the wait
    kStarting,    ///< node rank 0 opens the store, and the other nodes probe it: --start-timeout
    kRunning,     ///< workers run; if the job hangs, the nodes inspect them: none
    kStopping,    ///< Stop or Revoke was sent to every node: a node that has not ended its part is lost
    kEnding,      ///< no attempt follows; lost nodes and survivors end their workers: they have not
    kLeaving,     ///< Leave was sent to every node: the links are closed
    kFinished,
  };

  explicit Supervisor(const JobSpec& spec) : Supervisor(spec, rules_of(spec)) {}
  Supervisor(const JobSpec& spec, const JobRules& rules);

  job::Actions start(Time now);
  job::Actions step(const job::Event& event, Time now);

  State state() const { return state_; }
  bool finished() const { return state_ == State::kFinished; }
  std::optional<Time> deadline() const;
  /// Says how the job ended. The driver adds what only it knows (stderr lines, file names).
  const JobEnd& end() const { return failures_.end(); }
  /// Returns the failure of a rank of this attempt; null: none.
  const Failure* worker_failure(int rank) const { return failures_.worker_failure(rank); }
  /// Passes the last output of a rank in end().failures to FailureLog::set_last_output. Call it before the
  /// step that ends the attempt of the rank.
  void set_last_output(int rank, std::vector<std::string> lines, std::string file) {
    failures_.set_last_output(rank, std::move(lines), std::move(file));
  }
  /// Sets the step at which the connection to a node is. Call it before a Tick or a UserSignal.
  void set_start_step(std::size_t node, const char* step) { nodes_[node].start_step = step; }
  const NodeRecords& nodes() const { return nodes_; }
  const AttemptRanks& ranks() const { return ranks_; }

 private:
  using NodeState = NodeRecords::State;
  /// Time beyond the grace in which an agent kills, reaps and drains. After it the node counts as lost.
  static constexpr std::chrono::seconds kStopSlack{10};
  /// Time for a sweep of a lost node's host; the driver needs less.
  static constexpr std::chrono::seconds kSweepTime{15};
  enum class StopCause : std::uint8_t { kFailure, kScaleUp, kUser };
  enum class Outcome : std::uint8_t {
    kDone,
    kFailed,  ///< a worker failed, or the attempt as a whole
    kNodeLost,
    kTooFew,     ///< too few nodes within the join limit
    kLeftovers,  ///< processes of an attempt could not be killed; no attempt may run beside them
    kUser,
  };
  /// Why the attempt ends. Reset at the begin of the next.
  struct AttemptEnd {
    std::optional<StopCause> cause;  ///< unset: it was not stopped
    Outcome outcome = Outcome::kDone;
    std::string reason = {};
    bool non_retryable = false;                     ///< every attempt would end the same way
    bool revoked = false;                           ///< its workers survive
    std::optional<std::uint32_t> failed_rank = {};  ///< still runs, and must not survive
  };
  /// What the master does with the link of a node that it gives up.
  enum class Parting : std::uint8_t {
    kNone,        ///< its end follows
    kGone,        ///< it has ended
    kDisconnect,  ///< it is cut
    kLeave,       ///< its agent is sent away
  };

  // ---- nodes come and go (supervisor_nodes.cc)
  void on(const job::NodeUp& event, Time now);
  void on(const job::NodeFailed& event, Time now);
  void on(const job::NodeHeartbeat& event, Time now);
  void on(const job::NodeReachable& event, Time now);
  void on(const job::FromNode& event, Time now);
  void on(const job::LinkEnded& event, Time now);
  void on(const job::NodeGone& event, Time now);
  void on(const job::NodeSwept& event, Time now);
  void handle(const job::FromNode& from, const rendezvous::JobAccepted& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::Refused& message, Time now);
  void join(std::size_t node, Time now);
  void absent(std::size_t node, Error error, Time now);
  void lose(std::size_t node, Error error, Parting parting, Time now);
  void close_link(std::size_t node);
  void lose_silent(Time now);
  void lose_unended(Time now);
  Time given_up_at(std::size_t node) const;
  bool fences(std::size_t node) const;
  void take_as_failed(std::size_t node, Error error, Interval happened, Time now);
  void prove_empty(std::size_t node, std::uint32_t incarnation, Time now);
  void report_leftovers(std::size_t node, std::uint32_t left, Time now);
  void charge(std::size_t node, Time now);
  void charge_root_cause(Time now);
  void recall_later(std::size_t node, Time now);
  void recall_due(Time now);
  void fail_early(Time now);
  void give_up_slow_joins(Time now);
  void send_away(std::size_t node, rendezvous::Leave leave);

  // ---- from waiting nodes to running workers (supervisor_attempts.cc)
  /// Returns the number of the running attempt, or of the next one.
  std::uint32_t attempt() const;
  void gather(Time now);
  void try_begin(Time now);
  bool nodes_are_ready(Time now);
  bool wait_for_leases(bool fenced_only, Time now);
  bool dismiss_survivors(const rendezvous::World& world);
  std::optional<rendezvous::SlotTable> assign_slots(Time now) const;
  std::vector<rendezvous::SlotTable::Candidate> candidates(bool excluded_too, Time now) const;
  void wait_for(std::string what, std::optional<Time> until);
  void on_join_limit(Time now);
  std::string missing() const;
  void begin(rendezvous::SlotTable slot_table, Time now);
  void report_change(const rendezvous::World& world);
  void handle(const job::FromNode& from, const rendezvous::StoreOpened& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::ProbeResult& message, Time now);
  void follow_start(std::size_t node, AttemptStart::Step step, Time now);
  void spawn_all(Time now);
  void fail_start(std::size_t node, Error error, Time now);
  void on_start_deadline(Time now);
  std::string awaited() const;

  // ---- the end of an attempt (supervisor_attempts.cc)
  void consider_growth(Time now);
  void stop(AttemptEnd why, Time now);
  void stop_all(bool revoke, bool failure, std::chrono::milliseconds grace, const std::string& reason,
                Time now);
  void end_part(std::size_t node, Time now);
  void attempt_over(Time now);
  void back_off(const std::string& reason, Time wait, Time now);
  bool restart_left() const { return restarts_ < rules_.max_restarts; }
  bool another_follows() const;
  bool survivors_wait() const;
  rendezvous::Stop stop_order(const NodeRecords::Node& node, std::chrono::milliseconds grace,
                              const std::string& reason) const;
  void end_survivors(std::size_t node, std::chrono::milliseconds grace, const std::string& reason);

  // ---- while workers run (supervisor_workers.cc)
  void handle(const job::FromNode& from, const rendezvous::WorkerStarted& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::WorkerExited& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::WorkerEvidence& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::WorkerCollectives& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::AttemptEnded& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::Quiet& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::Inspection& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::WorkersGreeted& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::WorkersReady& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::WorkerInTrouble& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::AttemptRevoked& message, Time now);
  /// Ignores messages that need no decision, and messages that only the master sends.
  template <class M>
  void handle(const job::FromNode&, const M&, Time) {}
  void on(const job::WatchedLine& event, Time now);
  void survivors_gone(std::size_t node, std::uint32_t left, Time now);
  void check_attempt(Time now);
  void begin_inspection(HangInvestigation::Purpose purpose, Time now, std::string cause = {});
  std::string hang_files() const;
  void name_hang();
  void end_inspection(Time now);
  void job_continues(const std::string& reason, Time now);
  void answer_user();

  // ---- the job as a whole (supervisor.cc)
  void on(const job::UserSignal& event, Time now);
  void on(const job::AskHang& event, Time now);
  bool user_stopped() const { return !user_signals_.empty(); }
  bool has_come(int signal) const { return std::ranges::count(user_signals_, signal) > 0; }
  bool cuts_grace_short(const job::UserSignal& event, Time now) const;
  std::string cutter_text(const job::UserSignal& event, Time now) const;
  void on(const job::Tick& event, Time now);
  void on_deadline(Time now);
  void end(Outcome outcome, const std::string& reason, std::string no_restart, Time now);
  void leave_when_quiet(Time now);
  void name_unproven_nodes();
  /// Adds a change of state to the journal, with its node and the attempt.
  void record(JournalEvent event, std::optional<std::size_t> node = {});

  const JobSpec& spec_;
  const JobRules rules_;
  NodeRecords nodes_;
  rendezvous::SlotTable slot_table_;
  StartNotice start_notice_;
  AttemptStart start_;      ///< of the attempt
  AttemptRanks ranks_;      ///< of the attempt
  HangInvestigation hang_;  ///< of the attempt, by participant
  Survivors survivors_;
  FailureLog failures_;
  Outbox out_;

  State state_ = State::kConnecting;
  std::optional<Time> deadline_;  ///< of the state
  Time watch_at_{0};              ///< next check for silent nodes
  // kConnecting
  Time join_limit_at_{0};         ///< of --start-timeout; the deadline may be earlier, or later
  std::optional<Time> retry_at_;  ///< admission window, leases
  std::optional<Time> admission_window_;
  std::string waiting_for_;  ///< as reported
  // an attempt
  Time began_{0};
  bool made_progress_ = false;
  bool hang_found_ = false;  ///< recorded, and not over
  bool hang_asked_ = false;  ///< by a user who has no answer yet
  std::optional<Time> growth_at_;
  AttemptEnd attempt_end_;
  // the job
  int restarts_ = 0;  ///< charged to the budget
  int no_progress_ = 0;
  std::string leftovers_;          ///< processes that could not be killed
  std::vector<int> user_signals_;  ///< stop signals that have come, each once
  Time first_signal_at_{0};
  bool slurm_ends_ = false;    ///< a node reported Slurm's SIGTERM; the master's own is the same stop
  rendezvous::Leave goodbye_;  ///< carries the job's result once it is known
};

}  // namespace ddp::launcher
