// The part of the Supervisor about attempts, in the order in which things happen: enough nodes, the begin,
// the order to spawn, the stop, and what follows.
#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <utility>

#include "base/exit_status.h"
#include "base/result.h"
#include "base/text.h"
#include "launcher/report/host_texts.h"
#include "launcher/supervisor/attempt_start.h"
#include "launcher/supervisor/supervisor.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kNodesNamed = 8;

/// Reports which node runs which ranks, and which nodes that the user named run none.
void report_first_start(const NodeRecords& nodes, Outbox& out) {
  std::vector<StartGroup> missing;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeRecords::Node& node = nodes[i];
    if (const rendezvous::RankAssignment* ranks = nodes.assignment(i)) {
      const auto last = ranks->first_rank + ranks->local_world_size - 1;
      out.detail(node.name + (last == ranks->first_rank ? ": rank " : ": ranks ") +
                 std::to_string(ranks->first_rank) +
                 (last == ranks->first_rank ? "" : " to " + std::to_string(last)) + " (" + node.slots_reason +
                 ")");
    } else if (node.trouble) {
      add_to_groups(missing, node.name, node.trouble->error.text);
    } else {
      out.notify(node.name +
                 (node.state == NodeRecords::State::kAccepted ? " is a spare" : " has not joined yet"));
    }
  }
  for (const StartGroup& group : missing)
    out.say("warning: the job starts without " + group_hosts_text(group) + ": " + reason_text(group));
}

JournalEvent attempt_started(const NodeRecords& nodes) {
  JournalEvent event{.kind = JournalEvent::Kind::kAttemptStarted};
  for (const rendezvous::RankAssignment& ranks : nodes.world().assignments)
    event.nodes.push_back({nodes[ranks.host].name, ranks.first_rank, ranks.local_world_size});
  return event;
}

/// Returns the host that had the place of `assignment` in the world before, and has left it; else nothing.
std::optional<std::size_t> replaced_host(const rendezvous::World& before, const rendezvous::World& world,
                                         std::size_t participant) {
  if (before.assignments.size() != world.assignments.size()) return {};
  const auto runs = [](const rendezvous::World& hosts, std::size_t host) {
    return std::ranges::any_of(hosts.assignments, [host](const auto& ranks) { return ranks.host == host; });
  };
  const std::size_t last = before.assignments[participant].host;
  const bool replaced = !runs(before, world.assignments[participant].host) && !runs(world, last);
  return replaced ? std::optional(last) : std::nullopt;
}

}  // namespace

// ---- before an attempt

std::uint32_t Supervisor::attempt() const {
  const bool between = state_ == State::kConnecting || state_ == State::kBackingOff;
  return nodes_.attempt() + (between && nodes_.begun() ? 1 : 0);
}

void Supervisor::gather(Time now) {
  state_ = State::kConnecting;
  deadline_ = join_limit_at_ = now + rules_.join_limit;
  waiting_for_.clear();
  try_begin(now);
}

/// Begins the next attempt if all that it needs is there. Invariant I2 of docs/developers/states.md: each
/// node of earlier attempts is proven to run no worker, its lease is over, or its workers survive and take
/// part.
void Supervisor::try_begin(Time now) {
  if (state_ != State::kConnecting) return;
  // Each of the checks below sets it again if only time is missing. Everything else comes as an event, which
  // calls this function again.
  retry_at_.reset();
  if (!nodes_are_ready(now)) return;
  // Once one rank has left an attempt, its other ranks complete no further step
  // (docs/developers/worker_protocol.md). So with survivors, wait only for nodes that may still write a
  // checkpoint.
  const bool survivors = survivors_wait();
  if (wait_for_leases(survivors, now)) return;
  std::vector<std::string> suspects;
  for (const NodeRecords::Node& node : nodes_)
    if (node.is_present() && node.suspect) suspects.push_back(node.name);
  // A suspect either answers or is lost, both soon. An attempt that began with one that is lost next would
  // cost a restart.
  if (!suspects.empty() && now < *deadline_)
    return wait_for("a heartbeat of " + join_some(suspects, kNodesNamed), {});
  std::optional<rendezvous::SlotTable> slot_table = assign_slots(now);
  // With survivors, leases were not waited for above. But without the hosts that are still busy there are too
  // few, so wait for them after all.
  if (!slot_table && wait_for_leases(false, now)) return;
  if (!slot_table) return wait_for("a node large enough for the empty slots", {});
  // Last, since it ends workers: before this line nothing is changed that a later event could not take back.
  if (dismiss_survivors(slot_table->world())) return;
  begin(std::move(*slot_table), now);
}

/// Returns whether the present nodes suffice to begin; their slots may still turn out not to fit.
bool Supervisor::nodes_are_ready(Time now) {
  if (nodes_.present() < rules_.min_nodes) {
    wait_for(
        "nodes: " + std::to_string(nodes_.present()) + " of at least " + std::to_string(rules_.min_nodes),
        {});
    admission_window_.reset();
    return false;
  }
  // The first attempt defines the slots, so nodes that are still starting get the admission window.
  if (attempt() > 0 || nodes_.coming() == 0 || nodes_.present() >= rules_.max_nodes + rules_.spares)
    return true;
  if (!admission_window_) admission_window_ = now + rules_.admission_window;
  if (now >= *admission_window_) return true;
  wait_for("more nodes", admission_window_);
  return false;
}

/// Returns true while workers of lost nodes may run, or, if `fenced_only`, may write a checkpoint. The
/// attempt then waits.
bool Supervisor::wait_for_leases(bool fenced_only, Time now) {
  Time free{0};
  std::vector<std::string> busy;
  for (const NodeRecords::Node& node : nodes_) {
    if (!node.is_busy(now) || (fenced_only && !node.predecessor->fenced)) continue;
    free = std::max(free, node.predecessor->busy_until);
    busy.push_back(node.name);
  }
  if (busy.empty()) return false;
  wait_for("the end of the lease of " + join_some(busy, kNodesNamed) +
               (fenced_only ? ", whose workers may still write a checkpoint (--fence)"
                            : ", whose workers may still run"),
           free);
  return true;
}

/// Ends survivors that have no slot in `world`. Returns true while some of them, or others, are being ended.
bool Supervisor::dismiss_survivors(const rendezvous::World& world) {
  std::set<std::size_t> assigned;
  for (const rendezvous::RankAssignment& ranks : world.assignments)
    assigned.insert(ranks.host);
  std::vector<std::string> ending;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].has_survivors() && !assigned.contains(i))
      end_survivors(i, spec_.failure_grace, "its node is not in attempt " + std::to_string(attempt()));
    if (nodes_[i].ending && !nodes_[i].lost) ending.push_back(nodes_[i].name);
  }
  if (ending.empty()) return false;
  wait_for("the end of the workers of " + join_some(ending, kNodesNamed), {});
  return true;
}

std::vector<rendezvous::SlotTable::Candidate> Supervisor::candidates(bool excluded_too, Time now) const {
  std::vector<rendezvous::SlotTable::Candidate> all;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const NodeRecords::Node& node = nodes_[i];
    // Workers of an earlier incarnation, or of an earlier attempt, may still hold its devices.
    if (!node.is_present() || node.is_busy(now) || node.ending) continue;
    if (excluded_too || node.excluded_until <= now)
      all.push_back({static_cast<rendezvous::HostNumber>(i), node.slots});
  }
  return all;
}

/// Returns the slots filled from the present nodes if they make a world. Excluded hosts are used only if the
/// others do not suffice.
std::optional<rendezvous::SlotTable> Supervisor::assign_slots(Time now) const {
  for (const bool excluded_too : {false, true}) {
    rendezvous::SlotTable slot_table = slot_table_;
    slot_table.fill(candidates(excluded_too, now));
    if (slot_table.filled() >= rules_.min_nodes) return slot_table;
  }
  return {};
}

void Supervisor::wait_for(std::string what, std::optional<Time> until) {
  retry_at_ = until;
  // The first start has a line of its own (StartNotice). A wait is repeated with every event, so only a new
  // one is said.
  if (attempt() > 0 && waiting_for_ != what) out_.notify("waiting for " + what);
  waiting_for_ = std::move(what);
}

void Supervisor::on_join_limit(Time now) {
  lose_unended(now);  // dismissed survivors
  if (state_ != State::kConnecting) return;
  Time free{0};
  for (const NodeRecords::Node& node : nodes_)
    if (node.is_busy(now)) free = std::max(free, node.predecessor->busy_until);
  if (free > now) {  // leases are no node's fault, and they end
    deadline_ = free;
    return;
  }
  // Ends the admission window: with MIN nodes the attempt begins now or never.
  admission_window_ = now;
  try_begin(now);
  if (state_ != State::kConnecting) return;
  const bool ending = std::any_of(nodes_.begin(), nodes_.end(), [](const NodeRecords::Node& node) {
    return node.ending && node.is_present();
  });
  if (ending) {  // dismissed just now
    deadline_ = now + spec_.failure_grace + kStopSlack;
    return;
  }
  std::string text =
      nodes_.present() < rules_.min_nodes
          ? std::to_string(nodes_.present()) + " of at least " + counted(rules_.min_nodes, "node")
          : counted(nodes_.present(), "node") + ", but none large enough for the empty slots";
  text += now >= join_limit_at_ ? " after " + format_duration(rules_.join_limit) + " (--start-timeout)" : "";
  if (const std::string names = missing(); !names.empty()) text += "; missing: " + names;
  end(attempt() == 0 ? Outcome::kTooFew : Outcome::kNodeLost, text, {}, now);
}

std::string Supervisor::missing() const {
  std::vector<std::string> names;
  for (const NodeRecords::Node& node : nodes_) {
    if (node.is_present()) continue;
    names.push_back(node.name + " (" +
                    (node.trouble ? node.trouble->error.text : "it has not connected yet") + ")");
  }
  return join_some(names, kNodesNamed);
}

// ---- an attempt begins

/// Three parts in an order that must hold. First, while `nodes_` and `state_` still are those of the attempt
/// before: attempt() counts it as over, report_change() compares with its world, and record() gives its
/// events its number. Then everything that is known of that attempt is dropped, before the first step that
/// may fail, since that failure and its stop() belong to the new one. The order to node 0 is the last: until
/// it has opened the store, no other node has anything to do.
void Supervisor::begin(rendezvous::SlotTable slot_table, Time now) {
  for (const NodeRecords::Node& node : nodes_) {
    // I2, checked once more where it counts: whatever path led here, no two attempts run beside each other.
    DDP_REQUIRE(node.state != NodeState::kSpawned || node.lost, node.name);
    DDP_REQUIRE(!node.is_busy(now) || (survivors_wait() && !node.predecessor->fenced), node.name);
  }
  const std::uint32_t number = attempt();
  slot_table_ = std::move(slot_table);
  const rendezvous::World before = nodes_.world();
  const rendezvous::World world = slot_table_.world();
  report_change(world);
  if (attempt_end_.cause == StopCause::kScaleUp)
    record({.kind = JournalEvent::Kind::kAttemptEnded, .reason = "a node joined"});
  state_ = State::kStarting;
  nodes_.begin_attempt(number, world);
  record(attempt_started(nodes_));
  for (std::size_t i = 0; i < world.assignments.size(); ++i) {
    const auto replaced = replaced_host(before, world, i);
    if (!replaced) continue;
    record({.kind = JournalEvent::Kind::kNodeReplaced, .reason = "in the place of " + nodes_[*replaced].name},
           nodes_.node_of(i));
  }
  if (number == 0) {
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      // Hosts that failed before this moment were not recalled, so that the user saw why (recall_later).
      if (!nodes_[i].is_present() && !nodes_[i].is_coming()) recall_later(i, now);
  }
  began_ = now;
  made_progress_ = false;
  growth_at_.reset();
  attempt_end_ = {};
  hang_ = {};
  hang_found_ = false;
  answer_user();
  ranks_ = {};
  // If the previous attempt was stopped because the job grew, its ends are no failures.
  failures_.forget_attempt();
  failures_.begin_attempt(number, now);
  deadline_ = number == 0 ? join_limit_at_ : now + spec_.start_timeout;
  if (number == 0) {
    failures_.name_job("job " + spec_.job_id + ": " + size_text(world), spec_.job_dir);
    if (!spec_.quiet) out_.add(job::PrintLine{job_line(end()), true});
    report_first_start(nodes_, out_);
  }
  std::vector<NodeNetwork> networks;
  for (std::size_t i = 0; i < world.assignments.size(); ++i) {
    const NodeRecords::Node& node = nodes_.participant(i);
    networks.push_back(node_network(spec_, spec_.hosts[nodes_.node_of(i)], node.hello, node.connected));
  }
  if (const auto twins = repeated_machine(networks); number == 0 && !twins.empty() && !spec_.quiet) {
    std::vector<std::string> names;
    for (const std::size_t i : twins)
      names.push_back(networks[i].name);
    out_.say("warning: " + join_some(names, kNodesNamed) +
             " are one machine; list it once, with slots=N, or its ranks share LOCAL_RANK and GPU");
  }
  if (const Result<> begun = start_.begin(number, std::move(networks), spec_.network); !begun) {
    failures_.master_failed(begun.error());  // it names the nodes itself
    return stop({StopCause::kFailure, Outcome::kFailed, begun.error().text, true}, now);
  }
  out_.detail("network: " + start_.network().reason);
  out_.send(nodes_.node_of(0), start_.store_order(spec_));
}

/// Says how the world differs from that of the attempt before.
void Supervisor::report_change(const rendezvous::World& world) {
  if (!nodes_.begun()) return;
  std::set<rendezvous::HostNumber> before;
  for (const rendezvous::RankAssignment& ranks : nodes_.world().assignments)
    before.insert(ranks.host);
  std::vector<std::string> gained;
  for (const rendezvous::RankAssignment& ranks : world.assignments)
    if (before.erase(ranks.host) == 0) gained.push_back(nodes_[ranks.host].name);
  std::vector<std::string> gone;
  for (const rendezvous::HostNumber host : before)
    gone.push_back(nodes_[host].name);
  if (gone.empty() && gained.empty()) return;
  std::string text = "attempt " + std::to_string(attempt()) + ": " +
                     counted(world.assignments.size(), "node") + ", " + counted(world.world_size, "worker");
  if (!gone.empty()) text += "; without " + join_some(gone, kNodesNamed);
  if (!gained.empty()) text += "; with " + join_some(gained, kNodesNamed);
  out_.notify(std::move(text));
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::StoreOpened& message, Time now) {
  const auto participant = nodes_[from.node].participant;
  if (state_ == State::kStarting && participant)
    follow_start(from.node, start_.opened(*participant, message), now);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::ProbeResult& message, Time now) {
  const auto participant = nodes_[from.node].participant;
  if (state_ == State::kStarting && participant)
    follow_start(from.node, start_.probed(*participant, message), now);
}

void Supervisor::follow_start(std::size_t index, AttemptStart::Step step, Time now) {
  if (!step.detail.empty()) out_.detail(std::move(step.detail));
  for (AttemptStart::ProbeOrder& probe : step.probes)
    out_.send(nodes_.node_of(probe.participant), std::move(probe.message));
  if (step.failure) return fail_start(index, std::move(*step.failure), now);
  if (step.ready) spawn_all(now);
}

void Supervisor::spawn_all(Time now) {
  const rendezvous::World& world = nodes_.world();
  const std::uint32_t number = nodes_.attempt();
  state_ = State::kRunning;
  deadline_.reset();
  if (number == 0 && !start_.network().one_machine) {  // said once, and only to jobs that need a network
    std::vector<NodeInfiniband> infiniband;
    for (std::size_t i = 0; i < world.assignments.size(); ++i)
      infiniband.push_back(nodes_.participant(i).infiniband);
    for (std::string& line : start_.network_lines(infiniband))
      out_.notify(std::move(line));
  }
  failures_.begin_attempt(number, now);
  survivors_.begin(world, spec_.start_timeout, now);
  if (std::string text = survivors_.lost_state_text(number); !text.empty()) out_.notify(std::move(text));
  std::vector<HangInvestigation::NodeShare> shares;
  for (std::size_t i = 0; i < world.assignments.size(); ++i) {
    rendezvous::Spawn spawn = spawn_message(world, i);
    start_.complete(spawn, i);
    if (survivors_.source()) spawn.from = static_cast<std::int32_t>(survivors_.source()->rank);
    spawn.max_restarts = static_cast<std::uint32_t>(spec_.max_restarts);
    spawn.agent_store = spec_.store == StoreMode::kAgent;
    shares.push_back({nodes_.participant(i).name, spawn.first_rank, spawn.local_world_size});
    if (i == 0) {
      out_.detail("all nodes are ready; starting " + counted(world.world_size, "worker") +
                  ", MASTER_ADDR=" + spawn.master_addr + " MASTER_PORT=" + std::to_string(spawn.master_port));
    }
    out_.send(nodes_.node_of(i), std::move(spawn));
    nodes_.spawned(i);
  }
  hang_ = HangInvestigation(hang_limits(spec_), std::move(shares), now);
}

/// A first attempt that cannot start would fail again. A later attempt may run without the node.
void Supervisor::fail_start(std::size_t index, Error error, Time now) {
  if (nodes_.attempt() > 0) return lose(index, std::move(error), Parting::kLeave, now);
  const std::string why = nodes_[index].name + ": " + error.text;
  take_as_failed(index, std::move(error), {now, now}, now);
  stop({StopCause::kFailure, Outcome::kFailed, why, true}, now);
}

/// Names only the nodes that hold up the start, each with its step.
void Supervisor::on_start_deadline(Time now) {
  for (const rendezvous::RankAssignment& assignment : nodes_.world().assignments) {
    const std::string step = missing_step(spec_, nodes_, &start_, assignment.host);
    if (!step.empty()) take_as_failed(assignment.host, late_error(spec_, step), {now, now}, now);
  }
  const Error late{ErrorCode::kTimeout, "the job did not start within " +
                                            format_duration(spec_.start_timeout) + " (--start-timeout)"};
  if (end().failures.empty()) failures_.master_failed(late);
  stop({StopCause::kFailure, Outcome::kFailed, late.text, true}, now);
}

/// Returns what the first start waits for; empty: it is over.
std::string Supervisor::awaited() const {
  const bool waits = nodes_.attempt() == 0 && (state_ == State::kConnecting || state_ == State::kStarting);
  return waits ? awaited_text(spec_, nodes_, state_ == State::kStarting ? &start_ : nullptr) : "";
}

// ---- an attempt is stopped

/// Called a moment after a node joined. Stops the attempt if the job can grow.
void Supervisor::consider_growth(Time now) {
  growth_at_.reset();
  rendezvous::SlotTable slot_table = slot_table_;
  slot_table.fill(candidates(false, now));
  const auto before = nodes_.world().assignments.size();
  const auto after = static_cast<std::size_t>(slot_table.filled());
  if (after <= before) return;
  stop({StopCause::kScaleUp, Outcome::kDone,
        "the job grows from " + std::to_string(before) + " to " + std::to_string(after) +
            " nodes (--scale-up now)"},
       now);
}

void Supervisor::stop(AttemptEnd why, Time now) {
  DDP_REQUIRE(state_ == State::kStarting || state_ == State::kRunning, state_, why.reason);
  attempt_end_ = std::move(why);
  growth_at_.reset();
  hang_.abandon();
  answer_user();
  const std::string& reason = attempt_end_.reason;
  const bool growing = attempt_end_.cause == StopCause::kScaleUp;
  const bool failure = attempt_end_.cause == StopCause::kFailure;
  const milliseconds grace = attempt_end_.cause == StopCause::kUser ? spec_.stop_grace : spec_.failure_grace;
  if (growing) out_.notify(reason);
  // Survivors are kept only if an attempt can use them; else they end as all others do.
  if (another_follows() && survivors_.can_survive()) {
    attempt_end_.revoked = true;
    survivors_.revoked(now);
    return stop_all(true, failure, Survivors::kRevokeTime, reason, now);
  }
  // A failure's report follows when all workers have ended. Says at once why they are stopped.
  const Failure* root = failures_.root_cause();
  // Where no other worker runs, nothing is stopped, and the report follows at once.
  const bool others = std::ranges::any_of(nodes_.world().assignments, [this](const auto& ranks) {
    return nodes_.running_participant(ranks.host, nodes_.attempt()) &&
           !ranks_.have_all(static_cast<std::uint32_t>(ranks.first_rank),
                            static_cast<std::uint32_t>(ranks.local_world_size));
  });
  if (failure && root != nullptr && others) {
    out_.notify(failure_line(*root) + "; stopping the " +
                (root->kind == Failure::Kind::kHung ? "workers" : "others") +
                (grace > milliseconds(0) ? " (SIGKILL in " + format_duration(grace) + "; Ctrl-C: now)" : ""));
  }
  stop_all(false, failure, grace, reason, now);
}

/// Stops the attempt's workers. `failure`: see JournalEvent. `revoke`: workers that can leave the attempt
/// survive, and the others are killed after `grace`.
void Supervisor::stop_all(bool revoke, bool failure, milliseconds grace, const std::string& reason,
                          Time now) {
  state_ = State::kStopping;
  record({.kind = JournalEvent::Kind::kAttemptStopping, .reason = reason, .failure = failure});
  out_.detail((revoke ? "revoking attempt " + std::to_string(nodes_.attempt()) : "stopping all workers") +
              ": " + reason);
  failures_.stop_ordered(now, grace);
  deadline_ = (revoke ? now + grace : failures_.kill_due()) + kStopSlack;
  for (const rendezvous::RankAssignment& assignment : nodes_.world().assignments) {
    const std::size_t index = assignment.host;
    const NodeRecords::Node& node = nodes_[index];
    // It ends survivors of an earlier attempt and stays the same node: a Revoke has nothing to leave there.
    if (node.ending && revoke) continue;
    if (node.state == NodeState::kSpawned && revoke) {
      rendezvous::Revoke order{nodes_.attempt(), to_ms(grace), reason, {}};
      for (const std::uint32_t rank : hang_.hung())
        if (nodes_.runs(index, rank)) order.kill.push_back(rank);
      if (const auto rank = attempt_end_.failed_rank; rank && nodes_.runs(index, *rank))
        order.kill.push_back(*rank);
      out_.send(index, std::move(order));
    } else if (node.state == NodeState::kSpawned) {
      out_.send(index, stop_order(node, grace, reason));
    } else if (node.state == NodeState::kAccepted) {  // it never spawned
      if (!node.lost) nodes_.enter(index, NodeState::kEnded);
      nodes_.end_part(index);
    } else if (node.state == NodeState::kWaiting) {
      if (!revoke && !node.lost) end_survivors(index, grace, reason);
      nodes_.end_part(index);
    }
  }
  if (nodes_.awaited() == 0) attempt_over(now);
}

/// The user's signal reaches the workers as it is, as if they ran in the terminal.
rendezvous::Stop Supervisor::stop_order(const NodeRecords::Node& node, milliseconds grace,
                                        const std::string& reason) const {
  return {node.spawned, to_ms(grace), reason,
          static_cast<std::uint8_t>(user_signals_.empty() ? SIGTERM : user_signals_.front())};
}

/// The node's part of the attempt is over.
void Supervisor::end_part(std::size_t index, Time now) {
  if (!nodes_[index].awaited) return;
  nodes_.end_part(index);
  if (nodes_.awaited() == 0) attempt_over(now);
}

/// Returns whether another attempt is expected. The user may still end the job, and nodes may be lost.
bool Supervisor::another_follows() const {
  if (attempt_end_.cause == StopCause::kUser || user_stopped()) return false;
  if (attempt_end_.cause == StopCause::kScaleUp) return true;
  return !attempt_end_.non_retryable && leftovers_.empty() && restart_left();
}

// ---- after an attempt

/// Called when every node of the attempt has ended its part, waits with its survivors, or is lost. Ends the
/// job or prepares another attempt.
void Supervisor::attempt_over(Time now) {
  DDP_REQUIRE(nodes_.awaited() == 0, nodes_.awaited());
  // The order of the checks below: first what the user wants, then what forbids any further attempt, then the
  // budget of restarts. A copy, because begin() resets the member.
  const AttemptEnd over = attempt_end_;
  if (!over.cause) return end(Outcome::kDone, "all workers ended normally", {}, now);
  // If the user stops the job while a failure is handled, the failure stays the cause of the end.
  if (user_stopped() && *over.cause == StopCause::kFailure) return end(over.outcome, over.reason, {}, now);
  if (user_stopped()) return end(Outcome::kUser, "stopped by " + signal_name(user_signals_.front()), {}, now);
  if (!leftovers_.empty()) return end(Outcome::kLeftovers, over.reason, leftovers_, now);
  if (*over.cause == StopCause::kScaleUp) return gather(now);
  if (over.non_retryable)
    return end(over.outcome, over.reason, "another attempt would fail the same way", now);
  if (!restart_left()) return end(over.outcome, over.reason, {}, now);
  charge_root_cause(now);
  ++restarts_;
  no_progress_ = made_progress_ || now - began_ >= rules_.progress_after ? 0 : no_progress_ + 1;
  const int doublings = std::clamp(no_progress_ - 1, 0, 20);
  // The first failure without progress waits the plain back-off, so the exponent is one behind the count.
  Time wait = std::min(rules_.backoff * (1 << doublings), std::max(rules_.backoff, rules_.max_backoff));
  // Survivors of an attempt with progress hold the training state, and waiting would not help.
  if (no_progress_ == 0 && survivors_wait()) wait = Time(0);
  back_off(over.reason, wait, now);
}

/// Says that the attempt has failed, and begins the wait for the next one.
void Supervisor::back_off(const std::string& reason, Time wait, Time now) {
  const Failure* root = failures_.root_cause();
  const std::string cause = root != nullptr ? failure_line(*root) : reason;
  const bool some_alive = std::any_of(nodes_.begin(), nodes_.end(), [](const NodeRecords::Node& node) {
    return node.state == NodeState::kWaiting;
  });
  std::string words = cause + (some_alive ? "; the other ranks survive: restart " : "; restart ") +
                      std::to_string(restarts_) + " of " + std::to_string(spec_.max_restarts);
  if (!some_alive || wait > Time(0)) words += " in " + format_duration(wait);
  out_.say(std::move(words));
  record({.kind = JournalEvent::Kind::kAttemptEnded, .reason = cause});
  for (const Failure& failure : end().failures)  // the summary at the end names root causes only
    if (failure.kind == Failure::Kind::kNode && &failure != root)
      out_.say_of(failure.host, "failed, too: " + failure.error.text);
  failures_.end_attempt();
  state_ = State::kBackingOff;
  deadline_ = now + wait;
}

bool Supervisor::survivors_wait() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const NodeRecords::Node& node) { return node.has_survivors(); });
}

/// Ends survivors that have no attempt to take part in.
void Supervisor::end_survivors(std::size_t index, milliseconds grace, const std::string& reason) {
  NodeRecords::Node& node = nodes_[index];
  out_.send(index, stop_order(node, grace, reason));
  nodes_.enter(index, NodeState::kSpawned);
  node.ending = true;
  survivors_.forget(index);
}

}  // namespace ddp::launcher
