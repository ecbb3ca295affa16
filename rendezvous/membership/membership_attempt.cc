// The part of Membership that decides about attempts: when one begins, and what follows its end.
#include <algorithm>
#include <set>
#include <utility>

#include "base/format_text.h"
#include "rendezvous/membership/membership.h"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kMostNames = 8;

}  // namespace

// ---- before an attempt

void Membership::gather(Time now) {
  state_ = State::kGathering;
  join_limit_at_ = now + rules_.join_limit;
  phase_end_ = join_limit_at_;
  waiting_for_.clear();
  try_begin(now);
}

std::vector<SlotTable::Candidate> Membership::candidates(bool excluded_too, Time now) const {
  std::vector<SlotTable::Candidate> all;
  for (HostNumber host = 0; host < nodes_.size(); ++host) {
    const Node& node = nodes_[host];
    // Until its lease ends, workers of an earlier incarnation may still hold its devices.
    if (node.busy_until > now && some_wait()) continue;
    if (node.present && (excluded_too || node.excluded_until <= now)) all.push_back({host, node.slots});
  }
  return all;
}

bool Membership::enough(const SlotTable& slot_table) const {
  return slot_table.filled() >= rules_.min_nodes;
}

/// Returns the slots filled from the present nodes if they make a world. Excluded hosts are used only if the
/// others do not suffice.
std::optional<SlotTable> Membership::assign_slots(Time now) const {
  for (const bool excluded_too : {false, true}) {
    SlotTable slot_table = slot_table_;
    slot_table.fill(candidates(excluded_too, now));
    if (enough(slot_table)) return slot_table;
  }
  return {};
}

void Membership::wait_for(std::string what, std::optional<Time> until) {
  retry_at_ = until;
  if (attempt_ > 0 && waiting_for_ != what) notify("waiting for " + what);
  waiting_for_ = std::move(what);
}

/// Returns whether the present nodes suffice to begin; their slots may still turn out not to fit.
bool Membership::nodes_are_ready(Time now) {
  if (present_ < rules_.min_nodes) {
    wait_for("nodes: " + std::to_string(present_) + " of at least " + std::to_string(rules_.min_nodes), {});
    admission_window_.reset();
    return false;
  }
  // The first attempt defines the slots, so nodes that are still starting get the admission window.
  if (attempt_ > 0 || coming_ == 0 || present_ >= rules_.max_nodes + rules_.spares) return true;
  if (!admission_window_) admission_window_ = now + rules_.admission_window;
  if (now >= *admission_window_) return true;
  wait_for("more nodes", admission_window_);
  return false;
}

/// Returns true while the leases of lost nodes, as given by the member `until`, have not ended; the attempt
/// then waits. `which` qualifies the nodes in the message.
bool Membership::wait_for_leases(Time Node::*until, const std::string& which, Time now) {
  Time free{0};
  std::vector<std::string> busy;
  for (const Node& node : nodes_) {
    free = std::max(free, node.*until);
    if (node.*until > now) busy.push_back(node.name);
  }
  if (!busy.empty()) wait_for("the end of the lease of " + join_some(busy, kMostNames) + which, free);
  return !busy.empty();
}

void Membership::try_begin(Time now) {
  if (state_ != State::kGathering) return;
  retry_at_.reset();
  if (!nodes_are_ready(now)) return;
  const bool out_of_time = now >= *phase_end_;
  // Once one rank has left an attempt, its other ranks complete no further step
  // (docs/developers/worker_protocol.md). So with survivors, wait only for nodes that may still write a
  // checkpoint.
  const bool survivors = some_wait();
  const std::string may_run = ", whose workers may still run";
  if (!survivors && wait_for_leases(&Node::busy_until, may_run, now)) return;
  if (survivors &&
      wait_for_leases(&Node::fenced_until, ", whose workers may still write a checkpoint (--fence)", now))
    return;
  std::vector<std::string> suspects;
  for (const Node& node : nodes_)
    if (node.present && node.suspect) suspects.push_back(node.name);
  if (!suspects.empty() && !out_of_time)
    return wait_for("a heartbeat of " + join_some(suspects, kMostNames), {});
  std::optional<SlotTable> slot_table = assign_slots(now);
  if (!slot_table && wait_for_leases(&Node::busy_until, may_run, now)) return;
  if (!slot_table) return wait_for("a node large enough for the empty slots", {});
  begin(std::move(*slot_table), now);
}

void Membership::begin(SlotTable slot_table, Time now) {
  slot_table_ = std::move(slot_table);
  World world = slot_table_.world();
  report_change(world);
  world_ = std::move(world);
  for (Node& node : nodes_)
    node.participation = Participation::kNone;
  for (const RankAssignment& assignment : world_.assignments)
    nodes_[assignment.host].participation = Participation::kRunning;
  running_slots_ = static_cast<int>(world_.assignments.size());
  state_ = State::kRunning;
  for (Node& node : nodes_)
    if (attempt_ == 0 && !node.present && !node.coming) recall_later(node, now);
  phase_end_.reset();
  growth_at_.reset();
  fruitful_ = false;
  attempt_end_ = {};
  began_ = now;
  actions_.emplace_back(Begin{attempt_, world_});
}

void Membership::report_change(const World& world) {
  if (attempt_ == 0) return;
  std::set<HostNumber> before;
  for (const RankAssignment& assignment : world_.assignments)
    before.insert(assignment.host);
  std::vector<std::string> gained;
  for (const RankAssignment& assignment : world.assignments)
    if (before.erase(assignment.host) == 0) gained.push_back(nodes_[assignment.host].name);
  std::vector<std::string> gone;
  for (const HostNumber host : before)
    gone.push_back(nodes_[host].name);
  if (gone.empty() && gained.empty()) return;
  std::string text = "attempt " + std::to_string(attempt_) + ": " +
                     counted(world.assignments.size(), "node") + ", " + counted(world.world_size, "worker");
  if (!gone.empty()) text += "; without " + join_some(gone, kMostNames);
  if (!gained.empty()) text += "; with " + join_some(gained, kMostNames);
  notify(std::move(text));
}

void Membership::on_join_limit(Time now) {
  Time free{0};
  for (const Node& node : nodes_)
    free = std::max(free, node.busy_until);
  if (free > now) {  // leases are no node's fault, and they end
    phase_end_ = free;
    return;
  }
  admission_window_ = now;
  try_begin(now);
  if (state_ != State::kGathering) return;
  std::string text = present_ < rules_.min_nodes
                         ? std::to_string(present_) + " of at least " + counted(rules_.min_nodes, "node")
                         : counted(present_, "node") + ", but none large enough for the empty slots";
  text += now >= join_limit_at_ ? " after " + format_duration(rules_.join_limit) + " (--start-timeout)" : "";
  if (const std::string names = missing(); !names.empty()) text += "; missing: " + names;
  end(attempt_ == 0 ? Outcome::kTooFew : Outcome::kNodeLost, std::move(text));
}

std::string Membership::missing() const {
  std::vector<std::string> names;
  for (const Node& node : nodes_)
    if (!node.present) names.push_back(node.name + " (" + node.absence + ")");
  return join_some(names, kMostNames);
}

// ---- during an attempt

/// Called a moment after a node joined. Stops the attempt if the job can grow.
void Membership::consider_growth(Time now) {
  growth_at_.reset();
  if (state_ != State::kRunning) return;
  SlotTable slot_table = slot_table_;
  slot_table.fill(candidates(false, now));
  const auto before = world_.assignments.size();
  const auto after = static_cast<std::size_t>(slot_table.filled());
  if (after <= before) return;
  stop(StopCause::kScaleUp, Outcome::kDone,
       "the job grows from " + std::to_string(before) + " to " + std::to_string(after) +
           " nodes (--scale-up now)",
       false, now);
}

void Membership::stop(StopCause cause, Outcome outcome, std::string reason, bool non_retryable, Time now) {
  state_ = State::kStopping;
  phase_end_ = now + rules_.stop_time;
  growth_at_.reset();
  attempt_end_ = {outcome, reason, non_retryable, cause};
  const bool another = another_follows(cause, non_retryable);
  actions_.emplace_back(StopAttempt{attempt_, cause, std::move(reason), another});
  if (running_slots_ == 0) attempt_over(now);
}

/// Returns whether another attempt is expected. The user may still end the job, and nodes may be lost.
bool Membership::another_follows(StopCause cause, bool non_retryable) {
  if (cause == StopCause::kUser || user_stop_) return false;
  if (cause == StopCause::kScaleUp) return true;
  return !non_retryable && leftovers_.empty() && restart_left();
}

// ---- after an attempt

/// Called when every node of the attempt has ended, waits or is lost. Ends the job or prepares another
/// attempt.
void Membership::attempt_over(Time now) {
  const AttemptEnd over = attempt_end_;
  if (!over.cause) return end(Outcome::kDone, "all workers ended normally");
  // If the user stops the job while a failure is handled, the failure stays the cause of the end.
  if (user_stop_ && *over.cause == StopCause::kFailure) return end(over.outcome, over.reason);
  if (user_stop_) return end(Outcome::kUser, *user_stop_);
  if (!leftovers_.empty()) return end(Outcome::kLeftovers, over.reason, leftovers_);
  if (*over.cause == StopCause::kScaleUp) {
    ++attempt_;
    return gather(now);
  }
  if (over.non_retryable) return end(over.outcome, over.reason, "another attempt would fail the same way");
  if (!restart_left()) return end(over.outcome, over.reason);
  ++restarts_;
  no_progress_ = fruitful_ || now - began_ >= rules_.fruitful_after ? 0 : no_progress_ + 1;
  const int doublings = std::clamp(no_progress_ - 1, 0, 20);
  Time wait = std::min(rules_.backoff * (1 << doublings), std::max(rules_.backoff, rules_.max_backoff));
  // Survivors of an attempt with progress hold the training state, and waiting would not help.
  if (no_progress_ == 0 && some_wait()) wait = Time(0);
  ++attempt_;
  state_ = State::kBackingOff;
  phase_end_ = now + wait;
  actions_.emplace_back(BackOff{over.reason, restarts_, wait});
}

bool Membership::some_wait() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return node.participation == Participation::kWaiting; });
}

void Membership::end(Outcome outcome, std::string reason, std::string no_restart) {
  if (!restart_left()) no_restart.clear();  // the budget is spent, so no restart is refused
  state_ = State::kEnded;
  actions_.emplace_back(EndJob{outcome, std::move(reason), std::move(no_restart)});
}

}  // namespace ddp::rendezvous
