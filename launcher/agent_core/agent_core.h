#pragma once

#include <sys/types.h>
#include <algorithm>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::launcher::node {

using Time = std::chrono::nanoseconds;  ///< the node's CLOCK_BOOTTIME

// ---- events: orders of the master. These and OpenStore, Spawn, Revoke, Stop and Leave are passed as they
// arrive.
struct JobReceived {
  Time patience;            ///< silence after which the master counts as lost; the term of the lease
  Time link_grace;          ///< SIGTERM to SIGKILL when the agent leaves without an order
  bool may_restart = true;  ///< another attempt may begin while this node is silent
};
struct Pinged {};  ///< the Pong is sent

// ---- events: this node
struct JobAccepted {  ///< this node can run workers; the answer to the master follows
  bool local;         ///< on the master's machine, which a suspension stops as well
};
struct AttemptPrepared {};  ///< answer to PrepareAttempt
struct AttemptImpossible {  ///< the other answer: nothing was started
  Error error;
};
struct WorkerStarted {
  std::uint32_t local;
  std::uint32_t pid;
  std::uint64_t clock_ns;  ///< CLOCK_MONOTONIC
};
struct WorkerExited {
  std::uint32_t local;
  rendezvous::WorkerExited exit;  ///< without attempt, rank and revoke; pid 0: it could not be started
};
struct WorkersStarted {};  ///< StartWorkers is complete
struct WorkerGreeted {
  std::uint32_t local;
  bool can_rejoin;  ///< false also once its connection has ended
};
struct WorkerReady {
  std::uint32_t local;
};
struct WorkerTroubled {
  std::uint32_t local;
  rendezvous::WorkerTrouble trouble;
};
struct WorkerLeft {  ///< the worker's answer to OrderLeave
  std::uint32_t local;
  rendezvous::WorkerRevoked answer;
};
struct LeftoversKilled {};  ///< answer to KillLeftovers
struct OutputRead {};       ///< answer to ReadOutput
struct LossesReported {};   ///< answer to ReportLosses
struct WorkersEnded {};     ///< every worker is reaped, and its output is read
struct AttemptCleaned {     ///< answer to CleanUp
  std::uint32_t left;       ///< processes that could not be killed
  std::string text;         ///< their names
};
struct LinkLost {};
struct MustLeave {  ///< this node cannot serve the job any longer
  std::string why;  ///< with a signal a participle: "stopped by SIGTERM from kill (pid 7 of user ann)"
  int signal = 0;   ///< that stopped this agent; 0: none
};
struct HeartbeatDue {  ///< once a second, or later if this process could not run
  Time silence;        ///< since the last byte of the master
};
struct Tick {};  ///< at deadline()

using Event =
    std::variant<JobReceived, Pinged, rendezvous::OpenStore, rendezvous::Spawn, rendezvous::Revoke,
                 rendezvous::Stop, rendezvous::Leave, JobAccepted, AttemptPrepared, AttemptImpossible,
                 WorkerStarted, WorkerExited, WorkersStarted, WorkerGreeted, WorkerReady, WorkerTroubled,
                 WorkerLeft, LeftoversKilled, OutputRead, LossesReported, WorkersEnded, AttemptCleaned,
                 LinkLost, MustLeave, HeartbeatDue, Tick>;

// ---- actions
struct Send {
  rendezvous::Message message;
};
struct OpenStore {  ///< open the attempt's store, and answer the master
  rendezvous::OpenStore order;
};
struct PrepareAttempt {  ///< make all that the attempt's workers need; survivors keep what they have
  rendezvous::Spawn spawn;
};
struct StartWorkers {};  ///< those that are not alive; WorkersEnded follows once all have ended
struct OrderAttempt {
  std::uint32_t local;
  rendezvous::AttemptOrder order;
};
struct OrderLeave {
  std::uint32_t local;
  rendezvous::RevokeOrder order;
};
struct TerminateWorker {
  std::uint32_t local;
};
struct KillWorker {
  std::uint32_t local;
};
struct KillLeftovers {  ///< all processes that these workers left
  std::vector<std::uint32_t> locals;
};
struct ReadOutput {};    ///< what ended workers and survivors have written
struct ReportLosses {};  ///< what explains the failure, behind all output
struct StopWorkers {     ///< `signal` now, SIGKILL after the grace; a shorter grace replaces an earlier one
  rendezvous::StopOrder order;
  int signal;
};
struct CleanUp {};  ///< after the last worker: kill what is left, report what explains the failures
struct SetLease {   ///< the keeper kills the workers then, even if this process no longer runs
  Time left;        ///< 0: never
};
struct RenewKeeper {};    ///< the agent is alive; the workers have no lease
struct CloseLink {};      ///< nothing is sent any more, but the workers' pipes are drained
struct StopPreparing {};  ///< --setup, disk checks and checks of `ddplaunch check`
struct Quit {};           ///< no worker runs: end the agent
using Action = std::variant<Send, OpenStore, PrepareAttempt, StartWorkers, OrderAttempt, OrderLeave,
                            TerminateWorker, KillWorker, KillLeftovers, ReadOutput, ReportLosses, StopWorkers,
                            CleanUp, SetLease, RenewKeeper, CloseLink, StopPreparing, Quit>;
using Actions = std::vector<Action>;

}  // namespace ddp::launcher::node

namespace ddp::launcher {

/// A worker's process, which may survive several attempts.
struct WorkerProcess {
  pid_t pid = 0;
  std::uint32_t start_attempt = 0;    ///< attempt in which it was started
  std::uint64_t started_ns = 0;       ///< the node's CLOCK_MONOTONIC
  bool can_rejoin = false;            ///< it has announced that it supports rejoining, and is connected
  bool ready = false;                 ///< it takes part in the current attempt
  bool answered = false;              ///< it has left the current attempt
  bool non_retryable = false;         ///< it reported that another attempt would fail the same way
  std::optional<std::uint64_t> held;  ///< with `answered`: the step of the state that it holds
  std::optional<std::string> killed;  ///< why a revoke killed it; empty text: it could not rejoin
};

/// The agent's record of its workers' processes by local rank (sans-IO; docs/developers/worker_protocol.md):
/// which are alive, take part or have left the attempt, and which of that the master knows.
class WorkerProcesses {
 public:
  using Map = std::map<std::uint32_t, WorkerProcess>;

  /// Starts another attempt, in which no worker takes part yet.
  void begin_attempt();
  void started(std::uint32_t local, WorkerProcess process);
  void ended(std::uint32_t local) { processes_.erase(local); }
  void greeted(std::uint32_t local, bool can_rejoin);
  void ready(std::uint32_t local);
  void answered(std::uint32_t local, std::optional<std::uint64_t> held);
  void reported_non_retryable(std::uint32_t local);
  void kill(std::uint32_t local, std::string why);

  bool is_alive(std::uint32_t local) const { return processes_.count(local) != 0; }
  bool none() const { return processes_.empty(); }
  bool can_rejoin(std::uint32_t local) const { return processes_.at(local).can_rejoin; }  ///< of a live one
  const Map& all() const { return processes_; }
  /// Returns why a revoke killed the worker; null if none did.
  const std::string* killed(std::uint32_t local) const;
  bool is_non_retryable(std::uint32_t local) const;

  /// True once per attempt: when all live workers can rejoin (greeted), or take part (ready).
  bool take_greeted_change();
  bool take_ready_change();

  /// Workers that have neither left the attempt nor been killed.
  std::vector<std::uint32_t> unanswered() const;
  std::vector<std::uint32_t> dying() const;  ///< killed, but not ended yet
  std::vector<rendezvous::Survivor> survivors() const;

 private:
  WorkerProcess* find(std::uint32_t local);

  Map processes_;
  bool greeted_reported_ = false;
  bool ready_reported_ = false;
};

/// Counts how long a node may run workers, by its own clock (sans-IO, on the agent;
/// docs/developers/states.md, "Leases").
///
/// The master sends a Ping only after the Pong to the previous Ping has arrived. So a Ping proves that the
/// master received that Pong, and the lease runs from the moment when the Pong was sent. However long the
/// network delays messages, the lease ends, by any clock, no later than `term` after the master last heard
/// this node.
class NodeLease {
 public:
  using Time = std::chrono::nanoseconds;  ///< the node's CLOCK_BOOTTIME, which includes suspension

  /// `now`: when the hello is sent.
  NodeLease(Time term, Time now) : term_(term), proven_(now), answered_(now) {}

  /// A Ping has arrived, and is answered at once.
  void pinged(Time now) {
    proven_ = answered_;
    answered_ = now;
  }
  /// The master gave an order that can only follow a message that this node sent at `sent`.
  void proven(Time sent) { proven_ = std::max(proven_, sent); }

  bool over(Time now) const { return now >= ends_at(); }
  /// The keeper kills the workers at this time, even if the agent no longer runs.
  Time ends_at() const { return proven_ + term_; }

 private:
  Time term_;
  Time proven_;    ///< when the last message that the master certainly received was sent
  Time answered_;  ///< when the last Pong was sent, which the master may not have received yet
};

/// The decisions of an agent (sans-IO). It decides which orders of the master are valid, and what the workers
/// of an attempt are ordered. It decides when they must end, and until when this node may run workers at all.
/// Agent drives it, and tests/sim drives it in virtual time.
///
/// The driver's duties:
/// 1. Pass orders and events in the order in which they happen. Carry out all actions of a step, in order,
///    before those of the next.
/// 2. Pass a Tick at deadline(), and a HeartbeatDue every second.
/// 3. Answer PrepareAttempt before any other event, and each KillLeftovers, ReadOutput, ReportLosses and
///    CleanUp once. CleanUp first waits for those that are unanswered.
/// 4. Send messages in order, behind the output that was read before.
/// 5. Make the keeper keep the time of the last SetLease, even if the agent no longer runs.
class AgentCore {
 public:
  using Time = node::Time;

  /// The states of the attempt. A revoke passes those from kAwaitingStart to kReportingLosses in this order,
  /// so that no survivor still hears from an ended worker when it leaves.
  enum class State : std::uint8_t {
    kNone,             ///< no worker lives
    kStarting,         ///< workers are being started
    kRunning,          ///< all were started
    kAwaitingStart,    ///< revoke: of workers that are still being started
    kKillingHung,      ///< revoke: hung workers, and what ended workers left
    kAwaitingAnswers,  ///< revoke: workers leave the attempt
    kKillingLate,      ///< revoke: workers that did not leave it in time
    kAwaitingDeaths,   ///< revoke: of the killed workers
    kReadingOutput,    ///< revoke: the attempt's last output
    kReportingLosses,  ///< revoke: what explains the failure is sent
    kSuspended,        ///< the survivors have no attempt; AttemptRevoked was the answer
    kStopping,         ///< all workers end
    kCleaning,         ///< all workers have ended; AttemptEnded follows
  };

  struct Settings {
    bool joined_by_itself = false;  ///< the node has a job of its own: its exit code is the whole job's
    Time kill_bound{};              ///< a worker that still lives this long after SIGKILL cannot be killed
    Time patience{};                ///< see JobReceived, until it arrives
    Time link_grace{};
    bool may_restart = true;
  };

  /// `now`: when the hello is sent.
  AgentCore(Settings settings, Time now)
      : settings_(settings), now_(now), lease_(settings.patience, now), beat_at_(now), woke_at_(now) {}

  node::Actions step(const node::Event& event, Time now);
  /// When the next Tick is due; unset: no time matters.
  std::optional<Time> deadline() const;

  State state() const { return state_; }
  bool running() const { return state_ != State::kNone; }
  /// The survivors' output belongs to the next attempt, so it is not read yet.
  bool holds_output() const { return state_ == State::kReportingLosses || state_ == State::kSuspended; }
  /// Workers have survived their attempt and wait for the next one.
  bool has_survivors() const { return state_ == State::kSuspended && !processes_.none(); }
  /// Returns whether a worker may be given the master's stdin.
  bool takes_stdin() const;
  bool leaving() const { return leaving_; }
  /// The current attempt, or the last one.
  const rendezvous::Spawn& attempt() const { return spawn_; }
  const WorkerProcesses& processes() const { return processes_; }
  const NodeLease& lease() const { return lease_; }
  /// 0 after Leave, the whole job's code on a node that joined by itself, else that of the loss.
  int exit_code() const { return exit_code_; }
  /// The master's text about the job's end, else why this agent had to leave; may be empty.
  const std::string& last_message() const { return last_message_; }

 private:
  void on(const node::JobReceived& event);
  void on(const node::Pinged& event);
  void on(const rendezvous::OpenStore& order);
  void on(const rendezvous::Spawn& order);
  void on(const rendezvous::Revoke& order);
  void on(const rendezvous::Stop& order);
  void on(const rendezvous::Leave& order);
  void on(const node::JobAccepted& event);
  void on(const node::AttemptPrepared& event);
  void on(const node::AttemptImpossible& event);
  void on(const node::WorkerStarted& event);
  void on(const node::WorkerExited& event);
  void on(const node::WorkersStarted& event);
  void on(const node::WorkerGreeted& event);
  void on(const node::WorkerReady& event);
  void on(const node::WorkerTroubled& event);
  void on(const node::WorkerLeft& event);
  void on(const node::LeftoversKilled& event);
  void on(const node::OutputRead& event);
  void on(const node::LossesReported& event);
  void on(const node::WorkersEnded& event);
  void on(const node::AttemptCleaned& event);
  void on(const node::LinkLost&);
  void on(const node::MustLeave& event);
  void on(const node::HeartbeatDue& event);
  void on(const node::Tick& event);

  template <class A>
  void act(A action) {
    actions_.emplace_back(std::move(action));
  }
  void send(rendezvous::Message message) { act(node::Send{std::move(message)}); }
  void refuse(const Error& error);
  bool is_leased() const { return accepted_at_ && (!local_ || settings_.may_restart); }
  Time wake_time() const;
  bool is_lease_over() const { return is_leased() && lease_.over(now_) && now_ >= woke_at_ + wake_time(); }
  void renew_lease();
  bool give_up_next(std::uint32_t attempt);
  void report_changes();
  void kill_hung();
  void ask_to_leave();
  void check_answers();
  void check_deaths();
  void kill_worker(std::uint32_t local, std::string why);
  void notify_survivors();
  void stop_workers(std::string reason, std::chrono::milliseconds grace, int signal = SIGTERM);
  void lose_master();
  void resign(std::string why, int signal);
  void leave(int signal = SIGTERM);

  Settings settings_;
  Time now_;
  NodeLease lease_;
  Time beat_at_;        ///< last HeartbeatDue
  Time woke_at_;        ///< when this process first ran again, after it could not, since the last Ping
  bool slept_ = false;  ///< since the last Ping: only once, or pauses without end would hold the lease open
  std::optional<Time> accepted_at_;
  bool local_ = false;
  State state_ = State::kNone;
  rendezvous::Spawn spawn_;
  rendezvous::Spawn previous_;             ///< the attempt before it
  std::optional<rendezvous::Spawn> next_;  ///< came while the workers of the last attempt end
  rendezvous::Revoke revoke_;              ///< the one that is carried out
  Time due_{0};                            ///< of the revoke's present state
  WorkerProcesses processes_;
  bool leaving_ = false;  ///< the agent's end was ordered or is forced; nothing new starts
  int exit_code_ = 0;
  std::string last_message_;
  node::Actions actions_;
};

}  // namespace ddp::launcher
