#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/hang/hang_investigation.h"
#include "launcher/job/job_spec.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/failure_log.h"
#include "launcher/supervisor/attempt_ranks.h"
#include "launcher/supervisor/attempt_start.h"
#include "launcher/supervisor/job_events.h"
#include "launcher/supervisor/node_table.h"
#include "launcher/supervisor/outbox.h"
#include "launcher/supervisor/start_report.h"
#include "launcher/supervisor/survivors.h"
#include "rendezvous/membership/membership.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Decides the life of one job on the master (sans-IO), from the first hello to the last goodbye. It takes an
/// event and the time, and returns actions. The Membership that it owns decides which nodes are in the job,
/// when an attempt begins, and what follows its end. The Supervisor decides what happens within an attempt.
/// Its parts hold the state of their subjects: each takes values and returns decisions, and none knows
/// another. docs/developers/states.md lists the states.
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
    kConnecting,  ///< waiting for enough nodes and their consent to the job
    kBackingOff,  ///< an attempt failed; the next one has to wait
    kStarting,    ///< node rank 0 opens the store, and the other nodes probe it (AttemptStart)
    kRunning,     ///< workers run; if the job hangs, the nodes inspect them (HangInvestigation)
    kStopping,    ///< Stop or Revoke was sent to every node
    kLeaving,     ///< Leave was sent to every node
    kFinished,
  };

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
  const NodeTable& nodes() const { return nodes_; }

 private:
  using NodeState = NodeTable::State;
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

  void handle(const job::FromNode& from, const rendezvous::JobAccepted& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::Refused& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::StoreOpened& message, Time now);
  void handle(const job::FromNode& from, const rendezvous::ProbeResult& message, Time now);
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

  // The Membership's decisions.
  void carry_out(const rendezvous::Begin& action, Time now);
  void carry_out(const rendezvous::StopAttempt& action, Time now);
  void carry_out(const rendezvous::Drop& action, Time now);
  void carry_out(const rendezvous::RecallHost& action, Time now);
  void carry_out(const rendezvous::NotifyUser& action, Time now);
  void carry_out(const rendezvous::BackOff& action, Time now);
  void carry_out(const rendezvous::EndJob& action, Time now);

  /// Adds a change of state to the journal, with its node and the attempt.
  void record(JournalEvent event, std::optional<std::size_t> node = {});
  /// Informs the Membership of an event of a node, or of one that concerns no single node.
  void inform(rendezvous::MemberEvent event, std::optional<std::size_t> node = {});
  void absent(std::size_t node, Error error, Time now);
  void lose(std::size_t node, Error error, Time now);
  void take_as_failed(std::size_t node, Error error, Time now);
  void send_away(std::size_t node, rendezvous::Leave leave);
  void give_up_slow_joins(Time now);
  std::string awaited() const;
  void follow_start(std::size_t node, AttemptStart::Step step, Time now);
  void spawn_all(Time now);
  void fail_start(std::size_t node, Error error, Time now);
  void on_start_deadline(Time now);
  void check_attempt(Time now);
  void fail_attempt(std::string error, std::string reason, Time now);
  void stop_all(bool revoke, bool failure, std::chrono::milliseconds grace, const std::string& reason,
                Time now);
  void end_survivors(std::size_t node, std::chrono::milliseconds grace, const std::string& reason);
  void survivors_gone(std::size_t node, std::uint32_t left, Time now);
  void on_stop_deadline(Time now);
  void leave_when_quiet(Time now);

  const JobSpec& spec_;
  NodeTable nodes_;
  rendezvous::Membership membership_;
  std::deque<MembershipUpdate> updates_;
  std::optional<std::size_t> joining_;  ///< the node whose join the Membership handles
  StartNotice start_notice_;
  AttemptStart start_;      ///< of the attempt
  AttemptRanks ranks_;      ///< of the attempt
  HangInvestigation hang_;  ///< of the attempt, by participant
  Survivors survivors_;
  FailureLog failures_;
  Outbox out_;
  State state_ = State::kConnecting;
  std::optional<Time> deadline_;  ///< of the state; that of kRunning is in the parts
  Time start_limit_{0};           ///< end of --start-timeout, plus time for the hosts' reports
  bool user_wants_end_ = false;
  bool slurm_ends_ = false;    ///< a node reported Slurm's SIGTERM; the master's own is the same stop
  std::string stop_reason_;    ///< reason of the stop that the Membership will order
  bool growing_ = false;       ///< the attempt is stopped without a failure
  bool revoking_ = false;      ///< the attempt is stopped, and its workers survive
  bool ended_ = false;         ///< the Membership has ended the job; lost nodes may still end workers
  rendezvous::Leave goodbye_;  ///< carries the job's result once it is known
};

}  // namespace ddp::launcher
