// The part of the Supervisor that tracks nodes: it reports them to its Membership and carries out the
// Membership's decisions.
#include <algorithm>
#include <csignal>
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

/// A node that was started by itself may set its own number of workers.
rendezvous::ProcsWanted workers_wanted(const JobSpec& spec, const rendezvous::Hello& hello) {
  if (hello.workers == 0 || hello.workers > rendezvous::kMaxWorldSize) return procs_wanted(spec);
  return {rendezvous::ProcsRule::kNumber, static_cast<int>(hello.workers), true};
}

/// Sends a node away with a reason of its own.
rendezvous::Leave leave_for(const Error& error) {
  return {exit_code_of(error), error.text};
}

}  // namespace

// ---- nodes come and go

void Supervisor::on(const job::NodeUp& event, Time now) {
  NodeTable::Node& node = nodes_[event.node];
  if (node.state != NodeState::kConnecting) return;
  nodes_.came_up(event, now);
  survivors_.forget(event.node);  // survivors belong to an earlier incarnation
  const remote::Host& host = spec_.hosts[event.node];
  if (spec_.launcher == LauncherKind::kJoin) node.name = nodes_.name_of_joined(event.node, host.name);
  if (state_ == State::kLeaving) return send_away(event.node, goodbye_);
  out_.detail(node.name + ": agent on " + node.hello.hostname + ", " + std::to_string(node.hello.cpus) +
              " CPUs, " + std::to_string(node.hello.gpus) + " GPUs");
  rendezvous::JobStart start = job_start(spec_, host, nodes_.size());
  if (nodes_.can_see_predecessor(event.node, !host.wrapper.empty()))
    start.predecessor = node.predecessor->pids;
  out_.send(event.node, std::move(start));
}

void Supervisor::on(const job::NodeFailed& event, Time now) {
  NodeTable::Node& node = nodes_[event.node];
  if (node.state == NodeState::kGone) return;
  node.state = NodeState::kGone;
  if (state_ != State::kLeaving) absent(event.node, event.error, now);
}

void Supervisor::on(const job::NodeHeartbeat& event, Time) {
  const NodeTable::Node& node = nodes_[event.node];
  if (event.incarnation == node.incarnation && node.state >= NodeState::kAccepted)
    inform(rendezvous::Heartbeat{}, event.node);
}

/// The node is absent or unusable and not in the attempt. The Membership decides whether the job needs it.
void Supervisor::absent(std::size_t index, Error error, Time now) {
  nodes_[index].trouble = {error, now};
  if (nodes_.attempt() > 0 || state_ == State::kStarting || state_ == State::kRunning ||
      state_ == State::kStopping)
    out_.detail(nodes_[index].name + " is absent: " + error.text);
  record({.kind = JournalEvent::Kind::kNodeAbsent, .reason = error.text}, index);
  inform(rendezvous::Absent{std::move(error.text)}, index);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::JobAccepted& message, Time now) {
  NodeTable::Node& node = nodes_[from.node];
  const remote::Host& host = spec_.hosts[from.node];
  if (node.state != NodeState::kUp) return;
  auto plan = rendezvous::plan_ranks({slots_of(host, node.hello)}, workers_wanted(spec_, node.hello));
  if (!plan) {
    send_away(from.node, leave_for(plan.error()));
    return absent(from.node, plan.error(), now);
  }
  node.state = NodeState::kAccepted;
  node.infiniband = {node.name, node.hello.gpus, message.infiniband, message.no_infiniband};
  node.slots_reason = plan->nodes[0].reason;
  rendezvous::Joined joined{plan->nodes[0].local_world_size};
  if (spec_.launcher == LauncherKind::kJoin) joined.name = node.name;
  if (message.predecessor_gone && nodes_.can_see_predecessor(from.node, !host.wrapper.empty())) {
    out_.detail(node.name + ": no process of the lost agent is left");
    joined.gone_incarnation = node.predecessor->incarnation;
    node.predecessor.reset();
  }
  record({.kind = JournalEvent::Kind::kNodeJoined}, from.node);
  inform(std::move(joined), from.node);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::Refused& message, Time now) {
  Error error{static_cast<ErrorCode>(message.code), message.text, message.sys};
  NodeTable::Node& node = nodes_[from.node];
  // scancel, or the end of the job's time limit, sends SIGTERM to all processes of the steps. The master may
  // get it later, or never.
  const bool slurm_ends =
      spec_.launcher == LauncherKind::kSlurm && error.code == ErrorCode::kLinkLost && error.sys == SIGTERM;
  if (slurm_ends && state_ < State::kLeaving) {
    if (!user_wants_end_) {
      on(job::UserSignal{SIGTERM}, now);
      slurm_ends_ = true;
    }
    node.reason_reported = true;
    return;
  }
  if (node.state == NodeState::kUp) {
    send_away(from.node, leave_for(error));
    return absent(from.node, std::move(error), now);
  }
  if (!node.is_member() || node.lost) return;
  node.reason_reported = true;
  // The agent has to leave: it ends its workers and reports when they are gone.
  if (error.code == ErrorCode::kLinkLost) return lose(from.node, std::move(error), now);
  if (state_ == State::kStarting && node.participant) return fail_start(from.node, std::move(error), now);
  if (!nodes_.running_participant(from.node, nodes_.attempt())) return;
  // The agent could not start any worker. It ends survivors by itself, and no message about the attempt
  // follows.
  nodes_.refused(from.node);
  take_as_failed(from.node, error, now);
  inform(rendezvous::NodeRefused{std::move(error.text)}, from.node);
}

/// The other nodes react to a broken link at once. The reason may take seconds, because an agent that is
/// ordered to end stops its own workers first.
void Supervisor::on(const job::LinkEnded& event, Time now) {
  const NodeTable::Node& node = nodes_[event.node];
  if (event.incarnation == node.incarnation && node.is_member() && !node.lost)
    lose(event.node, event.error, now);
}

/// Applies the loss of a node to the attempt, and informs the user and the Membership. The end of the node's
/// workers, or of its link, follows later.
void Supervisor::lose(std::size_t index, Error error, Time now) {
  record({.kind = JournalEvent::Kind::kNodeLost, .reason = error.text}, index);
  nodes_.lose(index, error, now);
  const NodeTable::Node& node = nodes_[index];
  // The agent of the first participant serves the store.
  const bool serves = node.participant && *node.participant == 0 && state_ == State::kRunning;
  if (node.participant && (state_ == State::kStarting || serves || node.state == NodeState::kSpawned)) {
    take_as_failed(index, error, now);
  } else {
    out_.say(node.name + " was lost: " + error.text);
  }
  inform(rendezvous::LinkLost{std::move(error.text), !node.has_workers()}, index);
}

/// Records a node's failure in the attempt for the report and the hang investigation.
void Supervisor::take_as_failed(std::size_t index, Error error, Time now) {
  failures_.node_failed(nodes_[index].name, std::move(error), now);
  if (state_ == State::kRunning) hang_.node_gone(*nodes_[index].participant, now);
  if (state_ == State::kStarting || state_ == State::kRunning)
    stop_reason_ = "node " + nodes_[index].name + " was lost";
}

void Supervisor::on(const job::NodeGone& event, Time now) {
  NodeTable::Node& node = nodes_[event.node];
  if (event.workers_dead && state_ < State::kLeaving)
    updates_.push_back({rendezvous::WorkersGone{}, event.node, event.incarnation, nodes_.attempt()});
  const bool known = event.workers_dead || event.workers_left;
  if (known && node.predecessor && node.predecessor->incarnation == event.incarnation)
    node.predecessor.reset();
  if (event.incarnation != node.incarnation) return;
  const NodeState before = node.state;
  if (before == NodeState::kGone || before == NodeState::kConnecting) {
    // The loss is known already; the event adds the reason.
    if (node.lost && !node.reason_reported) failures_.explain_node(node.name, event.error);
    return;
  }
  if (state_ != State::kLeaving && node.is_member() && !node.lost)
    lose(event.node, event.error, now);
  else if (node.lost && !node.reason_reported)
    failures_.explain_node(node.name, event.error);
  node.state = NodeState::kGone;
  if (state_ != State::kLeaving && before == NodeState::kUp) absent(event.node, event.error, now);
}

/// Gives up nodes that came back but hang before they can take part.
void Supervisor::give_up_slow_joins(Time now) {
  // The first attempt has its own limit.
  if (nodes_.attempt() == 0 && state_ != State::kStarting && state_ != State::kRunning &&
      state_ != State::kStopping)
    return;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    NodeTable::Node& node = nodes_[i];
    if (node.state != NodeState::kUp || now - node.up_at < spec_.start_timeout) continue;
    const Error late{ErrorCode::kTimeout, "it was still " + missing_step(spec_, nodes_, nullptr, i) + ' ' +
                                              format_duration(spec_.start_timeout) +
                                              " after its hello (--start-timeout)"};
    out_.say(node.name + " is given up: " + late.text);
    node.state = NodeState::kGone;
    out_.disconnect(i);
    absent(i, late, now);
  }
}

void Supervisor::send_away(std::size_t index, rendezvous::Leave leave) {
  out_.send(index, std::move(leave));
  nodes_[index].state = NodeState::kLeaving;
}

// ---- the Membership

void Supervisor::inform(rendezvous::MemberEvent event, std::optional<std::size_t> node) {
  MembershipUpdate update{.event = std::move(event), .attempt = nodes_.attempt()};
  if (node) {
    update.node = *node;
    update.incarnation = nodes_[*node].incarnation;
  }
  updates_.push_back(std::move(update));
}

void Supervisor::carry_out(const rendezvous::Drop& action, Time now) {
  NodeTable::Node& node = nodes_[action.host];
  if (action.incarnation != node.incarnation || node.lost || !node.is_member())
    return;  // it leaves by itself, or has left
  if (joining_ == action.host) {
    out_.notify(node.name + " is not used: " + action.reason);
    return send_away(action.host, goodbye_);
  }
  // The node is silent, or does not end its workers.
  lose(action.host, Error{ErrorCode::kLinkLost, action.reason, 0}, now);
  node.reason_reported = true;
  node.state = NodeState::kGone;
  out_.disconnect(action.host);
}

void Supervisor::carry_out(const rendezvous::RecallHost& action, Time) {
  const NodeTable::Node& lost = nodes_[action.host];
  if (lost.lost && lost.has_workers())
    return inform(rendezvous::Absent{"its agent is still stopping its workers"}, action.host);
  nodes_[action.host].state = NodeState::kConnecting;
  out_.detail("trying to reach " + nodes_[action.host].name + " again");
  out_.add(job::Recall{action.host});
}

void Supervisor::carry_out(const rendezvous::NotifyUser& action, Time) {
  out_.notify(action.text);
}

void Supervisor::carry_out(const rendezvous::BackOff& action, Time) {
  const Failure* root = failures_.root_cause();
  const bool some_alive = std::any_of(nodes_.begin(), nodes_.end(), [](const NodeTable::Node& node) {
    return node.state == NodeState::kWaiting;
  });
  std::string words = (root != nullptr ? failure_line(*root) : action.reason) +
                      (some_alive ? "; the other ranks survive: restart " : "; restart ") +
                      std::to_string(action.restart) + " of " + std::to_string(spec_.max_restarts);
  if (!some_alive || action.wait > Time(0)) words += " in " + format_duration(action.wait);
  out_.say(std::move(words));
  record({.kind = JournalEvent::Kind::kAttemptEnded,
          .reason = root != nullptr ? failure_line(*root) : action.reason});
  for (const Failure& failure : end().failures)  // the summary at the end names root causes only
    if (failure.kind == Failure::Kind::kNode && &failure != root) out_.say("also: " + failure_line(failure));
  failures_.end_attempt();
  state_ = State::kBackingOff;
  deadline_.reset();
}

void Supervisor::carry_out(const rendezvous::StopAttempt& action, Time now) {
  growing_ = action.cause == rendezvous::StopCause::kScaleUp;
  if (growing_) out_.notify(action.reason);
  const milliseconds grace =
      action.cause == rendezvous::StopCause::kUser ? spec_.stop_grace : spec_.failure_grace;
  const bool failure = action.cause != rendezvous::StopCause::kUser && !growing_;
  const std::string ours = std::exchange(stop_reason_, {});
  const std::string& reason = ours.empty() ? action.reason : ours;
  if (action.another && survivors_.can_survive()) {
    revoking_ = true;
    survivors_.revoked(now);
    return stop_all(true, failure, Survivors::kRevokeTime, reason, now);
  }
  // A failure's report follows when all workers have ended. Says at once why they are stopped.
  const Failure* root = failures_.root_cause();
  const bool others = std::ranges::any_of(nodes_.world().assignments, [this](const auto& ranks) {
    return nodes_.running_participant(ranks.host, nodes_.attempt()) &&
           !ranks_.have_all(static_cast<std::uint32_t>(ranks.first_rank),
                            static_cast<std::uint32_t>(ranks.local_world_size));
  });
  if (action.cause == rendezvous::StopCause::kFailure && root != nullptr && others) {
    out_.notify(failure_line(*root) + "; stopping the " +
                (root->kind == Failure::Kind::kHung ? "workers" : "others") +
                (grace > milliseconds(0) ? " (SIGKILL in " + format_duration(grace) + "; Ctrl-C: now)" : ""));
  }
  stop_all(false, failure, grace, reason, now);
}

}  // namespace ddp::launcher
