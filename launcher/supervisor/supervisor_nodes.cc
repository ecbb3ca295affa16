// The part of the Supervisor about nodes that come, go, are silent, or fail.
#include <algorithm>
#include <csignal>
#include <utility>

#include "base/result.h"
#include "base/text.h"
#include "launcher/supervisor/attempt_start.h"
#include "launcher/supervisor/supervisor.h"
#include "rendezvous/membership/rank_plan.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A node sends something at least this often. So a node that is silent stopped within this time after its
/// last byte.
constexpr seconds kHeartbeat{1};
/// Time within which the machine of a silent node answers another probe if it can.
constexpr milliseconds kProbesStop{2'500};
/// Time beyond the retransmission by TCP for an answer to arrive.
constexpr seconds kAnswerSlack{2};
/// A node is probed so often.
constexpr seconds kProbePeriod{1};

rendezvous::NodeSlots slots_of(const remote::Host& host, const rendezvous::Hello& hello) {
  std::optional<int> devices;
  if (!host.devices.empty()) devices = static_cast<int>(host.devices.size());
  return {host.name, host.slots, devices, static_cast<int>(hello.gpus), static_cast<int>(hello.cpus)};
}

/// A node that was started by itself may set its own number of workers. Others have no say in it.
rendezvous::ProcsWanted workers_wanted(const JobSpec& spec, const rendezvous::Hello& hello) {
  if (spec.launcher != LauncherKind::kJoin || hello.workers == 0 || hello.workers > rendezvous::kMaxWorldSize)
    return spec.nproc;
  return {rendezvous::ProcsRule::kNumber, static_cast<int>(hello.workers), true};
}

/// Returns whether workers that this incarnation of the node started may run.
bool may_run(const NodeRecords::Node& node, std::uint32_t incarnation) {
  if (node.predecessor && node.predecessor->incarnation == incarnation) return true;
  return node.incarnation == incarnation && node.has_workers();
}

/// Sends a node away with a reason of its own.
rendezvous::Leave leave_for(const Error& error) {
  return {exit_code_of(error), error.text};
}

}  // namespace

// ---- nodes come

void Supervisor::on(const job::NodeUp& event, Time now) {
  NodeRecords::Node& node = nodes_[event.node];
  if (node.state != NodeState::kConnecting || event.incarnation <= node.incarnation) return;
  nodes_.came_up(event, now);
  survivors_.forget(event.node);  // survivors belong to an earlier incarnation
  const remote::Host& host = spec_.hosts[event.node];
  // The options know only the number of a node that joins by itself. Its hello brings the name for texts and
  // reports.
  if (spec_.launcher == LauncherKind::kJoin) node.name = nodes_.name_of_joined(event.node, host.name);
  if (state_ == State::kLeaving) return send_away(event.node, goodbye_);
  out_.detail(node.name + ": agent on " + node.hello.hostname + ", " + std::to_string(node.hello.cpus) +
              " CPUs, " + std::to_string(node.hello.gpus) + " GPUs");
  rendezvous::JobStart start = job_start(spec_, host, nodes_.size());
  // Asks the new agent whether the processes of the lost one have ended. Its answer in JobAccepted ends the
  // lease early.
  if (nodes_.can_see_predecessor(event.node, !host.wrapper.empty()))
    start.predecessor = node.predecessor->pids;
  if (!start.predecessor.empty()) start.predecessor_clock_ns = node.predecessor->clock_ns;
  out_.send(event.node, std::move(start));
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::JobAccepted& message, Time now) {
  NodeRecords::Node& node = nodes_[from.node];
  const remote::Host& host = spec_.hosts[from.node];
  if (node.state != NodeState::kUp) return;
  // Each node alone, to learn how many workers it can run. The ranks follow from the slots when an attempt
  // begins.
  auto plan = rendezvous::plan_ranks({slots_of(host, node.hello)}, workers_wanted(spec_, node.hello));
  if (!plan) {
    send_away(from.node, leave_for(plan.error()));
    return absent(from.node, plan.error(), now);
  }
  if (message.predecessor_gone && nodes_.can_see_predecessor(from.node, !host.wrapper.empty())) {
    out_.detail(node.name + ": no process of the lost agent is left");
    nodes_.prove_empty(from.node, node.predecessor->incarnation);  // an attempt that it enables has this node
  }
  std::string unused;
  if (state_ >= State::kEnding || user_stopped()) {
    unused = "the job is over";
  } else if (nodes_.present() >= rules_.max_nodes + rules_.spares) {
    unused = "the job has all nodes that it can use: " + std::to_string(rules_.max_nodes) + " and " +
             counted(rules_.spares, "spare");
  }
  if (!unused.empty()) {
    out_.notify(node.name + " is not used: " + unused);
    send_away(from.node, goodbye_);
    return try_begin(now);
  }
  node.infiniband = {node.name, node.hello.gpus, message.infiniband, message.no_infiniband};
  node.slots = plan->world_size;
  node.slots_reason = plan->reasons[0];
  join(from.node, now);
}

/// The node can run workers from now on.
void Supervisor::join(std::size_t index, Time now) {
  NodeRecords::Node& node = nodes_[index];
  nodes_.enter(index, NodeState::kAccepted);
  nodes_.heard_from(index, now);
  node.recall_at.reset();
  record({.kind = JournalEvent::Kind::kNodeJoined}, index);
  if (state_ == State::kStarting || state_ == State::kRunning) {
    out_.notify(node.name + " joined" +
                (rules_.scale_up_now ? "" : "; it takes part from the next attempt (--scale-up next)"));
    // Nodes often come together, so one stop serves all that join within `debounce`. A host whose old workers
    // may run gets no slot before their lease ends, and a stop before that would be in vain.
    if (rules_.scale_up_now && !growth_at_) {
      growth_at_ = now + rules_.debounce;
      if (node.is_busy(now)) growth_at_ = std::max(*growth_at_, node.predecessor->busy_until);
    }
  } else if (attempt() > 0) {
    out_.notify(node.name + " joined");
  }
  try_begin(now);
}

void Supervisor::send_away(std::size_t index, rendezvous::Leave leave) {
  out_.send(index, std::move(leave));
  nodes_.enter(index, NodeState::kLeaving);
}

// ---- nodes are absent

void Supervisor::on(const job::NodeFailed& event, Time now) {
  const NodeRecords::Node& node = nodes_[event.node];
  if (!node.is_coming()) return;
  nodes_.enter(event.node, NodeState::kGone);
  if (state_ != State::kLeaving) absent(event.node, event.error, now);
}

/// The node could not be reached, or cannot be used. It is not in the attempt.
void Supervisor::absent(std::size_t index, Error error, Time now) {
  DDP_REQUIRE(!nodes_[index].is_coming() && !nodes_[index].awaited, nodes_[index].name);
  nodes_[index].trouble = {error, now};
  if (nodes_.attempt() > 0 || state_ == State::kStarting || state_ == State::kRunning ||
      state_ == State::kStopping)
    out_.detail(nodes_[index].name + " is absent: " + error.text);
  record({.kind = JournalEvent::Kind::kNodeAbsent, .reason = std::move(error.text)}, index);
  if (state_ >= State::kEnding) return;
  recall_later(index, now);
  if (state_ == State::kConnecting) fail_early(now);
  try_begin(now);
}

/// Gives up nodes that came back but hang before they can take part.
void Supervisor::give_up_slow_joins(Time now) {
  // The first attempt has its own limit.
  if (nodes_.attempt() == 0 && state_ != State::kStarting && state_ != State::kRunning &&
      state_ != State::kStopping)
    return;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const NodeRecords::Node& node = nodes_[i];
    if (node.state != NodeState::kUp || now - node.up_at < spec_.start_timeout) continue;
    const Error late{ErrorCode::kTimeout, "it was still " + missing_step(spec_, nodes_, nullptr, i) + ' ' +
                                              format_duration(spec_.start_timeout) +
                                              " after its hello (--start-timeout)"};
    out_.say(node.name + " is given up: " + late.text);
    nodes_.enter(i, NodeState::kGone);
    out_.disconnect(i);
    absent(i, late, now);
  }
}

/// Before the first attempt: when MIN nodes cannot be reached, waits only `debounce`, so that other hosts can
/// report their failures. Does not wait if every host has answered.
void Supervisor::fail_early(Time now) {
  if (attempt() > 0 || nodes_.present() + nodes_.coming() >= rules_.min_nodes) return;
  deadline_ = std::min(*deadline_, now + rules_.debounce);
  if (nodes_.coming() == 0) on_join_limit(now);
}

/// A host that failed before the first attempt is not recalled until that attempt has begun, since the user
/// may have to fix it. recall_at_start lifts this rule.
void Supervisor::recall_later(std::size_t index, Time now) {
  const bool first_gathering = state_ == State::kConnecting && attempt() == 0;
  if (!rules_.recall || (first_gathering && !rules_.recall_at_start)) return;
  NodeRecords::Node& node = nodes_[index];
  const int doublings = std::min(node.recalls++, 10);
  node.recall_at = now + std::min<Time>(rules_.recall_every * (1 << doublings), rules_.max_recall_wait);
}

void Supervisor::recall_due(Time now) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    NodeRecords::Node& node = nodes_[i];
    if (!node.recall_at || now < *node.recall_at || node.sweeping) continue;
    node.recall_at.reset();
    if (nodes_.present() + nodes_.coming() >= rules_.max_nodes + rules_.spares) {
      node.recall_at = now + rules_.max_recall_wait;  // others have taken its place; that may change
    } else if (node.lost && node.has_workers() && node.is_busy(now)) {
      recall_later(i, now);  // its agent is still stopping its workers
    } else {
      if (node.state != NodeState::kGone) {  // the agent hangs, but its lease is over
        out_.disconnect(i);
        close_link(i);
      }
      nodes_.enter(i, NodeState::kConnecting);
      out_.detail("trying to reach " + node.name + " again");
      out_.add(job::Recall{i});
    }
  }
}

// ---- nodes are lost

void Supervisor::handle(const job::FromNode& from, const rendezvous::Refused& message, Time now) {
  Error error{message.code, message.text, message.sys};
  NodeRecords::Node& node = nodes_[from.node];
  // scancel, or the end of the job's time limit, sends SIGTERM to all processes of the steps. The master may
  // get it later, or never.
  const bool slurm_ends =
      spec_.launcher == LauncherKind::kSlurm && error.code == ErrorCode::kLinkLost && error.sys == SIGTERM;
  if (slurm_ends && state_ < State::kLeaving) {
    if (!user_stopped()) {
      on(job::UserSignal{SIGTERM, false, "Slurm, probably: the agent on " + node.name + " got it first"},
         now);
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
  if (error.code == ErrorCode::kLinkLost) return lose(from.node, std::move(error), Parting::kNone, now);
  if (state_ == State::kStarting && node.participant) return fail_start(from.node, std::move(error), now);
  if (!nodes_.running_participant(from.node, nodes_.attempt())) return;
  // The agent could not start any worker, and no message about the attempt follows. It ends survivors by
  // itself.
  nodes_.refused(from.node);
  take_as_failed(from.node, error, {from.happened, now}, now);
  if (state_ != State::kRunning) return end_part(from.node, now);
  nodes_.end_part(from.node);
  stop({StopCause::kFailure, Outcome::kFailed, "node " + node.name + " cannot start its workers", true}, now);
}

/// The other nodes react to a broken link at once. The reason may take seconds, because an agent that is
/// ordered to end stops its own workers first.
void Supervisor::on(const job::LinkEnded& event, Time now) {
  const NodeRecords::Node& node = nodes_[event.node];
  if (event.incarnation == node.incarnation && node.is_present())
    lose(event.node, event.error, Parting::kNone, now);
}

void Supervisor::on(const job::NodeGone& event, Time now) {
  NodeRecords::Node& node = nodes_[event.node];
  // Its keeper could not kill all workers, so the end of the lease would prove nothing.
  if (event.workers_left && may_run(node, event.incarnation)) report_leftovers(event.node, 1, now);
  if (event.incarnation == node.incarnation) {
    const NodeState before = node.state;
    if (state_ != State::kLeaving && node.is_present()) {
      lose(event.node, event.error, Parting::kGone, now);
    } else {
      if (node.lost && !node.reason_reported) failures_.explain_node(node.name, event.error);
      if (before != NodeState::kConnecting) close_link(event.node);
    }
    if (state_ != State::kLeaving && before == NodeState::kUp) absent(event.node, event.error, now);
  }
  if (event.workers_dead) return prove_empty(event.node, event.incarnation, now);
  const bool sweeps = state_ < State::kLeaving && node.state == NodeState::kGone && node.predecessor &&
                      node.predecessor->incarnation == event.incarnation && !event.workers_left &&
                      spec_.launcher != LauncherKind::kSlurm && !node.is_unreachable();
  if (!sweeps || std::exchange(node.sweeping, true)) return;
  out_.detail(node.name + ": searching for processes that its agent left");
  out_.add(job::SweepNode{event.node});
  if (state_ == State::kEnding) deadline_ = std::max(deadline_.value_or(now), now + kSweepTime);
}

void Supervisor::on(const job::NodeSwept& event, Time now) {
  NodeRecords::Node& node = nodes_[event.node];
  node.sweeping = false;
  if (event.found || event.empty) {
    const std::string text = node.name + ": " + event.text;
    event.found ? out_.say("warning: " + text) : out_.detail(text);
  }
  if (event.empty) return prove_empty(event.node, event.incarnation, now);
  if (node.predecessor && node.predecessor->incarnation == event.incarnation)
    node.predecessor->swept = event.text;
}

/// Gives up an incarnation of a node: for the user, the report, the attempt, and the next attempts. Its
/// workers may run until its lease ends.
void Supervisor::lose(std::size_t index, Error error, Parting parting, Time now) {
  NodeRecords::Node& node = nodes_[index];
  record({.kind = JournalEvent::Kind::kNodeLost, .reason = error.text}, index);
  // A node that we give up went silent within a heartbeat of its last byte; while the master sleeps there is
  // none. A link may break at any time.
  const bool silent = parting == Parting::kDisconnect;
  const Interval happened{node.heard, silent ? std::min(now, node.silent_since + kHeartbeat) : now};
  // These are read before nodes_.lose() changes the record.
  const bool was_awaited = node.awaited;
  // The agent of the first participant serves the store.
  const bool serves = node.participant && *node.participant == 0 && state_ == State::kRunning;
  const bool in_attempt =
      node.participant && (state_ == State::kStarting || serves || node.state == NodeState::kSpawned);
  // Dismissed survivors are always waited for, whatever --fence says (I2).
  nodes_.lose(index, error, rules_.lease, fences(index) || node.ending, now);
  if (in_attempt)
    take_as_failed(index, error, happened, now);
  else
    out_.say_of(node.name, "was lost: " + error.text);
  // The end of a link that we end explains nothing.
  node.reason_reported |= parting == Parting::kDisconnect || parting == Parting::kLeave;
  if (parting == Parting::kGone || parting == Parting::kDisconnect) close_link(index);
  if (parting == Parting::kDisconnect) out_.disconnect(index);
  if (parting == Parting::kLeave) send_away(index, leave_for(error));
  if (state_ >= State::kEnding) return;
  // The node had joined since its last recall, so the wait starts short again.
  node.recalls = 0;
  recall_later(index, now);
  if (!was_awaited && !serves) charge(index, now);  // else the attempt's root cause is charged
  if ((state_ == State::kStarting || state_ == State::kRunning) && (was_awaited || serves)) {
    stop({StopCause::kFailure, Outcome::kNodeLost, "node " + node.name + " was lost"}, now);
  } else if (state_ == State::kStopping) {
    if (was_awaited && nodes_.awaited() == 0) attempt_over(now);
  } else if (state_ == State::kConnecting) {
    if (!rules_.recall_at_start) fail_early(now);
    try_begin(now);
  }
}

/// Records a node's failure in the attempt for the report and the hang investigation.
void Supervisor::take_as_failed(std::size_t index, Error error, Interval happened, Time now) {
  failures_.node_failed(nodes_[index].name, std::move(error), happened);
  if (state_ == State::kRunning) hang_.node_gone(*nodes_[index].participant, now);
}

/// Returns whether ranks of the attempt on this node may write a checkpoint that must not overlap the next
/// attempt.
bool Supervisor::fences(std::size_t index) const {
  if (rules_.fence != FenceMode::kRank0) return rules_.fence == FenceMode::kAll;
  return nodes_.begun() && nodes_.node_of(0) == index;
}

/// No worker of this incarnation runs, for certain.
void Supervisor::prove_empty(std::size_t index, std::uint32_t incarnation, Time now) {
  if (nodes_.prove_empty(index, incarnation)) try_begin(now);
}

/// Processes of an attempt could not be killed. No attempt may run beside them.
void Supervisor::report_leftovers(std::size_t index, std::uint32_t left, Time now) {
  if (left == 0) return;
  leftovers_ = counted(left, "process", "processes") + " of attempt " +
               std::to_string(nodes_[index].spawned) + " could not be killed on " + nodes_[index].name;
  if (state_ == State::kConnecting || state_ == State::kBackingOff)
    end(Outcome::kLeftovers, leftovers_, leftovers_, now);
}

/// Gives up nodes that did not end their workers in time.
void Supervisor::lose_unended(Time now) {
  if (state_ == State::kStopping || state_ == State::kEnding) deadline_.reset();
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kSpawned) late.push_back(i);
    if (state_ == State::kEnding) nodes_[i].sweeping = false;
  }
  // In a loop of its own, because lose() may end the attempt and change other nodes.
  for (const std::size_t i : late) {
    if (nodes_[i].is_present()) {
      lose(i,
           Error{ErrorCode::kLinkLost,
                 "it did not stop its workers in time; check the node for leftover processes", 0},
           Parting::kDisconnect, now);
    } else {
      close_link(i);
      out_.disconnect(i);
    }
  }
}

/// The node has no link any more.
void Supervisor::close_link(std::size_t index) {
  nodes_.enter(index, NodeState::kGone);
  nodes_[index].ending = false;
}

// ---- silence

void Supervisor::on(const job::NodeHeartbeat& event, Time now) {
  NodeRecords::Node& node = nodes_[event.node];
  if (event.incarnation != node.incarnation || !node.is_present()) return;
  const Time silent = nodes_.heard_from(event.node, now);
  if (!node.suspect) return;
  node.suspect = false;
  if (state_ >= State::kEnding) return;
  out_.notify(node.name + " responds again after " + format_duration(silent));
  try_begin(now);
}

void Supervisor::on(const job::NodeReachable& event, Time now) {
  NodeRecords::Node& node = nodes_[event.node];
  if (event.incarnation != node.incarnation || !node.is_present()) return;
  // A gap in the answers means that the network was down again, so the outage has lasted until now.
  if (node.answered_at < node.heard || now - node.answered_at > kProbesStop) node.answers_since = now;
  node.answered_at = now;
}

/// Returns when a node counts as lost if nothing is heard of it. An outage of --node-timeout begins up to a
/// heartbeat after the last byte, and a probe finds its end a second later. After an
/// outage TCP may resend what was lost as late as after twice the outage (RFC 6298: the timer doubles). So a
/// node whose machine answers again gets that time. Where nobody can say whether it answers, it gets the time
/// that an outage of --node-timeout needs.
Supervisor::Time Supervisor::given_up_at(std::size_t index) const {
  const NodeRecords::Node& node = nodes_[index];
  const Time limit = node.silent_since + rules_.node_timeout;
  if (node.connected.empty() && (spec_.launcher == LauncherKind::kLocal || is_localhost(spec_.hosts[index])))
    return limit;  // no network is in between
  if (!node.probed) return limit + rules_.node_timeout + kAnswerSlack;
  const Time at_least = limit + kHeartbeat + kProbePeriod;
  if (node.answered_at < node.heard) return at_least;
  const Time outage = std::clamp<Time>(node.answers_since - node.silent_since, Time(0), rules_.node_timeout);
  return std::max(at_least, node.silent_since + 2 * outage + kAnswerSlack);
}

/// Reports a silent node first and gives it up later.
void Supervisor::lose_silent(Time now) {
  std::vector<std::size_t> lost;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    NodeRecords::Node& node = nodes_[i];
    const Time silence = now - node.silent_since;
    if (!node.is_present() || silence < std::min(rules_.suspect_after, rules_.node_timeout)) continue;
    const Time limit = given_up_at(i);
    if (now >= limit) {
      lost.push_back(i);
    } else if (!node.suspect) {
      out_.notify_of(node.name, "has been silent for " + format_duration(silence) +
                                    "; it counts as lost after " +
                                    format_duration(limit - node.silent_since));
    }
    node.suspect = true;  // also keeps attempts from beginning with a node that is lost next
  }
  for (const std::size_t i : lost) {
    // The loss of a node before it in the list may have made fail_early() give up this one, too.
    if (!nodes_[i].is_present()) continue;
    lose(i,
         Error{ErrorCode::kLinkLost,
               "no heartbeat for " + format_duration(now - nodes_[i].silent_since) +
                   " (--node-timeout); the machine, its network, or the agent hangs",
               0},
         Parting::kDisconnect, now);
  }
}

// ---- hosts that fail repeatedly

/// Leaves out a host that fails repeatedly for a while, as long as the others suffice.
void Supervisor::charge(std::size_t index, Time now) {
  if (rules_.host_faults < 1 || static_cast<int>(nodes_.size()) <= rules_.min_nodes)
    return;  // none could take its place
  NodeRecords::Node& node = nodes_[index];
  node.faults.push_back(now);
  while (node.faults.front() + rules_.fault_window < now)
    node.faults.pop_front();
  if (static_cast<int>(node.faults.size()) < rules_.host_faults) return;
  out_.notify(node.name + " failed " + counted(node.faults.size(), "time") + " within " +
              format_duration(rules_.fault_window) + "; it is excluded for " +
              format_duration(rules_.cool_down) + " unless the job needs it");
  node.faults.clear();
  node.excluded_until = now + rules_.cool_down;
}

/// Charges the failed attempt to the host of its root cause, when all failures are known. The first failure
/// that was reported may be an echo.
void Supervisor::charge_root_cause(Time now) {
  const Failure* root = failures_.root_cause();
  if (root == nullptr || root->kind == Failure::Kind::kHung) return;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].name == root->host) return charge(i, now);
}

}  // namespace ddp::launcher
