#include "launcher/supervisor.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/exit_status.h"
#include "launcher/start_messages.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Beyond the grace: the agent kills, reaps and drains within it, or its node counts as lost.
constexpr seconds kStopSlack{10};
/// From Leave to the end of the link.
constexpr seconds kLeaveTime{5};
/// From the limit of the start of an agent to the word of it, which knows the step and the host's last lines.
constexpr milliseconds kReportTime{300};
/// The back-off doubles up to here, unless the user begins with more.
constexpr seconds kMaxBackoff{60};

std::string seconds_text(milliseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  const std::string whole = std::to_string(tenths / 10);
  return (tenths % 10 == 0 ? whole : whole + "." + std::to_string(tenths % 10)) + " s";
}

}  // namespace

Supervisor::Supervisor(const JobSpec& spec) : spec_(spec) {
  std::size_t count = spec.hosts.size();
  if (spec.max_nodes > 0) count = std::min(count, static_cast<std::size_t>(spec.max_nodes));
  nodes_.resize(count);
}

Supervisor::Actions Supervisor::start(Time now) {
  failures_.begin_attempt(0, now);
  start_limit_ = now + spec_.start_timeout + kReportTime;
  deadline_ = start_limit_;
  return std::exchange(actions_, {});
}

Supervisor::Actions Supervisor::step(const Event& event, Time now) {
  if (state_ != State::kFinished) std::visit([&](const auto& e) { on(e, now); }, event);
  return std::exchange(actions_, {});
}

std::size_t Supervisor::node_of_rank(std::uint32_t rank) const {
  const auto after = std::upper_bound(plan_.nodes.begin(), plan_.nodes.end(), rank,
                                      [](std::uint32_t r, const rendezvous::NodeRanks& n) {
                                        return r < static_cast<std::uint32_t>(n.first_rank);
                                      });
  return static_cast<std::size_t>(after - plan_.nodes.begin()) - 1;
}

// ---- running

void Supervisor::on(const FromNode& event, Time now) {
  current_ = &event;
  std::visit([&](const auto& message) { handle(event.node, message, now); }, event.message);
  current_ = nullptr;
}

bool Supervisor::runs(std::size_t node, std::uint32_t rank) const {
  if (node >= plan_.nodes.size()) return false;
  const rendezvous::NodeRanks& ranks = plan_.nodes[node];
  const auto first = static_cast<std::uint32_t>(ranks.first_rank);
  return rank >= first && rank - first < static_cast<std::uint32_t>(ranks.local_world_size);
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerStarted& message, Time) {
  if (message.attempt == attempt_ && runs(index, message.rank))
    failures_.worker_started(static_cast<int>(message.rank), current_->happened);
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerEvidence& message, Time) {
  if (message.attempt == attempt_ && runs(index, message.rank)) failures_.evidence(message);
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerExited& message, Time now) {
  // The workers of a node that its agent has to leave are ended by the agent: no failures of their own.
  if (message.attempt != attempt_ || nodes_[index].state != NodeState::kSpawned || nodes_[index].lost) return;
  if (!runs(index, message.rank)) {
    actions_.push_back(Disconnect{index});
    return lose_node(index, Error{ErrorCode::kProtocol, "it reports a rank that it was not given", 0}, now);
  }
  if (!exited_.insert(message.rank).second) return;  // told before
  hang_.rank_ended(index, message.rank, now);
  if (state_ == State::kInspecting && message.code == 0 && message.signal == 0) {
    actions_.push_back(Say{"the job goes on: rank " + std::to_string(message.rank) + " has ended well"});
    state_ = State::kRunning;
  }
  if (state_ == State::kRunning) deadline_ = hang_.deadline();
  if (message.code == 0 && message.signal == 0) return;
  const int rank = static_cast<int>(message.rank);
  failures_.worker_failed({spec_.hosts[index].name, rank, rank - plan_.nodes[index].first_rank}, message,
                          current_->happened, current_->error);
  if (running()) {
    stop_all(spec_.failure_grace, "rank " + std::to_string(message.rank) + " failed", now);
  }
}

void Supervisor::handle(std::size_t index, const rendezvous::AttemptEnded& message, Time now) {
  Node& node = nodes_[index];
  if (message.attempt != attempt_ || node.state != NodeState::kSpawned) return;
  node.state = NodeState::kEnded;
  node.left_processes = message.left > 0;
  if (message.left > 0) {
    actions_.push_back(Say{"warning: " + std::to_string(message.left) +
                           (message.left == 1 ? " process is left on " : " processes are left on ") +
                           spec_.hosts[index].name + ": " + message.left_text});
  }
  if (all(NodeState::kEnded)) attempt_over(now);
}

/// What a broken link means for the others cannot wait for the reason, which may take seconds: an agent that
/// was told to end has its own workers to stop first.
void Supervisor::on(const LinkEnded& event, Time now) {
  const Node& node = nodes_[event.node];
  if (node.state == NodeState::kSpawned && !node.lost) count_as_lost(event.node, event.error, now);
}

/// A failure that ends the attempt, while the end of the node's workers or of its link is still to come.
void Supervisor::count_as_lost(std::size_t index, Error error, Time now) {
  nodes_[index].lost = true;
  failures_.node_failed(spec_.hosts[index].name, std::move(error), now);
  hang_.node_gone(index, now);
  if (running()) stop_all(spec_.failure_grace, "node " + spec_.hosts[index].name + " was lost", now);
}

void Supervisor::on(const NodeGone& event, Time now) {
  Node& node = nodes_[event.node];
  const NodeState before = std::exchange(node.state, NodeState::kGone);
  if (before == NodeState::kGone) return;
  if (state_ == State::kLeaving || before == NodeState::kLeaving) return finish_if_gone();
  if (state_ < State::kRunning) {
    if (!node.told_why) fail_start(event.node, event.error, now);
    return;
  }
  lose_node(event.node, event.error, now);
}

/// A node will not run its part any more; its state has been set.
void Supervisor::lose_node(std::size_t index, Error error, Time now) {
  if (nodes_[index].state == NodeState::kSpawned) nodes_[index].state = NodeState::kGone;
  if (!nodes_[index].lost) {
    count_as_lost(index, std::move(error), now);
  } else if (!nodes_[index].told_why) {
    failures_.explain_node(spec_.hosts[index].name, std::move(error));
  }
  if (state_ == State::kStopping && all(NodeState::kEnded)) {
    attempt_over(now);
  }
}

void Supervisor::on(const UserSignal& event, Time now) {
  if (event.number == SIGUSR1 || event.number == SIGUSR2) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].state == NodeState::kSpawned) {
        send(i, rendezvous::Signal{static_cast<std::uint8_t>(event.number)});
      }
    }
    return;
  }
  if (event.number == SIGTERM && std::exchange(slurm_ends_, false)) return;
  // A signal that comes while a failure is being cleaned up hurries us, but the failure stays the cause.
  const bool failed = !end().failures.empty();
  if (!failed && end().stop_signal == 0) failures_.stopped_by_user(event.number);
  user_wants_end_ = true;
  switch (state_) {
    case State::kConnecting:
    case State::kBackingOff:
    case State::kOpeningStore:
    case State::kProbing:
      leave_all(now);
      break;
    case State::kRunning:
    case State::kInspecting:
      actions_.push_back(Say{signal_name(event.number) + ": stopping the workers (again: kill them now)"});
      stop_all(spec_.stop_grace, "stopped by " + signal_name(event.number), now);
      break;
    case State::kStopping:
      stop_all(milliseconds(0), "killed by the user", now);
      break;
    case State::kLeaving:
    case State::kFinished:
      break;
  }
}

// ---- end

void Supervisor::stop_all(milliseconds grace, const std::string& reason, Time now) {
  state_ = State::kStopping;
  detail("stopping all workers: " + reason);
  failures_.stop_ordered(now, grace);
  deadline_ = failures_.kill_due() + kStopSlack;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kSpawned) send(i, rendezvous::Stop{attempt_, to_ms(grace), reason});
  }
  if (all(NodeState::kEnded)) attempt_over(now);
}

/// Every node has ended its part of the attempt: that was the job, unless it failed and there is budget for
/// more.
void Supervisor::attempt_over(Time now) {
  const Failure* root = failures_.root_cause();
  if (root == nullptr || user_wants_end_ || static_cast<int>(attempt_) >= spec_.max_restarts) {
    return leave_all(now);
  }
  if (const std::string why = why_no_restart(); !why.empty()) {
    actions_.push_back(Say{"not restarted, although --max-restarts allows it: " + why});
    return leave_all(now);
  }
  const milliseconds wait = backoff();
  actions_.push_back(Say{failure_line(*root) + "; restart " + std::to_string(attempt_ + 1) + " of " +
                         std::to_string(spec_.max_restarts) + " in " + seconds_text(wait)});
  failures_.end_attempt();
  state_ = State::kBackingOff;
  deadline_ = now + wait;
}

/// Empty when nothing speaks against another attempt.
std::string Supervisor::why_no_restart() const {
  for (const Failure& failure : end().failures) {
    if (failure.kind == Failure::Kind::kNode) return "node " + failure.host + " was lost";
    // It is as wrong the next time.
    if (failure.kind == Failure::Kind::kExec) return "the program could not be executed on " + failure.host;
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].left_processes)
      return "processes of the failed attempt still live on " + spec_.hosts[i].name;
  }
  return {};
}

milliseconds Supervisor::backoff() const {
  milliseconds wait = spec_.restart_backoff;
  for (std::uint32_t i = 0; i < attempt_ && wait < kMaxBackoff; ++i)
    wait *= 2;
  return std::min<milliseconds>(wait, std::max<milliseconds>(kMaxBackoff, spec_.restart_backoff));
}

void Supervisor::begin_attempt(std::uint32_t attempt, Time now) {
  attempt_ = attempt;
  store_port_ = 0;
  for (Node& node : nodes_)
    node.state = NodeState::kAccepted;
  failures_.begin_attempt(attempt_, now);
  start_limit_ = now + spec_.start_timeout + kReportTime;
  deadline_ = start_limit_;
  open_store();
}

void Supervisor::leave_all(Time now) {
  state_ = State::kLeaving;
  deadline_ = now + kLeaveTime;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    switch (node.state) {
      case NodeState::kConnecting:
        actions_.push_back(Disconnect{i});
        node.state = NodeState::kGone;
        break;
      case NodeState::kUp:
      case NodeState::kAccepted:
      case NodeState::kSpawned:
      case NodeState::kEnded:
        send(i, rendezvous::Leave{});
        node.state = NodeState::kLeaving;
        break;
      case NodeState::kLeaving:
      case NodeState::kGone:
        break;
    }
  }
  finish_if_gone();
}

void Supervisor::finish_if_gone() {
  if (state_ == State::kLeaving && all(NodeState::kGone)) {
    state_ = State::kFinished;
    deadline_.reset();
  }
}

void Supervisor::on(const Tick&, Time now) {
  if (!deadline_ || now < *deadline_) return;
  switch (state_) {
    case State::kBackingOff:
      begin_attempt(attempt_ + 1, now);
      break;
    case State::kConnecting:
    case State::kOpeningStore:
    case State::kProbing:
      on_start_deadline(now);
      break;
    case State::kStopping:
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].state != NodeState::kSpawned) continue;
        actions_.push_back(Disconnect{i});
        nodes_[i].state = NodeState::kGone;
        failures_.node_failed(
            spec_.hosts[i].name,
            Error{ErrorCode::kLinkLost, "it did not end its workers in time; look for leftovers there"}, now);
      }
      leave_all(now);
      break;
    case State::kLeaving:
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].state == NodeState::kGone) continue;
        actions_.push_back(Disconnect{i});
        nodes_[i].state = NodeState::kGone;
      }
      finish_if_gone();
      break;
    case State::kRunning:
      check_for_hang(now);
      break;
    case State::kInspecting:
      conclude_hang(now);
      break;
    case State::kFinished:
      deadline_.reset();
      break;
  }
}

// ---- bookkeeping

void Supervisor::send(std::size_t node, rendezvous::Message message) {
  actions_.push_back(ToNode{node, std::move(message)});
}

bool Supervisor::all(NodeState at_least) const {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.state >= at_least; });
}

}  // namespace ddp::launcher
