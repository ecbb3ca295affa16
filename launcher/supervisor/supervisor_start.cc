// The part of the Supervisor from an attempt's Begin to the order to spawn its workers.
#include <algorithm>
#include <string>
#include <utility>

#include "base/format_text.h"
#include "launcher/report/start_failures.h"
#include "launcher/supervisor/start_messages.h"
#include "launcher/supervisor/supervisor.h"

namespace ddp::launcher {
namespace {

/// Reports which node runs which ranks, and which nodes that the user named run none.
void report_first_start(const NodeTable& nodes, Outbox& out) {
  std::vector<StartGroup> missing;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeTable::Node& node = nodes[i];
    if (const rendezvous::RankAssignment* ranks = nodes.assignment(i)) {
      const auto last = ranks->first_rank + ranks->local_world_size - 1;
      out.detail(node.name + (last == ranks->first_rank ? ": rank " : ": ranks ") +
                 std::to_string(ranks->first_rank) +
                 (last == ranks->first_rank ? "" : " to " + std::to_string(last)) + " (" + node.slots_reason +
                 ")");
    } else if (node.trouble) {
      const auto joins = [&node](StartGroup& group) {
        return join_group(group, node.name, node.trouble->error.text);
      };
      if (std::none_of(missing.begin(), missing.end(), joins))
        missing.push_back(make_group(node.name, node.trouble->error.text));
    } else {
      out.notify(node.name +
                 (node.state == NodeTable::State::kAccepted ? " is a spare" : " has not joined yet"));
    }
  }
  for (const StartGroup& group : missing)
    out.say("warning: the job starts without " + group_hosts_text(group) + ": " + reason_text(group));
}

JournalEvent attempt_started(const NodeTable& nodes) {
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

void Supervisor::carry_out(const rendezvous::Begin& action, Time now) {
  const std::uint32_t attempt = action.attempt;
  if (growing_) record({.kind = JournalEvent::Kind::kAttemptEnded, .reason = "a node joined"});
  const rendezvous::World before = nodes_.world();
  nodes_.begin_attempt(attempt, action.world);
  record(attempt_started(nodes_));
  for (std::size_t i = 0; i < action.world.assignments.size(); ++i) {
    const auto replaced = replaced_host(before, action.world, i);
    if (!replaced) continue;
    record({.kind = JournalEvent::Kind::kNodeReplaced, .reason = "in the place of " + nodes_[*replaced].name},
           nodes_.node_of(i));
  }
  stop_reason_.clear();
  growing_ = revoking_ = false;
  hang_ = {};
  ranks_ = {};
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kWaiting && !nodes_[i].participant && !nodes_[i].lost)
      end_survivors(i, spec_.failure_grace, "its node is not in attempt " + std::to_string(attempt));
  }
  // If the previous attempt was stopped because the job grew, its ends are no failures.
  failures_.forget_attempt();
  failures_.begin_attempt(attempt, now);
  state_ = State::kStarting;
  if (attempt > 0) start_limit_ = now + spec_.start_timeout;
  deadline_ = start_limit_;
  if (attempt == 0) {
    failures_.name_job("job " + spec_.job_id + ": " + size_text(action.world), spec_.job_dir);
    if (!spec_.quiet) out_.add(job::PrintLine{job_line(end()), true});
    report_first_start(nodes_, out_);
  }
  std::vector<NodeNetwork> networks;
  for (std::size_t i = 0; i < action.world.assignments.size(); ++i) {
    const NodeTable::Node& node = nodes_.participant(i);
    networks.push_back({node.name, node.hello.machine_id, node.connected, node.hello.interfaces});
  }
  if (const Result<> begun = start_.begin(attempt, std::move(networks), spec_.network); !begun) {
    failures_.master_failed(begun.error());  // it names the nodes itself
    return inform(rendezvous::AttemptFailed{begun.error().text, true});
  }
  out_.detail("network: " + start_.network().reason);
  out_.send(nodes_.node_of(0), start_.store_order(spec_));
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
  const std::uint32_t attempt = nodes_.attempt();
  state_ = State::kRunning;
  deadline_.reset();
  if (attempt == 0 && !start_.network().one_machine) {  // said once, and only to jobs that need a network
    std::vector<NodeInfiniband> infiniband;
    for (std::size_t i = 0; i < world.assignments.size(); ++i)
      infiniband.push_back(nodes_.participant(i).infiniband);
    for (std::string& line : start_.network_lines(infiniband))
      out_.notify(std::move(line));
  }
  failures_.begin_attempt(attempt, now);
  survivors_.begin(world, spec_.start_timeout, now);
  if (std::string text = survivors_.lost_state_text(attempt); !text.empty()) out_.notify(std::move(text));
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
  hang_ = HangInvestigation(spec_.hang_timeout, std::move(shares), now);
}

/// A first attempt that cannot start would fail again. A later attempt may run without the node.
void Supervisor::fail_start(std::size_t index, Error error, Time now) {
  if (nodes_.attempt() > 0) {
    nodes_[index].reason_reported = true;
    lose(index, error, now);
    return send_away(index, {exit_code_of(error), error.text});
  }
  const std::string why = nodes_[index].name + ": " + error.text;
  take_as_failed(index, std::move(error), now);
  inform(rendezvous::AttemptFailed{why, true});
}

/// Names only the nodes that hold up the start, each with its step.
void Supervisor::on_start_deadline(Time now) {
  for (const rendezvous::RankAssignment& assignment : nodes_.world().assignments) {
    const std::string step = missing_step(spec_, nodes_, &start_, assignment.host);
    if (!step.empty()) take_as_failed(assignment.host, late_error(spec_, step), now);
  }
  const Error late{ErrorCode::kTimeout, "the job did not start within " +
                                            format_duration(spec_.start_timeout) + " (--start-timeout)"};
  if (end().failures.empty()) failures_.master_failed(late);
  inform(rendezvous::AttemptFailed{late.text, true});
}

/// Returns what the first start waits for; empty: it is over.
std::string Supervisor::awaited() const {
  const bool waits = nodes_.attempt() == 0 && (state_ == State::kConnecting || state_ == State::kStarting);
  return waits ? awaited_text(spec_, nodes_, state_ == State::kStarting ? &start_ : nullptr) : "";
}

}  // namespace ddp::launcher
