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

}  // namespace

Supervisor::Supervisor(const JobSpec& spec) : spec_(spec), membership_(rules_of(spec)) {
  nodes_.resize(hosts_used(spec));
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    nodes_[i].name = spec.hosts[i].name;
}

job::Actions Supervisor::start(Time now) {
  failures_.begin_attempt(0, now);
  failures_.name_job("job " + spec_.job_id, spec_.job_dir);
  started_at_ = now;
  waiting_check_ = now + kLongStart;
  waiting_due_ = kLongStart;
  start_limit_ = now + spec_.start_timeout + kReportTime;
  inform(rendezvous::Tick{});
  follow_membership(now);
  return std::exchange(actions_, {});
}

job::Actions Supervisor::step(const job::Event& event, Time now) {
  if (state_ != State::kFinished) {
    std::visit([&](const auto& e) { on(e, now); }, event);
    follow_membership(now);
    report_waiting(now);
  }
  return std::exchange(actions_, {});
}

std::optional<Supervisor::Time> Supervisor::deadline() const {
  std::optional<Time> first = deadline_;
  if (state_ == State::kFinished) return first;
  for (const auto& due : {membership_.deadline(), waiting_check_})
    if (due) first = first ? std::min(*first, *due) : *due;
  return first;
}

const rendezvous::RankAssignment* Supervisor::assignment(std::size_t node) const {
  return nodes_[node].participant ? &world_.assignments[*nodes_[node].participant] : nullptr;
}

std::size_t Supervisor::node_of_rank(std::uint32_t rank) const {
  const auto after = std::upper_bound(world_.assignments.begin(), world_.assignments.end(), rank,
                                      [](std::uint32_t r, const rendezvous::RankAssignment& assignment) {
                                        return r < static_cast<std::uint32_t>(assignment.first_rank);
                                      });
  return std::prev(after)->host;
}

bool Supervisor::runs(std::size_t node, std::uint32_t rank) const {
  const rendezvous::RankAssignment* ranks = assignment(node);
  if (ranks == nullptr) return false;
  const auto first = static_cast<std::uint32_t>(ranks->first_rank);
  return rank >= first && rank - first < static_cast<std::uint32_t>(ranks->local_world_size);
}

std::optional<std::size_t> Supervisor::running_participant(std::size_t index, std::uint32_t attempt) const {
  const Node& node = nodes_[index];
  const bool runs_it = attempt == attempt_ && node.state == NodeState::kSpawned && !node.lost && !node.ending;
  return runs_it ? node.participant : std::nullopt;
}

std::optional<int> Supervisor::ran(std::size_t index, std::uint32_t attempt, std::uint32_t rank) const {
  const Node& node = nodes_[index];
  if (attempt == attempt_ && runs(index, rank)) return static_cast<int>(rank) - assignment(index)->first_rank;
  const bool has_run = node.state == NodeState::kSpawned || node.state == NodeState::kWaiting;
  const auto local = static_cast<std::int64_t>(rank) - node.ran.first_rank;
  if (!has_run || attempt != node.spawned || local < 0 || local >= node.ran.local_world_size) return {};
  return static_cast<int>(local);
}

// ---- running

void Supervisor::on(const job::FromNode& event, Time now) {
  if (event.incarnation != nodes_[event.node].incarnation) return;
  current_ = &event;
  std::visit([&](const auto& message) { handle(event.node, message, now); }, event.message);
  current_ = nullptr;
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerStarted& message, Time) {
  if (message.attempt != attempt_ || !runs(index, message.rank)) return;
  failures_.worker_started(static_cast<int>(message.rank), current_->happened, message.start_attempt);
  Node& node = nodes_[index];
  const auto local = message.rank - static_cast<std::uint32_t>(assignment(index)->first_rank);
  if (local < node.worker_pids.size()) node.worker_pids[local] = message.pid;
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerEvidence& message, Time) {
  if (message.attempt == attempt_ && runs(index, message.rank)) failures_.evidence(message);
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerCollectives& message, Time) {
  if (message.attempt == attempt_ && runs(index, message.rank))
    failures_.collectives(message, world_.world_size);
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerExited& message, Time now) {
  if (nodes_[index].state == NodeState::kWaiting) return report_lost_survivor(index, message);
  // An agent that has to leave kills its workers. These ends are no failures of the workers.
  const auto participant = running_participant(index, message.attempt);
  if (!participant) return;
  if (!runs(index, message.rank)) {
    actions_.push_back(job::Disconnect{index});
    lose(index, Error{ErrorCode::kProtocol, "it reported a rank that it does not run", 0}, now);
    nodes_[index].state = NodeState::kGone;
    nodes_[index].reason_reported = true;
    return;
  }
  if (!exited_.insert(message.rank).second) return;  // reported before
  hang_.rank_ended(*participant, message.rank, now);
  if (state_ == State::kInspecting && message.code == 0 && message.signal == 0) {
    say("the job continues: rank " + std::to_string(message.rank) + " exited 0");
    state_ = State::kRunning;
  }
  const int rank = static_cast<int>(message.rank);
  const FailureLog::WorkerIdentity worker{nodes_[index].name, rank, rank - assignment(index)->first_rank};
  if (message.code == 0 && message.signal == 0) {
    failures_.worker_ended_well(worker, current_->happened, current_->error);
    if (end().early.size() == 1) early_exit_notice_ = now + kEarlyExitNotice;
  }
  if (state_ == State::kRunning) arm_running();
  if (message.code == 0 && message.signal == 0) return;
  if (message.by_revoke) {  // no failure of the worker
    if (!message.text.empty())
      say("rank " + std::to_string(message.rank) + " on " + nodes_[index].name + ' ' + message.text);
    return;
  }
  failures_.worker_failed(worker, message, current_->happened, current_->error);
  if (!running()) return;
  stop_reason_ = "rank " + std::to_string(message.rank) + " failed";
  // A program that cannot be executed in attempt 0 fails again when retried. In later attempts it ran
  // elsewhere before.
  inform(index, rendezvous::WorkerFailed{stop_reason_, message.pid == 0 && attempt_ == 0});
}

/// Some ranks may wait forever for one that has left the training early. Reported once.
void Supervisor::report_early_exits(Time now) {
  if (!early_exit_notice_ || now < *early_exit_notice_) return;
  early_exit_notice_.reset();
  const std::vector<EarlyExit>& early = end().early;
  if (exited_.size() >= static_cast<std::size_t>(world_.world_size)) return;
  notify(std::to_string(early.size()) + " of " + std::to_string(world_.world_size) + " ranks " +
         (early.size() == 1 ? "has" : "have") + " exited with 0 (" + early_ranks(early) +
         "); the others still run");
}

void Supervisor::handle(std::size_t index, const rendezvous::AttemptEnded& message, Time now) {
  Node& node = nodes_[index];
  const bool waited = node.state == NodeState::kWaiting;
  if (message.attempt != node.spawned || (!waited && node.state != NodeState::kSpawned)) return;
  const bool in_attempt = !std::exchange(node.ending, false);
  if (message.left > 0) {
    say("warning: " + counted(message.left, "process is", "processes are") + " left on " + node.name + ": " +
        message.left_text);
  }
  if (node.lost) node.predecessor.reset();  // the fate of its workers is known
  if (waited) return survivors_gone(index, message.left, now);
  node.state = NodeState::kEnded;
  if (!node.lost && !in_attempt) return;
  if (running() && node.participant && survivors_.ended(*node.participant)) arm_running();
  if (!node.lost)
    inform(index, rendezvous::NodeEnded{message.left});
  else if (message.left == 0)
    inform(index, rendezvous::WorkersGone{});
}

/// A signal may be sent to all processes of a job, in any order. A node that reports it before the master
/// gets its own is no failure. Workers that were stopped for it are none either.
bool Supervisor::only_stopped_by(int signal) const {
  return std::all_of(end().failures.begin(), end().failures.end(), [&](const Failure& failure) {
    const bool reported = failure.kind == Failure::Kind::kNode &&
                          failure.error.code == ErrorCode::kLinkLost && failure.error.sys == signal;
    return reported || failure.stopped_by_us;
  });
}

void Supervisor::on(const job::UserSignal& event, Time now) {
  if (event.number == SIGUSR1 || event.number == SIGUSR2) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].state == NodeState::kSpawned || nodes_[i].state == NodeState::kWaiting)
        send(i, rendezvous::Signal{static_cast<std::uint8_t>(event.number)});
    }
    return;
  }
  if (event.number == SIGTERM && std::exchange(slurm_ends_, false)) return;
  // A signal during the cleanup of a failure shortens the stop, but the failure stays the cause.
  const bool one_stop = !growing_ && only_stopped_by(event.number);
  const bool failed = !growing_ && !one_stop;
  if (!failed && end().stop_signal == 0) failures_.stopped_by_user(event.number, awaited_text());
  if (ended_ && state_ < State::kLeaving) return shorten_stop(now);
  const bool polite = (growing_ || revoking_ || one_stop) && !std::exchange(user_wants_end_, true);
  user_wants_end_ = true;
  if (state_ == State::kStopping)
    stop_all(polite ? spec_.stop_grace : milliseconds(0),
             polite ? "stopped by the user" : "killed by the user", now);
  if (running()) say_stopping(event.number);
  if (running() || starting()) stop_reason_ = "stopped by " + signal_name(event.number);
  inform(rendezvous::UserStop{"stopped by " + signal_name(event.number)});
}

// ---- end

void Supervisor::say_stopping(int signal) {
  const bool key = signal == SIGINT;
  say((key ? "" : signal_name(signal) + ": ") + "stopping the workers; SIGKILL in " +
      limit_text(spec_.stop_grace) + (key ? " (Ctrl-C again: now)" : " (again: now)"));
}

/// A failure's report follows when all workers have ended. Says at once why they are stopped.
void Supervisor::report_stop(milliseconds grace) {
  const Failure* root = failures_.root_cause();
  const bool others =
      std::any_of(world_.assignments.begin(), world_.assignments.end(), [&](const auto& ranks) {
        const Node& node = nodes_[ranks.host];
        if (node.state != NodeState::kSpawned || node.lost || node.ending) return false;
        const auto first = exited_.lower_bound(static_cast<std::uint32_t>(ranks.first_rank));
        const auto last =
            exited_.lower_bound(static_cast<std::uint32_t>(ranks.first_rank + ranks.local_world_size));
        return std::distance(first, last) < ranks.local_world_size;
      });
  if (root == nullptr || !others) return;
  notify(failure_line(*root) + "; stopping the " +
         (root->kind == Failure::Kind::kHung ? "workers" : "others") +
         (grace > milliseconds(0) ? " (SIGKILL in " + limit_text(grace) + "; Ctrl-C: now)" : ""));
}

/// Nodes that never spawned have no workers to stop.
void Supervisor::stop_all(milliseconds grace, const std::string& reason, Time now) {
  state_ = State::kStopping;
  detail("stopping all workers: " + reason);
  failures_.stop_ordered(now, grace);
  deadline_ = failures_.kill_due() + kStopSlack;
  for (const rendezvous::RankAssignment& assignment : world_.assignments) {
    Node& node = nodes_[assignment.host];
    if (node.state == NodeState::kSpawned && !node.ending) {
      send(assignment.host, rendezvous::Stop{attempt_, to_ms(grace), reason});
    } else if (node.ending) {  // its workers are of an earlier attempt; it does not know this one
      inform(assignment.host, rendezvous::NodeEnded{});
    } else if (node.state == NodeState::kAccepted) {
      node.state = NodeState::kEnded;
      inform(assignment.host, rendezvous::NodeEnded{});
    } else if (node.state == NodeState::kWaiting) {
      end_survivors(assignment.host, grace, reason);
      inform(assignment.host, rendezvous::NodeEnded{});
    }
  }
}

void Supervisor::on_stop_deadline(Time now) {
  deadline_.reset();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.state != NodeState::kSpawned) continue;
    if (!node.lost) {
      lose(i,
           Error{ErrorCode::kLinkLost,
                 "it did not stop its workers in time; check the node for leftover processes", 0},
           now);
    }
    node.state = NodeState::kGone;
    actions_.push_back(job::Disconnect{i});
  }
}

void Supervisor::leave_all(Time now) {
  state_ = State::kLeaving;
  // The Membership has ended and detects silent nodes no more, so this deadline bounds their silence.
  deadline_ = now + std::min<milliseconds>(kLeaveTime, spec_.node_timeout + kSilenceSlack);
  failures_.diagnose_collectives();
  ExitReport report = make_exit_report(end());
  goodbye_ = {report.exit_code, std::move(report.why)};
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    switch (node.state) {
      case NodeState::kConnecting:
        actions_.push_back(job::Disconnect{i});
        node.state = NodeState::kGone;
        break;
      case NodeState::kUp:
      case NodeState::kAccepted:
      case NodeState::kSpawned:
      case NodeState::kWaiting:
      case NodeState::kEnded:
        send_away(i);
        break;
      case NodeState::kLeaving:
      case NodeState::kGone:
        break;
    }
  }
  finish_if_gone();
}

void Supervisor::finish_if_gone() {
  if (state_ != State::kLeaving) return;
  while (left_ < nodes_.size() && nodes_[left_].state == NodeState::kGone)
    ++left_;
  if (left_ < nodes_.size()) return;
  state_ = State::kFinished;
  deadline_.reset();
}

void Supervisor::on(const job::Tick&, Time now) {
  inform(rendezvous::Tick{});
  give_up_slow_joins(now);
  if (!deadline_ || now < *deadline_) return;
  // The job has ended, but a lost node or survivors still have to end their workers.
  if (ended_ && state_ < State::kLeaving) return on_stop_deadline(now);
  switch (state_) {
    case State::kFinished:
      deadline_.reset();
      break;
    case State::kOpeningStore:
    case State::kProbing:
      on_start_deadline(now);
      break;
    case State::kConnecting:
    case State::kBackingOff:
    case State::kStopping:
      on_stop_deadline(now);
      break;
    case State::kLeaving:
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (std::exchange(nodes_[i].state, NodeState::kGone) != NodeState::kGone)
          actions_.push_back(job::Disconnect{i});
      }
      finish_if_gone();
      break;
    case State::kRunning:
      report_early_exits(now);
      check_survivors(now);
      if (state_ == State::kRunning) check_for_hang(now);
      break;
    case State::kInspecting:
      conclude_hang(now);
      break;
  }
}

void Supervisor::send(std::size_t node, rendezvous::Message message) {
  actions_.push_back(job::ToNode{node, std::move(message)});
}

}  // namespace ddp::launcher
