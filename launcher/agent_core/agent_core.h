#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/agent_core/agent_events.h"
#include "launcher/agent_core/worker_processes.h"
#include "rendezvous/membership/node_lease.h"

namespace ddp::launcher {

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
  const rendezvous::NodeLease& lease() const { return lease_; }
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
  rendezvous::NodeLease lease_;
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
