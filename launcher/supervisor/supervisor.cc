// The Supervisor as a whole: its rules, a step, the clock, the user's signals, and the end of the job. Its
// other parts are supervisor_nodes.cc, supervisor_attempts.cc and supervisor_workers.cc.
#include "launcher/supervisor/supervisor.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "base/exit_status.h"
#include "base/result.h"
#include "base/text.h"
#include "launcher/report/host_texts.h"
#include "launcher/supervisor/attempt_start.h"
#include "remote/hosts/host.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Journal = JournalEvent::Kind;

/// Time from Leave to the end of the link.
constexpr seconds kLeaveTime{5};
constexpr seconds kSilenceSlack{1};
/// Time after an agent's start limit for the start's own report, which names the step and the host's last
/// lines.
constexpr milliseconds kReportTime{300};
/// Time a node's keeper may take to kill its workers after the lease ends.
constexpr seconds kKeeperKills{5};
constexpr milliseconds kListenerOpens{100};
/// The back-off doubles up to this value, unless the user sets a longer first one.
constexpr seconds kMaxBackoff{60};
/// Time for a lost node to end its workers when the job has ended while no attempt was running.
constexpr seconds kLastWait{5};
/// A signal may reach the processes of a job one after the other. After a node has reported its own, the
/// master waits for its own this long before it counts the node as lost.
constexpr seconds kSignalSpread{2};
/// The user's signals within this time after the first are one request.
constexpr seconds kSameRequest{1};
/// If a Tick is late by more than this, this process slept, and the others were not silent.
constexpr seconds kOverslept{1};

/// A signal may be sent to all processes of a job, in any order. A node that reports it before the master
/// gets its own is no failure. Workers that were stopped for it are none either.
bool only_stopped_by(int signal, const JobEnd& end) {
  return std::all_of(end.failures.begin(), end.failures.end(), [signal](const Failure& failure) {
    const bool reported = failure.kind == Failure::Kind::kNode &&
                          failure.error.code == ErrorCode::kLinkLost && failure.error.sys == signal;
    return reported || failure.stopped_by_us;
  });
}

bool is_stop_signal(int number) {
  return number == SIGTERM || number == SIGINT || number == SIGHUP;
}

/// Says that the user's signal stops the workers, and when they are killed.
std::string stopping_text(int signal, milliseconds grace) {
  const bool key = signal == SIGINT;
  return (key ? "" : signal_name(signal) + ": ") + "stopping the workers; SIGKILL in " +
         format_duration(grace) +
         (key                 ? " (Ctrl-C again: now)"
          : signal == SIGTERM ? " (again: now)"
                              : "");
}

}  // namespace

JobRules rules_of(const JobSpec& spec) {
  JobRules rules;
  const auto hosts = static_cast<int>(hosts_used(spec));
  rules.spares = spec.spares;
  rules.max_nodes = std::max(1, hosts - spec.spares);
  rules.min_nodes = spec.min_nodes == 0 ? rules.max_nodes : std::min(spec.min_nodes, rules.max_nodes);
  rules.join_limit = spec.start_timeout + kReportTime;
  rules.node_timeout = spec.node_timeout;
  // The formula of docs/developers/states.md, "Leases". Agent and keeper act on the first two terms, so a
  // change here alone breaks I1.
  rules.lease = node_lease(spec) + link_grace(spec) + kKeeperKills;
  rules.max_restarts = spec.max_restarts;
  rules.backoff = spec.restart_backoff;
  rules.max_backoff = std::max<milliseconds>(kMaxBackoff, spec.restart_backoff);
  if (spec.launcher == LauncherKind::kJoin) {  // nodes connect by themselves; a recall opens the listener
    rules.recall_every = rules.max_recall_wait = kListenerOpens;
    rules.recall_at_start = true;
  }
  rules.scale_up_now = spec.scale_up_now;
  rules.fence = spec.fence;
  return rules;
}

Supervisor::Supervisor(const JobSpec& spec, const JobRules& rules)
    : spec_(spec),
      rules_(rules),
      nodes_(spec),
      slot_table_(rules.max_nodes, rules.min_nodes == rules.max_nodes),
      out_(spec.quiet) {}

job::Actions Supervisor::start(Time now) {
  record({.kind = Journal::kJobStarted, .job = spec_.job_id});
  failures_.begin_attempt(0, now);
  failures_.name_job("job " + spec_.job_id, spec_.job_dir);
  start_notice_.begin(now);
  watch_at_ = now;
  gather(now);
  return step(job::Tick{}, now);
}

job::Actions Supervisor::step(const job::Event& event, Time now) {
  if (state_ == State::kFinished) return {};
  // Before the event is handled: a message that arrived during the sleep must find a clock without it.
  if (now > watch_at_ + kOverslept) {
    nodes_.forgive_silence(now - watch_at_, now);
    watch_at_ = now;
  }
  std::visit([&](const auto& e) { on(e, now); }, event);
  // After every event and not where the job ends: the last thing that is awaited may be a sweep, a lost
  // node's workers, or only time.
  leave_when_quiet(now);
  if (state_ == State::kLeaving && nodes_.all_gone()) {
    state_ = State::kFinished;
    deadline_.reset();
  }
  const bool first_start =
      nodes_.attempt() == 0 && (state_ == State::kConnecting || state_ == State::kStarting);
  // Last, since the event may have ended the start: the line about the wait must go before the lines that
  // follow it.
  if (!first_start) {
    if (auto removal = start_notice_.end()) out_.add(*removal);
  } else if (start_notice_.is_due(now)) {
    // In per-node mode the listener itself reports the nodes that it waits for.
    const bool is_reported = spec_.launcher == LauncherKind::kJoin && state_ == State::kConnecting;
    if (auto notice = start_notice_.show(spec_.quiet || is_reported ? "" : awaited(), now))
      out_.add(std::move(*notice));
  }
  return out_.take_actions();
}

std::optional<Supervisor::Time> Supervisor::deadline() const {
  if (state_ == State::kFinished) return {};
  std::optional<Time> first = deadline_;
  const auto consider = [&first](std::optional<Time> due) {
    if (due && (!first || *due < *first)) first = due;
  };
  // Only what the state heeds counts here. A deadline that no handler resets would make the driver tick
  // without pause.
  consider(start_notice_.deadline());
  if (state_ < State::kEnding) consider(watch_at_);
  if (state_ == State::kConnecting) consider(retry_at_);
  if (state_ == State::kRunning) {
    consider(growth_at_);
    consider(hang_.deadline());
    // check_attempt() waits for the inspection first, so these two would be due again and again until it
    // ends.
    if (hang_.inspecting()) return first;
    consider(survivors_.deadline());
    consider(ranks_.deadline());
  }
  return first;
}

void Supervisor::record(JournalEvent event, std::optional<std::size_t> node) {
  if (node) event.node = nodes_[*node].name;
  if (!event.attempt && nodes_.begun()) event.attempt = nodes_.attempt();
  out_.add(std::move(event));
}

void Supervisor::on(const job::FromNode& event, Time now) {
  // A link of an earlier incarnation may still deliver what it had buffered when the host was called again.
  if (event.incarnation != nodes_[event.node].incarnation) return;
  std::visit([&](const auto& message) { handle(event, message, now); }, event.message);
}

void Supervisor::on(const job::Tick&, Time now) {
  // A quarter of the shortest limit: silence is noticed at most that much too late.
  if (state_ < State::kEnding && now >= watch_at_) {
    watch_at_ = now + std::clamp<Time>(std::min(rules_.suspect_after, rules_.node_timeout) / 4,
                                       milliseconds(10), seconds(1));
    lose_silent(now);
    if (state_ < State::kEnding) recall_due(now);
  }
  if (state_ == State::kRunning && growth_at_ && now >= *growth_at_) consider_growth(now);
  give_up_slow_joins(now);
  if (state_ == State::kRunning) check_attempt(now);
  if (deadline_ && now >= *deadline_) on_deadline(now);
  // Last, because the handlers above may lose the nodes with which the attempt would begin.
  if (state_ == State::kConnecting && retry_at_ && now >= *retry_at_) try_begin(now);
}

void Supervisor::on_deadline(Time now) {
  switch (state_) {
    case State::kConnecting: return on_join_limit(now);
    case State::kBackingOff: return gather(now);
    case State::kStarting: return on_start_deadline(now);
    case State::kStopping:
    case State::kEnding: return lose_unended(now);
    case State::kLeaving:
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].state == NodeState::kGone) continue;
        nodes_.enter(i, NodeState::kGone);
        out_.disconnect(i);
      }
      return;
    case State::kRunning:
    case State::kFinished:
      // These states have no deadline. One that is left over from another state would end a job that runs.
      DDP_REQUIRE(!deadline_, state_);
  }
}

// ---- the user

void Supervisor::on(const job::UserSignal& event, Time now) {
  record({.kind = Journal::kSignal, .reason = event.by, .signal = event.number});
  if (event.number == SIGUSR1 || event.number == SIGUSR2) {
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].has_workers()) out_.send(i, rendezvous::Signal{static_cast<std::uint8_t>(event.number)});
    return;
  }
  // A node's report has already been taken as this signal. As a second SIGTERM it would cut the grace period
  // short.
  if (event.number == SIGTERM && std::exchange(slurm_ends_, false)) return;
  // Both are read before the signal is noted below, since they compare it with those that came earlier.
  const bool kills = cuts_grace_short(event, now);
  const std::string cutter = cutter_text(event, now);
  const bool first = !user_stopped();
  if (first) first_signal_at_ = now;
  if (!has_come(event.number)) user_signals_.push_back(event.number);
  // A signal during the cleanup of a failure shortens the stop, but the failure stays the cause.
  const bool growing = attempt_end_.cause == StopCause::kScaleUp;
  const bool one_stop = !growing && only_stopped_by(event.number, end());
  if ((growing || one_stop) && end().stop_signal == 0)
    failures_.stopped_by_user(event.number, event.by, awaited());
  if (state_ == State::kEnding) {  // only lost nodes and survivors still end their workers
    if (!kills) return;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].ending) out_.send(i, stop_order(nodes_[i], milliseconds(0), "killed by the user"));
    deadline_ = now + kStopSlack;
    return;
  }
  // The stop that runs is not the user's. A stop for a larger world, or a revoke, becomes a stop with the
  // user's grace.
  const bool polite = (growing || attempt_end_.revoked || one_stop) && first;
  const std::string stopped = "stopped by " + signal_name(user_signals_.front());
  switch (state_) {
    case State::kStopping:
      if (!polite && !kills) return;
      if (!polite) failures_.grace_ended_by(cutter);
      return stop_all(false, false, polite ? spec_.stop_grace : milliseconds(0),
                      polite ? "stopped by the user" : "killed by the user", now);
    case State::kRunning: out_.say(stopping_text(event.number, spec_.stop_grace)); [[fallthrough]];
    case State::kStarting: return stop({StopCause::kUser, Outcome::kUser, stopped, true}, now);
    case State::kConnecting:
    case State::kBackingOff: return end(Outcome::kUser, stopped, {}, now);
    case State::kEnding:
    case State::kLeaving:
    case State::kFinished: return;
  }
}

/// Returns whether the signal ends the grace period. systemd sends SIGTERM and SIGHUP together, and shells
/// and runners pass on a signal that all processes got: signals that come together are one request. After a
/// failure the first Ctrl-C kills, as was said.
bool Supervisor::cuts_grace_short(const job::UserSignal& event, Time now) const {
  if (event.now) return true;
  if (user_signals_.empty()) return event.number == SIGINT;
  return now - first_signal_at_ >= kSameRequest &&
         (event.number == SIGINT || (event.number == SIGTERM && has_come(SIGTERM)));
}

/// Says who did: "a second Ctrl-C after 3.1 s".
std::string Supervisor::cutter_text(const job::UserSignal& event, Time now) const {
  const std::string from = event.by.empty() ? "" : " from " + event.by;
  std::string text = event.number == SIGINT && from.empty() ? "Ctrl-C" : signal_name(event.number);
  if (has_come(event.number)) text = "a second " + text;
  if (event.now) text = event.by.empty() ? "`ddplaunch stop --now`" : event.by;
  if (!user_signals_.empty()) text += " after " + format_elapsed(now - first_signal_at_);
  return event.now ? text : text + from;
}

// ---- the end

/// Ends the job: no attempt follows. Lost nodes and survivors may still have to end their workers.
void Supervisor::end(Outcome outcome, const std::string& reason, std::string no_restart, Time now) {
  if (!restart_left()) no_restart.clear();  // the budget is spent, so no restart is refused
  // The attempt was stopped because the job grew, so its ends are no failures. But if its processes could not
  // be killed, they are all that explains the job's end.
  if (attempt_end_.cause == StopCause::kScaleUp) failures_.forget_attempt();
  if (outcome == Outcome::kLeftovers && end().failures.empty()) failures_.restore_attempt();
  // No worker failed, so nothing is in the failure log yet: each missing node becomes a failure of its own.
  const bool too_few =
      outcome == Outcome::kTooFew || (outcome == Outcome::kNodeLost && end().failures.empty());
  if (too_few) {
    const bool at_start = outcome == Outcome::kTooFew;
    for (auto& [host, error] : missing_nodes(spec_, nodes_, at_start, now >= join_limit_at_))
      failures_.node_failed(host, std::move(error), {now, now});
    if (end().failures.empty())
      failures_.master_failed(Error{at_start ? ErrorCode::kTimeout : ErrorCode::kLinkLost, reason, 0});
  } else if (!no_restart.empty()) {
    const Failure* root = failures_.root_cause();
    const bool not_executed = root != nullptr && root->kind == Failure::Kind::kExec;
    out_.say("not restarted, although --max-restarts allows it: " +
             (not_executed ? "the program could not be executed on " + root->host : no_restart));
  }
  if (state_ != State::kConnecting && state_ != State::kBackingOff) {
    const Failure* cause = failures_.root_cause();
    record({.kind = Journal::kAttemptEnded, .reason = cause != nullptr ? failure_line(*cause) : reason});
  }
  // A stop that runs keeps its deadline, since the workers of its lost nodes have that grace.
  if (state_ != State::kStopping || !deadline_) deadline_ = now + kLastWait;
  state_ = State::kEnding;
  const bool sweeping =
      std::any_of(nodes_.begin(), nodes_.end(), [](const NodeRecords::Node& node) { return node.sweeping; });
  if (sweeping) deadline_ = std::max(*deadline_, now + kSweepTime);
  const milliseconds grace = user_stopped() ? spec_.stop_grace : spec_.failure_grace;
  bool reported = false;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].has_survivors()) continue;
    if (user_stopped() && !std::exchange(reported, true))
      out_.say(stopping_text(end().stop_signal == 0 ? SIGINT : end().stop_signal, grace));
    end_survivors(i, grace, reason);
    deadline_ = std::max<Time>(*deadline_, now + grace + kLastWait);
  }
}

/// Sends all nodes away when no worker runs any more. A lost node may still have to end its workers, and its
/// reason may be on the way. The master waits for both.
void Supervisor::leave_when_quiet(Time now) {
  if (state_ != State::kEnding) return;  // called after every event
  const bool quiet = std::none_of(nodes_.begin(), nodes_.end(), [](const NodeRecords::Node& node) {
    return node.sweeping || ((node.lost || node.ending) && node.state == NodeState::kSpawned);
  });
  if (!quiet) return;
  const Failure* root = failures_.root_cause();
  // All workers have ended because a node got a signal. If it was meant for the whole job, the master's own
  // is on its way and becomes the cause (kSignalSpread).
  if (root != nullptr && end().stop_signal == 0 && is_stop_signal(root->error.sys) &&
      only_stopped_by(root->error.sys, end()) && now < root->happened.latest + kSignalSpread) {
    deadline_ = root->happened.latest + kSignalSpread;
    return;
  }
  name_unproven_nodes();
  state_ = State::kLeaving;
  // Silent nodes are not detected any more, so this deadline bounds their silence.
  deadline_ = now + std::min<milliseconds>(kLeaveTime, spec_.node_timeout + kSilenceSlack);
  // Only now are all failures and flight records there. The exit code is fixed before the nodes leave, since
  // nodes in per-node mode exit with it.
  failures_.diagnose_collectives();
  ExitReport report = make_exit_report(end());
  goodbye_ = {report.exit_code, std::move(report.why)};
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kConnecting) {
      out_.disconnect(i);
      nodes_.enter(i, NodeState::kGone);
    } else if (nodes_[i].state < NodeState::kLeaving) {
      send_away(i, goodbye_);
    }
  }
}

/// Names the lost nodes of which nobody could prove that no process is left, and what to run there.
void Supervisor::name_unproven_nodes() {
  if (spec_.launcher == LauncherKind::kSlurm) return;  // Slurm ends the processes of its steps
  std::map<std::string, std::vector<std::string>> by_text;
  for (const NodeRecords::Node& node : nodes_) {
    if (!node.predecessor) continue;
    const std::string& swept = node.predecessor->swept;
    const char* why = node.is_unreachable() ? "its machine does not answer"
                      : node.is_present()   ? "it was in the job again"
                                            : "the job was over before";
    const bool by_clean = spec_.launcher != LauncherKind::kJoin;
    by_text[swept.empty() ? not_swept_text(why, spec_.job_id, by_clean) : swept].push_back(node.name);
  }
  for (const auto& [text, names] : by_text)
    out_.say("warning: " + remote::fold_ranges(names) + ": " + text);
}

}  // namespace ddp::launcher
