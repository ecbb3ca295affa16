#include "launcher/supervisor/node_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ddp::launcher {
namespace {

/// Identifies the machine and PID namespace of an agent; empty: unknown. Agents with equal identities see the
/// same processes under the same PIDs. A host name is not enough, because it may lead to another machine
/// later.
std::string machine_of(const rendezvous::Hello& hello) {
  if (hello.pid_namespace == 0) return {};
  return hello.machine_id + ':' + std::to_string(hello.pid_namespace);
}

bool is_within(const rendezvous::RankAssignment& ranks, std::uint32_t rank) {
  const auto first = static_cast<std::uint32_t>(ranks.first_rank);
  return rank >= first && rank - first < static_cast<std::uint32_t>(ranks.local_world_size);
}

}  // namespace

NodeTable::NodeTable(const JobSpec& spec) : nodes_(hosts_used(spec)) {
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    nodes_[i].name = spec.hosts[i].name;
}

void NodeTable::begin_attempt(std::uint32_t attempt, rendezvous::World world) {
  attempt_ = attempt;
  world_ = std::move(world);
  for (Node& node : nodes_) {
    node.participant.reset();
    if (node.state == State::kEnded && !node.lost) node.state = State::kAccepted;
  }
  for (std::size_t i = 0; i < world_.assignments.size(); ++i)
    nodes_[node_of(i)].participant = i;
}

const rendezvous::RankAssignment* NodeTable::assignment(std::size_t node) const {
  return nodes_[node].participant ? &world_.assignments[*nodes_[node].participant] : nullptr;
}

std::size_t NodeTable::node_of_rank(std::uint32_t rank) const {
  const auto after = std::upper_bound(world_.assignments.begin(), world_.assignments.end(), rank,
                                      [](std::uint32_t r, const rendezvous::RankAssignment& assignment) {
                                        return r < static_cast<std::uint32_t>(assignment.first_rank);
                                      });
  return std::prev(after)->host;
}

bool NodeTable::runs(std::size_t node, std::uint32_t rank) const {
  const rendezvous::RankAssignment* ranks = assignment(node);
  return ranks != nullptr && is_within(*ranks, rank);
}

std::optional<std::size_t> NodeTable::running_participant(std::size_t index, std::uint32_t attempt) const {
  const Node& node = nodes_[index];
  const bool runs_it = attempt == attempt_ && node.state == State::kSpawned && !node.lost && !node.ending;
  return runs_it ? node.participant : std::nullopt;
}

std::optional<int> NodeTable::ran(std::size_t index, std::uint32_t attempt, std::uint32_t rank) const {
  const Node& node = nodes_[index];
  if (attempt == attempt_ && runs(index, rank)) return static_cast<int>(rank) - assignment(index)->first_rank;
  const bool may_live = node.has_workers() || node.state == State::kEnded;
  if (!may_live || attempt != node.spawned || !is_within(node.ran, rank)) return {};
  return static_cast<int>(rank) - node.ran.first_rank;
}

void NodeTable::came_up(const job::NodeUp& event, Time now) {
  Node& node = nodes_[event.node];
  node.state = State::kUp;
  node.up_at = now;
  node.incarnation = event.incarnation;
  node.hello = event.hello;
  node.connected = event.connected;
  node.lost = node.reason_reported = node.ending = false;
  node.trouble.reset();
}

void NodeTable::spawned(std::size_t participant) {
  Node& node = nodes_[node_of(participant)];
  node.state = State::kSpawned;
  node.spawned_before = std::exchange(node.spawned, attempt_);
  node.ran_before = std::exchange(node.ran, world_.assignments[participant]);
  node.worker_pids.resize(static_cast<std::size_t>(node.ran.local_world_size));
  node.ending = false;
}

void NodeTable::refused(std::size_t index) {
  Node& node = nodes_[index];
  node.state = State::kEnded;
  node.spawned = node.spawned_before;
  node.ran = node.ran_before;
}

void NodeTable::worker_started(std::size_t index, std::uint32_t rank, std::uint32_t pid) {
  const auto local = rank - static_cast<std::uint32_t>(assignment(index)->first_rank);
  Node& node = nodes_[index];
  if (local < node.worker_pids.size()) node.worker_pids[local] = pid;
}

void NodeTable::lose(std::size_t index, const Error& error, Time now) {
  Node& node = nodes_[index];
  node.trouble = {error, now};
  node.lost = true;
  if (!node.has_workers()) return;
  node.predecessor = {node.incarnation, machine_of(node.hello), node.worker_pids};
  std::erase(node.predecessor->pids, 0U);
  node.predecessor->pids.insert(node.predecessor->pids.end(), {node.hello.pid, node.hello.keeper});
}

bool NodeTable::can_see_predecessor(std::size_t index, bool wrapped) const {
  const Node& node = nodes_[index];
  return node.predecessor && !node.predecessor->machine.empty() &&
         node.predecessor->machine == machine_of(node.hello) && !wrapped;
}

std::string NodeTable::name_of_joined(std::size_t index, const std::string& otherwise) const {
  const std::string& own = nodes_[index].hello.hostname;
  for (std::size_t other = 0; other < nodes_.size(); ++other) {
    const Node& node = nodes_[other];
    const bool present = node.state != State::kConnecting && node.state != State::kGone && !node.lost;
    if (other != index && node.name == own && (other == 0 || present)) return otherwise;
  }
  return own.empty() ? otherwise : own;
}

bool NodeTable::all_gone() {
  while (gone_ < nodes_.size() && nodes_[gone_].state == State::kGone)
    ++gone_;
  return gone_ == nodes_.size();
}

}  // namespace ddp::launcher
