#include "rendezvous/membership/membership.h"

#include <algorithm>
#include <utility>

#include "base/format_text.h"

namespace ddp::rendezvous {
namespace {

using std::chrono::seconds;

/// If a Tick is late by more than this, this machine slept, and the others were not silent.
constexpr seconds kOverslept{1};

}  // namespace

Membership::Membership(MembershipRules rules)
    : rules_(std::move(rules)), slot_table_(rules_.max_nodes, rules_.min_nodes == rules_.max_nodes) {
  nodes_.resize(rules_.hosts.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].name = rules_.hosts[i];
    nodes_[i].coming = true;
    nodes_[i].absence = "it has not connected yet";
  }
  coming_ = static_cast<int>(nodes_.size());
}

Membership::Actions Membership::step(const Sender& from, const MemberEvent& event, Time now) {
  if (state_ == State::kEnded && !std::holds_alternative<Joined>(event)) return {};
  if (!started_) {
    started_ = now;
    gather(now);
    watch_at_ = now;
  }
  if (const auto due = deadline(); due && now > *due + kOverslept) awake_since_ = now;
  std::visit([&](const auto& e) { take(from, e, now); }, event);
  return std::exchange(actions_, {});
}

std::optional<Membership::Time> Membership::deadline() const {
  if (state_ == State::kEnded || !started_) return {};
  Time due = watch_at_;
  for (const auto& other : {phase_end_, retry_at_, growth_at_})
    if (other) due = std::min(due, *other);
  return due;
}

// ---- nodes that come and go

/// Returns the sender's node, present or not, if it is a host of this job.
Membership::Node* Membership::host_of(const Sender& from) {
  return from.job == rules_.job && from.host < nodes_.size() ? &nodes_[from.host] : nullptr;
}

/// Returns the sender's node if its events count: right job, present, current incarnation.
Membership::Node* Membership::known(const Sender& from) {
  Node* node = host_of(from);
  return node != nullptr && node->present && node->incarnation == from.incarnation ? node : nullptr;
}

/// Returns the sender's node if it also still runs its part of this attempt.
Membership::Node* Membership::in_attempt(const Sender& from) {
  Node* node = known(from);
  const bool counts = (state_ == State::kRunning || state_ == State::kStopping) && from.attempt == attempt_;
  return node != nullptr && counts && node->participation == Participation::kRunning ? node : nullptr;
}

void Membership::refuse(const Sender& from, std::string reason) {
  actions_.emplace_back(Drop{from.host, from.incarnation, std::move(reason)});
}

/// Returns whether to accept a hello. Drops the link with the reason if not, unless the hello is a
/// repetition.
bool Membership::admit(const Sender& from, const Joined& event) {
  const Node* node = from.host < nodes_.size() ? &nodes_[from.host] : nullptr;
  const bool present = node != nullptr && node->present;
  if (present && from.incarnation == node->incarnation) return false;  // a repeated hello
  std::string why;
  if (from.job != rules_.job) {
    why = "it belongs to job " + std::string(from.job) + ", not to " + rules_.job;
  } else if (state_ == State::kEnded || user_stop_) {
    why = "the job is over";
  } else if (node == nullptr) {
    why = "it is not a host of this job";
  } else if (event.slots < 1) {
    why = "it has no slots";
  } else if (from.incarnation <= node->incarnation) {
    why = present ? "a later agent of its host has joined" : "it was given up as lost; a new agent must join";
  } else if (present && !node->suspect && !event.name.empty() && event.name != node->name) {
    why = "node " + std::to_string(from.host) + " is " + node->name +
          " already; each node needs a --node-rank of its own";
  } else if (!present && present_ >= rules_.max_nodes + rules_.spares) {
    why = "the job has all nodes that it can use: " + std::to_string(rules_.max_nodes) + " and " +
          counted(rules_.spares, "spare");
  }
  if (why.empty()) return true;
  refuse(from, std::move(why));
  return false;
}

void Membership::take(const Sender& from, const Joined& event, Time now) {
  const bool admitted = admit(from, event);
  if (event.gone_incarnation != 0 && host_of(from) != nullptr)
    workers_gone(from.host, event.gone_incarnation, now);
  if (!admitted) return try_begin(now);
  if (nodes_[from.host].present) {
    lose(from.host, "its agent was restarted", false, now);
    if (state_ == State::kEnded) return refuse(from, "the job is over");
  }
  Node& node = nodes_[from.host];
  coming_ -= std::exchange(node.coming, false);
  if (!event.name.empty()) node.name = event.name;
  node.incarnation = from.incarnation;
  node.slots = event.slots;
  node.present = true;
  node.suspect = false;
  node.participation = Participation::kNone;
  node.heard = now;
  node.recall_at.reset();
  ++present_;
  if (state_ == State::kRunning) {
    notify(node.name + " joined" +
           (rules_.scale_up_now ? "" : "; it takes part from the next attempt (--scale-up next)"));
    if (rules_.scale_up_now && !growth_at_) growth_at_ = std::max(now + rules_.debounce, node.busy_until);
  } else if (attempt_ > 0) {
    notify(node.name + " joined");
  }
  try_begin(now);
}

void Membership::take(const Sender& from, const Heartbeat&, Time now) {
  Node* node = known(from);
  if (node == nullptr) return;
  const Time silent = now - node->heard;
  node->heard = now;
  if (!std::exchange(node->suspect, false)) return;
  notify(node->name + " responds again after " + format_duration(silent));
  try_begin(now);
}

void Membership::take(const Sender& from, const LinkLost& event, Time now) {
  if (known(from) != nullptr) lose(from.host, event.why, event.workers_dead, now);
}

void Membership::take(const Sender& from, const Absent& event, Time now) {
  Node* node = host_of(from);
  if (node == nullptr || !std::exchange(node->coming, false)) return;
  --coming_;
  node->absence = event.why;
  recall_later(*node, now);
  if (state_ == State::kGathering) fail_early(now);
  try_begin(now);
}

void Membership::take(const Sender& from, const WorkersGone&, Time now) {
  if (host_of(from) == nullptr) return;
  workers_gone(from.host, from.incarnation, now);
  try_begin(now);
}

void Membership::workers_gone(HostNumber host, std::uint32_t incarnation, Time now) {
  Node& node = nodes_[host];
  if (node.busy_incarnation != incarnation) return;
  node.busy_until = now;
  node.fenced_until = std::min(node.fenced_until, now);
}

/// A host that failed before the first attempt is not recalled until that attempt has begun, since the user
/// may have to fix it. recall_at_start lifts this rule.
void Membership::recall_later(Node& node, Time now) {
  if (!rules_.recall || (attempt_ == 0 && state_ == State::kGathering && !rules_.recall_at_start)) return;
  const int doublings = std::min(node.recalls++, 10);
  node.recall_at = now + std::min<Time>(rules_.recall_every * (1 << doublings), rules_.max_recall_wait);
}

/// Before the first attempt: when MIN nodes cannot be reached, waits only `debounce`, so that other hosts can
/// report their failures. Does not wait if every host has answered.
void Membership::fail_early(Time now) {
  if (attempt_ > 0 || present_ + coming_ >= rules_.min_nodes) return;
  phase_end_ = std::min(*phase_end_, now + rules_.debounce);
  if (coming_ == 0) on_join_limit(now);
}

/// Gives up an incarnation of a host. Its workers may run until its lease ends.
void Membership::lose(HostNumber host, const std::string& why, bool workers_dead, Time now) {
  if (state_ == State::kEnded) return;  // the driver ends all nodes
  Node& node = nodes_[host];
  node.present = false;
  node.suspect = false;
  node.absence = "lost: " + why;
  --present_;
  refuse({rules_.job, attempt_, host, node.incarnation}, why);
  node.recalls = 0;
  recall_later(node, now);
  charge(host, now);
  const Participation before = node.participation;
  // A node not heard since this machine slept counts as heard until now: the master may have announced the
  // sleep, and then the lease of the node had no end.
  const Time last_heard = node.heard < awake_since_ ? now : node.heard;
  if ((before == Participation::kRunning || before == Participation::kWaiting) && !workers_dead) {
    node.busy_until = last_heard + rules_.lease;  // an earlier lease had ended before this attempt began
    node.busy_incarnation = node.incarnation;
    if (fences(host)) node.fenced_until = node.busy_until;
  }
  const bool held_store =
      !world_.assignments.empty() && world_.assignments[0].host == host && before == Participation::kEnded;
  if (before == Participation::kRunning) --running_slots_;
  node.participation = Participation::kNone;
  if (state_ == State::kRunning && (before == Participation::kRunning || held_store)) {
    stop(StopCause::kFailure, Outcome::kNodeLost, "node " + node.name + " was lost: " + why, false, now);
  } else if (state_ == State::kStopping && running_slots_ == 0) {
    attempt_over(now);
  } else if (state_ == State::kGathering) {
    if (!rules_.recall_at_start) fail_early(now);
    try_begin(now);
  }
}

/// Returns whether ranks of the attempt on this host may write a checkpoint that must not overlap the next
/// attempt.
bool Membership::fences(HostNumber host) const {
  if (rules_.fence != Fence::kRank0) return rules_.fence == Fence::kAll;
  return !world_.assignments.empty() && world_.assignments[0].host == host;
}

/// Reports a silent node first and gives it up later. The time that this machine slept does not count as
/// silence.
void Membership::drop_silent(Time now) {
  const auto silence = [&](const Node& node) { return now - std::max(node.heard, awake_since_); };
  std::vector<HostNumber> lost;
  for (HostNumber host = 0; host < nodes_.size(); ++host) {
    Node& node = nodes_[host];
    if (!node.present || silence(node) < std::min(rules_.suspect_after, rules_.node_timeout)) continue;
    if (silence(node) >= rules_.node_timeout) {
      lost.push_back(host);
    } else if (!node.suspect) {
      notify(node.name + " has been silent for " + format_duration(silence(node)) +
             "; it counts as lost after " + format_duration(rules_.node_timeout));
    }
    node.suspect = true;  // also keeps attempts from beginning with a node that is lost next
  }
  for (const HostNumber host : lost) {
    lose(host,
         "no heartbeat for " + format_duration(silence(nodes_[host])) +
             " (--node-timeout); the machine, its network, or the agent hangs",
         false, now);
  }
}

/// Gives up nodes that did not stop their workers in time. Giving up the last one may begin a new attempt.
void Membership::lose_unended(Time now) {
  std::vector<HostNumber> hosts;
  for (HostNumber host = 0; host < nodes_.size(); ++host)
    if (nodes_[host].participation == Participation::kRunning) hosts.push_back(host);
  for (const HostNumber host : hosts)
    lose(host, "it did not stop its workers within " + format_duration(rules_.stop_time), false, now);
}

/// Leaves out a host that fails repeatedly for a while, as long as the others suffice.
void Membership::charge(HostNumber host, Time now) {
  Node& node = nodes_[host];
  if (rules_.host_faults < 1 || static_cast<int>(nodes_.size()) <= rules_.min_nodes)
    return;  // none could take its place
  node.faults.push_back(now);
  while (node.faults.front() + rules_.fault_window < now)
    node.faults.pop_front();
  if (static_cast<int>(node.faults.size()) < rules_.host_faults) return;
  notify(node.name + " failed " + counted(node.faults.size(), "time") + " within " +
         format_duration(rules_.fault_window) + "; it is excluded for " + format_duration(rules_.cool_down) +
         " unless the job needs it");
  node.faults.clear();
  node.excluded_until = now + rules_.cool_down;
}

void Membership::recall_due(Time now) {
  for (HostNumber host = 0; host < nodes_.size(); ++host) {
    Node& node = nodes_[host];
    if (!node.recall_at || now < *node.recall_at) continue;
    node.recall_at.reset();
    if (present_ + coming_ >= rules_.max_nodes + rules_.spares) {
      node.recall_at = now + rules_.max_recall_wait;  // other nodes have taken its place; that may change
      continue;
    }
    node.coming = true;
    ++coming_;
    actions_.emplace_back(RecallHost{host});
  }
}

// ---- failures and normal ends

void Membership::take(const Sender& from, const WorkerFailed& event, Time now) {
  const Node* node = in_attempt(from);
  if (node == nullptr || state_ != State::kRunning) return;
  charge(from.host, now);
  stop(StopCause::kFailure, Outcome::kFailed, event.what + " on " + node->name, event.non_retryable, now);
}

void Membership::take(const Sender& from, const NodeEnded& event, Time now) {
  if (Node* waiting = known(from); waiting != nullptr && waiting->participation == Participation::kWaiting) {
    waiting->participation = Participation::kEnded;  // the survivors that waited there have ended
    if (event.left == 0) return;
    leftovers_ = counted(event.left, "process", "processes") + " of attempt " + std::to_string(from.attempt) +
                 " could not be killed on " + waiting->name;
    if (state_ == State::kGathering || state_ == State::kBackingOff)
      end(Outcome::kLeftovers, leftovers_, leftovers_);
    return;
  }
  Node* node = in_attempt(from);
  if (node == nullptr) return;
  node->participation = Participation::kEnded;
  --running_slots_;
  if (event.left > 0) {
    leftovers_ = counted(event.left, "process", "processes") + " of attempt " + std::to_string(attempt_) +
                 " could not be killed on " + node->name;
  }
  if (running_slots_ == 0) attempt_over(now);
}

void Membership::take(const Sender& from, const NodeWaits&, Time now) {
  Node* node = in_attempt(from);
  if (node == nullptr || state_ != State::kStopping) return;
  node->participation = Participation::kWaiting;
  if (--running_slots_ == 0) attempt_over(now);
}

void Membership::take(const Sender& from, const NodeRefused& event, Time now) {
  Node* node = in_attempt(from);
  if (node == nullptr) return;
  node->participation = Participation::kEnded;
  --running_slots_;
  if (state_ == State::kRunning) {
    charge(from.host, now);
    stop(StopCause::kFailure, Outcome::kFailed, node->name + " cannot start its workers: " + event.why,
         event.non_retryable, now);
  } else if (running_slots_ == 0) {
    attempt_over(now);
  }
}

void Membership::take(const Sender& from, const AttemptProgress&, Time) {
  if (in_attempt(from) != nullptr && state_ == State::kRunning) fruitful_ = true;
}

void Membership::take(const Sender& from, const AttemptFailed& event, Time now) {
  if (state_ != State::kRunning || from.attempt != attempt_) return;
  stop(StopCause::kFailure, Outcome::kFailed, event.why, event.non_retryable, now);
}

void Membership::take(const Sender&, const UserStop& event, Time now) {
  if (state_ == State::kEnded || user_stop_) return;
  user_stop_ = event.words;
  if (state_ == State::kRunning) return stop(StopCause::kUser, Outcome::kUser, event.words, true, now);
  if (state_ != State::kStopping) end(Outcome::kUser, event.words);
}

void Membership::take(const Sender&, const Tick&, Time now) {
  if (state_ == State::kEnded) return;
  if (now >= watch_at_) {
    watch_at_ = now + std::clamp<Time>(std::min(rules_.suspect_after, rules_.node_timeout) / 4,
                                       std::chrono::milliseconds(10), seconds(1));
    drop_silent(now);
    if (state_ != State::kEnded) recall_due(now);
  }
  if (growth_at_ && now >= *growth_at_) consider_growth(now);
  if (phase_end_ && now >= *phase_end_) {
    if (state_ == State::kBackingOff) {
      gather(now);
    } else if (state_ == State::kGathering) {
      on_join_limit(now);
    } else if (state_ == State::kStopping) {
      lose_unended(now);
    }
  }
  if (retry_at_ && now >= *retry_at_) try_begin(now);
}

}  // namespace ddp::rendezvous
