// The part of the Supervisor that tracks nodes: it reports them to its Membership and carries out the
// Membership's decisions.
#include <algorithm>
#include <csignal>
#include <string_view>
#include <utility>

#include "base/format_text.h"
#include "launcher/supervisor/start_messages.h"
#include "launcher/supervisor/supervisor.h"
#include "rendezvous/membership/rank_plan.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

rendezvous::NodeSlots slots_of(const remote::Host& host, const rendezvous::Hello& hello) {
  std::optional<int> devices;
  if (!host.devices.empty()) devices = static_cast<int>(host.devices.size());
  return {host.name, host.slots, devices, static_cast<int>(hello.gpus), static_cast<int>(hello.cpus)};
}

/// Identifies the machine and PID namespace of an agent; empty: unknown. Agents with equal identities see the
/// same processes under the same PIDs. A host name is not enough, because it may lead to another machine
/// later.
std::string machine_of(const rendezvous::Hello& hello) {
  if (hello.pid_namespace == 0) return {};
  return hello.machine_id + ':' + std::to_string(hello.pid_namespace);
}

/// Time for a lost node to end its workers when the job has ended while no attempt was running.
constexpr std::chrono::seconds kLastWait{5};
/// A signal may reach the processes of a job one after the other. After a node has reported its own, the
/// master waits for its own this long before it counts the node as lost.
constexpr std::chrono::seconds kSignalSpread{2};

bool is_stop_signal(int number) {
  return number == SIGTERM || number == SIGINT || number == SIGHUP;
}

std::string within(milliseconds limit) {
  return " within " + limit_text(limit) + " (--start-timeout)";
}

}  // namespace

// ---- nodes come and go

void Supervisor::on(const job::NodeUp& event, Time now) {
  Node& node = nodes_[event.node];
  if (node.state != NodeState::kConnecting) return;
  node.state = NodeState::kUp;
  node.up_at = now;
  node.incarnation = event.incarnation;
  node.hello = event.hello;
  node.connected = event.connected;
  node.lost = node.reason_reported = node.ending = false;
  node.survivors.clear();  // survivors belong to an earlier incarnation
  node.trouble.reset();
  if (spec_.launcher == LauncherKind::kJoin) node.name = name_of_joined(event.node);
  if (state_ == State::kLeaving) return send_away(event.node);
  detail(node.name + ": agent on " + node.hello.hostname + ", " + std::to_string(node.hello.cpus) +
         " CPUs, " + std::to_string(node.hello.gpus) + " GPUs");
  rendezvous::JobStart start = job_start(spec_, spec_.hosts[event.node], nodes_.size());
  if (can_see_predecessor(event.node)) start.predecessor = node.predecessor->pids;
  send(event.node, std::move(start));
}

/// A node that joined by itself has its host's name, unless another node that is present has that name. Node
/// 0 has its name before it is present, and a lost node's name is free for its host's return.
std::string Supervisor::name_of_joined(std::size_t index) const {
  const std::string& own = nodes_[index].hello.hostname;
  for (std::size_t other = 0; other < nodes_.size(); ++other) {
    const Node& node = nodes_[other];
    const bool present = node.state != NodeState::kConnecting && node.state != NodeState::kGone && !node.lost;
    if (other != index && node.name == own && (other == 0 || present)) return spec_.hosts[index].name;
  }
  return own.empty() ? spec_.hosts[index].name : own;
}

/// True when the current agent can find out whether workers of the lost incarnation live.
bool Supervisor::can_see_predecessor(std::size_t index) const {
  const Node& node = nodes_[index];
  return node.predecessor && !node.predecessor->machine.empty() &&
         node.predecessor->machine == machine_of(node.hello) && spec_.hosts[index].wrapper.empty();
}

void Supervisor::on(const job::NodeFailed& event, Time now) {
  Node& node = nodes_[event.node];
  if (node.state == NodeState::kGone) return;
  node.state = NodeState::kGone;
  if (state_ == State::kLeaving) return finish_if_gone();
  absent(event.node, event.error, now);
}

void Supervisor::on(const job::NodeHeartbeat& event, Time) {
  const Node& node = nodes_[event.node];
  if (event.incarnation == node.incarnation && node.state >= NodeState::kAccepted)
    inform(event.node, rendezvous::Heartbeat{});
}

/// The node is absent or unusable and not in the attempt. The Membership decides whether the job needs it.
void Supervisor::absent(std::size_t index, Error error, Time now) {
  nodes_[index].trouble = {error, now};
  if (attempt_ > 0 || in_attempt()) detail(nodes_[index].name + " is absent: " + error.text);
  inform(index, rendezvous::Absent{std::move(error.text)});
}

void Supervisor::handle(std::size_t index, const rendezvous::JobAccepted& message, Time now) {
  Node& node = nodes_[index];
  if (node.state != NodeState::kUp) return;
  auto plan = rendezvous::plan_ranks({slots_of(spec_.hosts[index], node.hello)}, workers_wanted(node.hello));
  if (!plan) {
    send_away(index, plan.error());
    return absent(index, plan.error(), now);
  }
  node.state = NodeState::kAccepted;
  node.infiniband = {node.name, node.hello.gpus, message.infiniband, message.no_infiniband};
  node.slots_reason = plan->nodes[0].reason;
  rendezvous::Joined joined{plan->nodes[0].local_world_size};
  if (spec_.launcher == LauncherKind::kJoin) joined.name = node.name;
  if (message.predecessor_gone && can_see_predecessor(index)) {
    detail(node.name + ": no process of the lost agent is left");
    joined.gone_incarnation = node.predecessor->incarnation;
    node.predecessor.reset();
  }
  inform(index, std::move(joined));
}

/// A node that was started by itself may set its own number of workers.
rendezvous::ProcsWanted Supervisor::workers_wanted(const rendezvous::Hello& hello) const {
  if (hello.workers == 0 || hello.workers > rendezvous::kMaxWorldSize) return procs_wanted(spec_);
  return {rendezvous::ProcsRule::kNumber, static_cast<int>(hello.workers), true};
}

/// scancel, or the end of the job's time limit, sends SIGTERM to all processes of the steps. The master may
/// get it later, or never.
bool Supervisor::ended_by_slurm(const Error& error) const {
  return spec_.launcher == LauncherKind::kSlurm && error.code == ErrorCode::kLinkLost && error.sys == SIGTERM;
}

void Supervisor::handle(std::size_t index, const rendezvous::Refused& message, Time now) {
  Error error{static_cast<ErrorCode>(message.code), message.text, message.sys};
  Node& node = nodes_[index];
  if (ended_by_slurm(error) && state_ < State::kLeaving) {
    if (!user_wants_end_) {
      on(job::UserSignal{SIGTERM}, now);
      slurm_ends_ = true;
    }
    node.reason_reported = true;
    return;
  }
  switch (node.state) {
    case NodeState::kUp:
      send_away(index, error);
      return absent(index, std::move(error), now);
    case NodeState::kAccepted:
    case NodeState::kSpawned:
    case NodeState::kWaiting:
    case NodeState::kEnded:
      break;
    case NodeState::kConnecting:
    case NodeState::kLeaving:
    case NodeState::kGone:
      return;
  }
  if (node.lost) return;
  node.reason_reported = true;
  // The agent has to leave: it ends its workers and reports when they are gone.
  if (error.code == ErrorCode::kLinkLost) return lose(index, std::move(error), now);
  if (starting() && node.participant) return fail_start(index, std::move(error), now);
  if (!running_participant(index, attempt_)) return;
  // The agent could not start any worker, so none runs and no further message follows.
  node.state = NodeState::kEnded;
  take_as_failed(index, error, now);
  inform(index, rendezvous::NodeRefused{std::move(error.text)});
}

/// The other nodes react to a broken link at once. The reason may take seconds, because an agent that is
/// ordered to end stops its own workers first.
void Supervisor::on(const job::LinkEnded& event, Time now) {
  const Node& node = nodes_[event.node];
  const bool joined = node.state >= NodeState::kAccepted && node.state <= NodeState::kEnded;
  if (event.incarnation == node.incarnation && joined && !node.lost) lose(event.node, event.error, now);
}

/// Informs the Membership. The end of the node's workers, or of its link, follows later.
void Supervisor::lose(std::size_t index, Error error, Time now) {
  Node& node = nodes_[index];
  const bool workers_dead = node.state != NodeState::kSpawned && node.state != NodeState::kWaiting;
  take_loss(index, error, now);
  inform(index, rendezvous::LinkLost{std::move(error.text), workers_dead});
}

/// Applies the loss of a node to the attempt and notifies the user.
void Supervisor::take_loss(std::size_t index, const Error& error, Time now) {
  Node& node = nodes_[index];
  node.trouble = {error, now};
  if (node.state == NodeState::kSpawned || node.state == NodeState::kWaiting) {
    node.predecessor = {node.incarnation, machine_of(node.hello), node.worker_pids};
    std::erase(node.predecessor->pids, 0U);
    node.predecessor->pids.insert(node.predecessor->pids.end(), {node.hello.pid, node.hello.keeper});
  }
  const bool serves = node.participant && *node.participant == 0 && running();  // its agent serves the store
  if (node.participant && (starting() || serves || node.state == NodeState::kSpawned)) {
    take_as_failed(index, error, now);
  } else {
    say(node.name + " was lost: " + error.text);
  }
  node.lost = true;
}

/// Records a node's failure in the attempt for the report and the hang investigation.
void Supervisor::take_as_failed(std::size_t index, Error error, Time now) {
  failures_.node_failed(nodes_[index].name, std::move(error), now);
  if (running()) hang_.node_gone(*nodes_[index].participant, now);
  if (starting() || running()) stop_reason_ = "node " + nodes_[index].name + " was lost";
}

void Supervisor::on(const job::NodeGone& event, Time now) {
  Node& node = nodes_[event.node];
  if (event.workers_dead && state_ < State::kLeaving)
    updates_.push_back({rendezvous::WorkersGone{}, event.node, event.incarnation, attempt_});
  const bool known = event.workers_dead || event.workers_left;
  if (known && node.predecessor && node.predecessor->incarnation == event.incarnation)
    node.predecessor.reset();
  if (event.incarnation != node.incarnation && node.incarnation != 0) return;
  const NodeState before = node.state;
  if (before == NodeState::kGone || (before == NodeState::kConnecting && node.incarnation != 0)) {
    // The loss is known already; the event adds the reason.
    if (node.lost && !node.reason_reported) failures_.explain_node(node.name, event.error);
    return;
  }
  if (state_ != State::kLeaving && before >= NodeState::kAccepted && before <= NodeState::kEnded &&
      !node.lost)
    lose(event.node, event.error, now);
  else if (node.lost && !node.reason_reported)
    failures_.explain_node(node.name, event.error);
  node.state = NodeState::kGone;
  if (state_ == State::kLeaving) return finish_if_gone();
  if (before == NodeState::kUp || before == NodeState::kConnecting) absent(event.node, event.error, now);
}

/// Gives up nodes that came back but hang before they can take part.
void Supervisor::give_up_slow_joins(Time now) {
  if (attempt_ == 0 && !in_attempt()) return;  // the first attempt has its own limit
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.state != NodeState::kUp || now - node.up_at < spec_.start_timeout) continue;
    const Error late{ErrorCode::kTimeout, "it was still " + missing_step(i) + " " +
                                              limit_text(spec_.start_timeout) +
                                              " after its hello (--start-timeout)"};
    say(node.name + " is given up: " + late.text);
    node.state = NodeState::kGone;
    actions_.push_back(job::Disconnect{i});
    absent(i, late, now);
  }
}

/// Sends the node away with a reason of its own.
void Supervisor::send_away(std::size_t index, const Error& error) {
  send(index, rendezvous::Leave{exit_code_of(error), error.text});
  nodes_[index].state = NodeState::kLeaving;
}

/// Sends the node away because the job does not need it any more.
void Supervisor::send_away(std::size_t index) {
  send(index, goodbye_);
  nodes_[index].state = NodeState::kLeaving;
}

// ---- the Membership

void Supervisor::inform(std::size_t node, rendezvous::MemberEvent event) {
  updates_.push_back({std::move(event), node, nodes_[node].incarnation, attempt_});
}

/// Informs the Membership of an event that concerns no single node.
void Supervisor::inform(rendezvous::MemberEvent event) {
  updates_.push_back({std::move(event), 0, 0, attempt_});
}

void Supervisor::follow_membership(Time now) {
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
}

void Supervisor::carry_out(const rendezvous::Drop& action, Time now) {
  Node& node = nodes_[action.host];
  const bool there = node.state >= NodeState::kAccepted && node.state <= NodeState::kEnded;
  if (action.incarnation != node.incarnation || node.lost || !there)
    return;  // it leaves by itself, or has left
  if (joining_ == action.host) {
    notify(node.name + " is not used: " + action.reason);
    return send_away(action.host);
  }
  // The node is silent, or does not end its workers.
  take_loss(action.host, Error{ErrorCode::kLinkLost, action.reason, 0}, now);
  node.reason_reported = true;
  node.state = NodeState::kGone;
  actions_.push_back(job::Disconnect{action.host});
}

void Supervisor::carry_out(const rendezvous::RecallHost& action, Time) {
  const Node& lost = nodes_[action.host];
  if (lost.lost && (lost.state == NodeState::kSpawned || lost.state == NodeState::kWaiting))
    return inform(action.host, rendezvous::Absent{"its agent is still stopping its workers"});
  nodes_[action.host].state = NodeState::kConnecting;
  detail("trying to reach " + nodes_[action.host].name + " again");
  actions_.push_back(job::Recall{action.host});
}

void Supervisor::carry_out(const rendezvous::NotifyUser& action, Time) {
  notify(action.text);
}

void Supervisor::carry_out(const rendezvous::BackOff& action, Time) {
  const Failure* root = failures_.root_cause();
  const bool some_alive = std::any_of(nodes_.begin(), nodes_.end(),
                                      [](const Node& node) { return node.state == NodeState::kWaiting; });
  std::string words = (root != nullptr ? failure_line(*root) : action.reason) +
                      (some_alive ? "; the other ranks survive: restart " : "; restart ") +
                      std::to_string(action.restart) + " of " + std::to_string(spec_.max_restarts);
  if (!some_alive || action.wait > Time(0)) words += " in " + format_duration(action.wait);
  say(std::move(words));
  for (const Failure& failure : end().failures)  // the summary at the end names root causes only
    if (failure.kind == Failure::Kind::kNode && &failure != root) say("also: " + failure_line(failure));
  failures_.end_attempt();
  state_ = State::kBackingOff;
  deadline_.reset();
}

void Supervisor::carry_out(const rendezvous::StopAttempt& action, Time now) {
  growing_ = action.cause == rendezvous::StopCause::kScaleUp;
  if (growing_) notify(action.reason);
  const milliseconds grace =
      action.cause == rendezvous::StopCause::kUser ? spec_.stop_grace : spec_.failure_grace;
  const std::string ours = std::exchange(stop_reason_, {});
  const std::string& reason = ours.empty() ? action.reason : ours;
  if (action.another && survivors_.can_survive()) return revoke_all(reason, now);
  if (action.cause == rendezvous::StopCause::kFailure) report_stop(grace);
  stop_all(grace, reason, now);
}

void Supervisor::carry_out(const rendezvous::EndJob& action, Time now) {
  if (growing_) failures_.forget_attempt();
  const bool too_few = action.outcome == rendezvous::Outcome::kTooFew ||
                       (action.outcome == rendezvous::Outcome::kNodeLost && end().failures.empty());
  if (too_few) {
    const bool at_start = action.outcome == rendezvous::Outcome::kTooFew;
    report_missing(at_start, now);
    if (end().failures.empty())
      failures_.master_failed(Error{at_start ? ErrorCode::kTimeout : ErrorCode::kLinkLost, action.reason, 0});
  } else if (!action.no_restart.empty()) {
    const Failure* root = failures_.root_cause();
    const bool not_executed = root != nullptr && root->kind == Failure::Kind::kExec;
    say("not restarted, although --max-restarts allows it: " +
        (not_executed ? "the program could not be executed on " + root->host : action.no_restart));
  }
  ended_ = true;
  if (!deadline_ || running()) deadline_ = now + kLastWait;  // hang detection has ended
  const milliseconds grace = user_wants_end_ ? spec_.stop_grace : spec_.failure_grace;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != NodeState::kWaiting || nodes_[i].lost) continue;
    if (user_wants_end_ && deadline_ != now + grace + kLastWait)
      say_stopping(end().stop_signal == 0 ? SIGINT : end().stop_signal);
    end_survivors(i, grace, action.reason);
    deadline_ = now + grace + kLastWait;
  }
}

/// A lost node may still have to end its workers, and its reason may be on the way. The master waits for
/// both.
void Supervisor::leave_when_quiet(Time now) {
  if (!ended_ || state_ >= State::kLeaving) return;  // called after every event
  const bool quiet = std::none_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return (node.lost || node.ending) && node.state == NodeState::kSpawned;
  });
  if (!quiet) return;
  const Failure* root = failures_.root_cause();
  if (root != nullptr && end().stop_signal == 0 && is_stop_signal(root->error.sys) &&
      only_stopped_by(root->error.sys) && now < root->when + kSignalSpread) {
    deadline_ = root->when + kSignalSpread;
    return;
  }
  leave_all(now);
}

/// Names only missing nodes, in the order of their failures. Each has its reason, or the step at which it is.
void Supervisor::report_missing(bool at_start, Time now) {
  std::vector<std::pair<std::size_t, NodeTrouble>> missed;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const bool there = node.state >= NodeState::kAccepted && node.state <= NodeState::kEnded && !node.lost;
    if (there || (!at_start && !node.participant)) continue;
    const Error late{ErrorCode::kTimeout, "it was still " + missing_step(i) + " when the start limit of " +
                                              limit_text(spec_.start_timeout) + " ran out (--start-timeout)"};
    if (!node.trouble && now < start_limit_) continue;  // the node had no time to come
    missed.emplace_back(i, node.trouble.value_or(NodeTrouble{late, now}));
  }
  std::stable_sort(missed.begin(), missed.end(),
                   [](const auto& a, const auto& b) { return a.second.at < b.second.at; });
  for (auto& [node, trouble] : missed) {
    Error error = std::move(trouble.error);
    if (!at_start) {
      error.code = ErrorCode::kLinkLost;
      error.text += "; no node replaced it" + within(spec_.start_timeout);
    }
    failures_.node_failed(nodes_[node].name, std::move(error), now);
  }
}

}  // namespace ddp::launcher
