#include "launcher/supervisor/supervisor.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/exit_status.h"
#include "base/format_text.h"
#include "launcher/supervisor/start_messages.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Journal = JournalEvent::Kind;

/// Time beyond the grace in which an agent kills, reaps and drains. After it the node counts as lost.
constexpr seconds kStopSlack{10};
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

rendezvous::Fence fence_of(FenceMode mode) {
  switch (mode) {
    case FenceMode::kRank0:
      return rendezvous::Fence::kRank0;
    case FenceMode::kAll:
      return rendezvous::Fence::kAll;
    case FenceMode::kOff:
      return rendezvous::Fence::kOff;
  }
  return rendezvous::Fence::kAll;
}

rendezvous::MembershipRules rules_of(const JobSpec& spec) {
  rendezvous::MembershipRules rules;
  rules.job = spec.job_id;
  for (std::size_t i = 0; i < hosts_used(spec); ++i)
    rules.hosts.push_back(spec.hosts[i].name);
  const auto hosts = static_cast<int>(rules.hosts.size());
  rules.spares = spec.spares;
  rules.max_nodes = std::max(1, hosts - spec.spares);
  rules.min_nodes = spec.min_nodes == 0 ? rules.max_nodes : std::min(spec.min_nodes, rules.max_nodes);
  rules.join_limit = spec.start_timeout + kReportTime;
  rules.node_timeout = spec.node_timeout;
  rules.lease = spec.master_timeout + link_grace(spec) + kKeeperKills;
  // The Supervisor's own stop deadline is earlier.
  rules.stop_time = std::max(spec.stop_grace, spec.failure_grace) + 2 * kStopSlack;
  rules.max_restarts = spec.max_restarts;
  rules.backoff = spec.restart_backoff;
  rules.max_backoff = std::max<milliseconds>(kMaxBackoff, spec.restart_backoff);
  rules.recall = true;
  if (spec.launcher == LauncherKind::kJoin) {  // nodes connect by themselves; a recall opens the listener
    rules.recall_every = rules.max_recall_wait = kListenerOpens;
    rules.recall_at_start = true;
  }
  rules.scale_up_now = spec.scale_up_now;
  rules.fence = fence_of(spec.fence);
  return rules;
}

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
         format_duration(grace) + (key ? " (Ctrl-C again: now)" : " (again: now)");
}

}  // namespace

Supervisor::Supervisor(const JobSpec& spec)
    : spec_(spec), nodes_(spec), membership_(rules_of(spec)), out_(spec.quiet) {}

job::Actions Supervisor::start(Time now) {
  record({.kind = Journal::kJobStarted, .job = spec_.job_id});
  failures_.begin_attempt(0, now);
  failures_.name_job("job " + spec_.job_id, spec_.job_dir);
  start_notice_.begin(now);
  start_limit_ = now + spec_.start_timeout + kReportTime;
  return step(job::Tick{}, now);
}

job::Actions Supervisor::step(const job::Event& event, Time now) {
  if (state_ == State::kFinished) return {};
  std::visit([&](const auto& e) { on(e, now); }, event);
  while (!updates_.empty()) {
    const MembershipUpdate update = std::move(updates_.front());
    updates_.pop_front();
    const rendezvous::Sender from{spec_.job_id, update.attempt,
                                  static_cast<rendezvous::HostNumber>(update.node), update.incarnation};
    joining_.reset();
    if (std::holds_alternative<rendezvous::Joined>(update.event)) joining_ = update.node;
    for (const rendezvous::MemberAction& action : membership_.step(from, update.event, now))
      std::visit([&](const auto& what) { carry_out(what, now); }, action);
  }
  if (state_ == State::kBackingOff && membership_.state() == rendezvous::Membership::State::kGathering)
    state_ = State::kConnecting;
  leave_when_quiet(now);
  if (state_ == State::kLeaving && nodes_.all_gone()) {
    state_ = State::kFinished;
    deadline_.reset();
  }
  const bool first_start =
      nodes_.attempt() == 0 && (state_ == State::kConnecting || state_ == State::kStarting);
  if (!first_start) {
    if (auto removal = start_notice_.end()) out_.add(*removal);
  } else if (start_notice_.is_due(now)) {
    // In per-node mode the listener itself reports the nodes that it waits for.
    const bool is_reported = spec_.launcher == LauncherKind::kJoin && state_ == State::kConnecting;
    if (auto notice = start_notice_.show(spec_.quiet || is_reported ? "" : awaited(), now))
      out_.add(std::move(*notice));
  }
  return out_.take();
}

std::optional<Supervisor::Time> Supervisor::deadline() const {
  if (state_ == State::kFinished) return {};
  std::optional<Time> first;
  const auto consider = [&first](std::optional<Time> due) {
    if (due && (!first || *due < *first)) first = due;
  };
  consider(deadline_);
  consider(membership_.deadline());
  consider(start_notice_.deadline());
  if (state_ != State::kRunning || ended_) return first;
  consider(hang_.deadline());
  if (hang_.inspecting()) return first;
  consider(survivors_.deadline());
  consider(ranks_.deadline());
  return first;
}

void Supervisor::record(JournalEvent event, std::optional<std::size_t> node) {
  if (node) event.node = nodes_[*node].name;
  if (!event.attempt && nodes_.world().world_size > 0) event.attempt = nodes_.attempt();
  out_.add(std::move(event));
}

// ---- running

void Supervisor::on(const job::FromNode& event, Time now) {
  if (event.incarnation != nodes_[event.node].incarnation) return;
  std::visit([&](const auto& message) { handle(event, message, now); }, event.message);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerStarted& message, Time) {
  if (message.attempt != nodes_.attempt() || !nodes_.runs(from.node, message.rank)) return;
  failures_.worker_started(static_cast<int>(message.rank), from.happened, message.start_attempt);
  nodes_.worker_started(from.node, message.rank, message.pid);
  if (ranks_.start(message.rank, nodes_.world().world_size)) record({.kind = Journal::kAttemptRunning});
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerEvidence& message, Time) {
  if (message.attempt == nodes_.attempt() && nodes_.runs(from.node, message.rank))
    failures_.evidence(message);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerCollectives& message, Time) {
  if (message.attempt == nodes_.attempt() && nodes_.runs(from.node, message.rank))
    failures_.collectives(message, nodes_.world().world_size);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerExited& message, Time now) {
  NodeTable::Node& node = nodes_[from.node];
  const bool ended_well = message.code == 0 && message.signal == 0;
  const std::string rank_text = "rank " + std::to_string(message.rank);
  const std::string where = rank_text + " on " + node.name + ' ';
  const ExitStatus end_status = message.signal != 0 ? ExitStatus::signaled(message.signal, message.core)
                                                    : ExitStatus::exited(message.code);
  JournalEvent ended{.kind = Journal::kRankExited,
                     .reason = message.pid == 0 ? message.text : end_status.text(),
                     .rank = message.rank,
                     .attempt = message.attempt,
                     .signal = message.signal};
  if (message.signal == 0 && message.pid != 0) ended.exit_code = message.code;
  if (node.state == NodeState::kWaiting) {
    // The loss costs no restart: a new worker replaces the survivor in the attempt that is about to begin.
    if (message.attempt != node.spawned || ended_well) return;
    record(std::move(ended), from.node);
    return out_.say(where + end_status.text() + " while it waited for the next attempt");
  }
  // An agent that has to leave kills its workers. These ends are no failures of the workers.
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant) return;
  if (!nodes_.runs(from.node, message.rank)) {
    out_.disconnect(from.node);
    lose(from.node, Error{ErrorCode::kProtocol, "it reported a rank that it does not run", 0}, now);
    node.state = NodeState::kGone;
    node.reason_reported = true;
    return;
  }
  if (!ranks_.add(message.rank)) return;
  record(std::move(ended), from.node);
  hang_.rank_ended(*participant, now);
  const int rank = static_cast<int>(message.rank);
  const FailureLog::WorkerIdentity worker{node.name, rank, rank - nodes_.assignment(from.node)->first_rank};
  if (ended_well) {
    if (state_ == State::kRunning && hang_.cancel()) {
      record({.kind = Journal::kHangOver, .reason = rank_text + " exited 0"});
      out_.say("the job continues: " + rank_text + " exited 0");
    }
    failures_.worker_ended_well(worker, from.happened, from.error);
    return ranks_.left_early(end().early, now);
  }
  if (message.by_revoke) {  // no failure of the worker
    if (!message.text.empty()) out_.say(where + message.text);
    return;
  }
  failures_.worker_failed(worker, message, from.happened, from.error);
  if (state_ != State::kRunning) return;
  stop_reason_ = rank_text + " failed";
  // A program that cannot be executed in attempt 0 fails again when retried. In later attempts it ran
  // elsewhere before.
  inform(rendezvous::WorkerFailed{stop_reason_, message.pid == 0 && nodes_.attempt() == 0}, from.node);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::AttemptEnded& message, Time now) {
  NodeTable::Node& node = nodes_[from.node];
  const bool waited = node.state == NodeState::kWaiting;
  if (message.attempt != node.spawned || !node.has_workers()) return;
  const bool in_attempt = !std::exchange(node.ending, false);
  if (message.left > 0) {
    out_.say("warning: " + counted(message.left, "process is", "processes are") + " left on " + node.name +
             ": " + message.left_text);
  }
  if (node.lost) node.predecessor.reset();  // the fate of its workers is known
  if (waited) return survivors_gone(from.node, message.left, now);
  node.state = NodeState::kEnded;
  if (!node.lost && !in_attempt) return;
  if (state_ == State::kRunning && node.participant) survivors_.ended(*node.participant);
  if (!node.lost)
    inform(rendezvous::NodeEnded{message.left}, from.node);
  else if (message.left == 0)
    inform(rendezvous::WorkersGone{}, from.node);
}

void Supervisor::on(const job::UserSignal& event, Time now) {
  record({.kind = Journal::kSignal, .signal = event.number});
  if (event.number == SIGUSR1 || event.number == SIGUSR2) {
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].has_workers()) out_.send(i, rendezvous::Signal{static_cast<std::uint8_t>(event.number)});
    return;
  }
  if (event.number == SIGTERM && std::exchange(slurm_ends_, false)) return;
  // A signal during the cleanup of a failure shortens the stop, but the failure stays the cause.
  const bool one_stop = !growing_ && only_stopped_by(event.number, end());
  if ((growing_ || one_stop) && end().stop_signal == 0) failures_.stopped_by_user(event.number, awaited());
  if (ended_ && state_ < State::kLeaving) {  // only lost nodes and survivors still end their workers
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].ending) out_.send(i, rendezvous::Stop{nodes_[i].spawned, 0, "killed by the user"});
    deadline_ = now + kStopSlack;
    return;
  }
  const bool polite = (growing_ || revoking_ || one_stop) && !std::exchange(user_wants_end_, true);
  user_wants_end_ = true;
  const std::string stopped = "stopped by " + signal_name(event.number);
  if (state_ == State::kStopping)
    stop_all(false, false, polite ? spec_.stop_grace : milliseconds(0),
             polite ? "stopped by the user" : "killed by the user", now);
  if (state_ == State::kRunning) out_.say(stopping_text(event.number, spec_.stop_grace));
  inform(rendezvous::UserStop{stopped});
}

// ---- end

void Supervisor::carry_out(const rendezvous::EndJob& action, Time now) {
  if (growing_) failures_.forget_attempt();
  const bool too_few = action.outcome == rendezvous::Outcome::kTooFew ||
                       (action.outcome == rendezvous::Outcome::kNodeLost && end().failures.empty());
  if (too_few) {
    const bool at_start = action.outcome == rendezvous::Outcome::kTooFew;
    for (auto& [host, error] : missing_nodes(spec_, nodes_, at_start, now >= start_limit_))
      failures_.node_failed(host, std::move(error), now);
    if (end().failures.empty())
      failures_.master_failed(Error{at_start ? ErrorCode::kTimeout : ErrorCode::kLinkLost, action.reason, 0});
  } else if (!action.no_restart.empty()) {
    const Failure* root = failures_.root_cause();
    const bool not_executed = root != nullptr && root->kind == Failure::Kind::kExec;
    out_.say("not restarted, although --max-restarts allows it: " +
             (not_executed ? "the program could not be executed on " + root->host : action.no_restart));
  }
  if (state_ != State::kConnecting && state_ != State::kBackingOff) {
    const Failure* cause = failures_.root_cause();
    record(
        {.kind = Journal::kAttemptEnded, .reason = cause != nullptr ? failure_line(*cause) : action.reason});
  }
  ended_ = true;
  if (!deadline_) deadline_ = now + kLastWait;
  const milliseconds grace = user_wants_end_ ? spec_.stop_grace : spec_.failure_grace;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != NodeState::kWaiting || nodes_[i].lost) continue;
    if (user_wants_end_ && deadline_ != now + grace + kLastWait)
      out_.say(stopping_text(end().stop_signal == 0 ? SIGINT : end().stop_signal, grace));
    end_survivors(i, grace, action.reason);
    deadline_ = now + grace + kLastWait;
  }
}

/// Stops the attempt's workers. `failure`: see JournalEvent. `revoke`: workers that can leave the attempt
/// survive, and the others are killed after `grace`.
void Supervisor::stop_all(bool revoke, bool failure, milliseconds grace, const std::string& reason,
                          Time now) {
  state_ = State::kStopping;
  record({.kind = Journal::kAttemptStopping, .reason = reason, .failure = failure});
  out_.detail((revoke ? "revoking attempt " + std::to_string(nodes_.attempt()) : "stopping all workers") +
              ": " + reason);
  failures_.stop_ordered(now, grace);
  deadline_ = (revoke ? now + grace : failures_.kill_due()) + kStopSlack;
  for (const rendezvous::RankAssignment& assignment : nodes_.world().assignments) {
    NodeTable::Node& node = nodes_[assignment.host];
    if (node.ending) {  // its workers are of an earlier attempt; it does not know this one
      inform(rendezvous::NodeEnded{}, assignment.host);
    } else if (node.state == NodeState::kSpawned && revoke) {
      rendezvous::Revoke order{nodes_.attempt(), to_ms(grace), reason, {}};
      for (const std::uint32_t rank : hang_.hung())
        if (nodes_.runs(assignment.host, rank)) order.kill.push_back(rank);
      out_.send(assignment.host, std::move(order));
    } else if (node.state == NodeState::kSpawned) {
      out_.send(assignment.host, rendezvous::Stop{nodes_.attempt(), to_ms(grace), reason});
    } else if (node.state == NodeState::kAccepted) {  // it never spawned
      node.state = NodeState::kEnded;
      inform(rendezvous::NodeEnded{}, assignment.host);
    } else if (node.state == NodeState::kWaiting && revoke) {
      inform(rendezvous::NodeWaits{}, assignment.host);
    } else if (node.state == NodeState::kWaiting) {
      end_survivors(assignment.host, grace, reason);
      inform(rendezvous::NodeEnded{}, assignment.host);
    }
  }
}

void Supervisor::on_stop_deadline(Time now) {
  deadline_.reset();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    NodeTable::Node& node = nodes_[i];
    if (node.state != NodeState::kSpawned) continue;
    if (!node.lost) {
      lose(i,
           Error{ErrorCode::kLinkLost,
                 "it did not stop its workers in time; check the node for leftover processes", 0},
           now);
      node.reason_reported = true;  // the end of the link, which follows, is ours
    }
    node.state = NodeState::kGone;
    out_.disconnect(i);
  }
}

/// Ends the job when the Membership has ended it. A lost node may still have to end its workers, and its
/// reason may be on the way. The master waits for both.
void Supervisor::leave_when_quiet(Time now) {
  if (!ended_ || state_ >= State::kLeaving) return;  // called after every event
  const bool quiet = std::none_of(nodes_.begin(), nodes_.end(), [](const NodeTable::Node& node) {
    return (node.lost || node.ending) && node.state == NodeState::kSpawned;
  });
  if (!quiet) return;
  const Failure* root = failures_.root_cause();
  if (root != nullptr && end().stop_signal == 0 && is_stop_signal(root->error.sys) &&
      only_stopped_by(root->error.sys, end()) && now < root->when + kSignalSpread) {
    deadline_ = root->when + kSignalSpread;
    return;
  }
  state_ = State::kLeaving;
  // The Membership has ended and detects silent nodes no more, so this deadline bounds their silence.
  deadline_ = now + std::min<milliseconds>(kLeaveTime, spec_.node_timeout + kSilenceSlack);
  failures_.diagnose_collectives();
  ExitReport report = make_exit_report(end());
  goodbye_ = {report.exit_code, std::move(report.why)};
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kConnecting) {
      out_.disconnect(i);
      nodes_[i].state = NodeState::kGone;
    } else if (nodes_[i].state < NodeState::kLeaving) {
      send_away(i, goodbye_);
    }
  }
}

void Supervisor::on(const job::Tick&, Time now) {
  inform(rendezvous::Tick{});
  give_up_slow_joins(now);
  if (state_ == State::kRunning && !ended_) return check_attempt(now);
  if (!deadline_ || now < *deadline_) return;
  // The job has ended, but a lost node or survivors still have to end their workers.
  if (ended_ && state_ < State::kLeaving) return on_stop_deadline(now);
  switch (state_) {
    case State::kStarting:
      on_start_deadline(now);
      break;
    case State::kConnecting:
    case State::kBackingOff:
    case State::kRunning:
    case State::kStopping:
      on_stop_deadline(now);
      break;
    case State::kLeaving:
      for (std::size_t i = 0; i < nodes_.size(); ++i)
        if (std::exchange(nodes_[i].state, NodeState::kGone) != NodeState::kGone) out_.disconnect(i);
      break;
    case State::kFinished:
      break;
  }
}

/// Looks for what ends a running attempt whose workers live: ranks that cannot reach each other or do not all
/// become ready, and a hang.
void Supervisor::check_attempt(Time now) {
  if (hang_.inspecting()) {
    if (!hang_.complete(now)) return;
    fail_attempt(
        hang_.conclude(spec_.job_dir + "/attempt_" + std::to_string(nodes_.attempt()) + "/hang_rank_*.txt"),
        "the job hung", now);
    if (!membership_.restart_left()) return;
    // The report has these lines only for the attempt that ends the job.
    for (const std::string& line : hang_.lines())
      out_.say(line);
    const std::string early = early_exits_text(end(), end().failures.back());
    if (!early.empty()) out_.say(early);
    return;
  }
  if (const std::string notice = ranks_.take_notice(end().early, nodes_.world().world_size, now);
      !notice.empty())
    out_.notify(notice);
  if (auto why = survivors_.verdict(now)) {
    std::string missed;
    for (const std::size_t participant : survivors_.unready())
      missed += (missed.empty() ? "; not ready: ranks of " : ", ") + nodes_.participant(participant).name;
    return fail_attempt(*why + missed, *why + missed, now);
  }
  if (!hang_.hangs(now)) return;
  record({.kind = Journal::kHangFound, .reason = "no worker prints or uses the CPU"});
  out_.say("the job seems to hang; inspecting the workers (at most " +
           format_duration(HangInvestigation::kInspectTime + HangInvestigation::kInspectSlack) + ")");
  for (const std::size_t participant : hang_.begin(ranks_.ranks(), now))
    out_.send(nodes_.node_of(participant),
              rendezvous::Inspect{nodes_.attempt(), to_ms(HangInvestigation::kInspectTime)});
}

void Supervisor::fail_attempt(std::string error, std::string reason, Time now) {
  failures_.job_hung(Error{ErrorCode::kHung, std::move(error), 0}, now);
  stop_reason_ = std::move(reason);
  inform(rendezvous::AttemptFailed{stop_reason_});
}

// ---- hangs (docs/users/hang.md)

void Supervisor::handle(const job::FromNode& from, const rendezvous::Quiet& message, Time now) {
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant) return;
  // Use the later bound of the clock error, to avoid a false positive.
  if (message.quiet) return hang_.quiet(*participant, std::min(now, from.happened + from.error));
  hang_.alive(*participant);
  if (state_ != State::kRunning || !hang_.cancel()) return;
  const std::string reason = nodes_[from.node].name + " makes progress again";
  record({.kind = Journal::kHangOver, .reason = reason});
  out_.say("the job continues: " + reason);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::Inspection& message, Time now) {
  const auto participant = nodes_[from.node].participant;
  if (message.attempt != nodes_.attempt() || state_ != State::kRunning || !hang_.inspecting() || !participant)
    return;
  if (!message.last) {
    if (!nodes_.runs(from.node, message.rank)) return;
    if (!message.text.empty()) out_.add(job::Dump{nodes_.attempt(), message.rank, message.text});
  }
  hang_.answer(*participant, message);
  check_attempt(now);
}

}  // namespace ddp::launcher
