#include "launcher/supervisor/node_records.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/result.h"

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

NodeRecords::NodeRecords(const JobSpec& spec) : nodes_(hosts_used(spec)) {
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    nodes_[i].name = spec.hosts[i].name;
  coming_ = static_cast<int>(nodes_.size());
}

// The counts spare a scan of all nodes with each event, which would take quadratic time with 10,000 nodes
// (decision 0017). Around each change: count(-1), change, count(+1).
void NodeRecords::count(const Node& node, int sign) {
  if (node.is_present()) present_ += sign;
  if (node.is_coming()) coming_ += sign;
  if (node.awaited) awaited_ += sign;
}

void NodeRecords::check_counts() const {
  int present = 0;
  int coming = 0;
  int awaited = 0;
  for (const Node& node : nodes_) {
    present += node.is_present();
    coming += node.is_coming();
    awaited += node.awaited;
  }
  DDP_REQUIRE(present == present_ && coming == coming_ && awaited == awaited_, present, present_, coming,
              coming_, awaited, awaited_);
}

void NodeRecords::begin_attempt(std::uint32_t attempt, rendezvous::World world) {
  DDP_REQUIRE(awaited_ == 0, awaited_, attempt);
  DDP_REQUIRE(!begun() || attempt == attempt_ + 1, attempt, attempt_);
  attempt_ = attempt;
  world_ = std::move(world);
  for (Node& node : nodes_) {
    node.participant.reset();
    if (node.state == State::kEnded && !node.lost) node.state = State::kAccepted;  // is present either way
  }
  for (std::size_t i = 0; i < world_.assignments.size(); ++i) {
    Node& node = nodes_[node_of(i)];
    DDP_REQUIRE(node.is_present() && !node.ending, node.name, node.state);
    DDP_REQUIRE(!node.participant && node.state != State::kSpawned, node.name);
    node.participant = i;
    node.awaited = true;
    ++awaited_;
  }
  check_counts();
}

void NodeRecords::end_part(std::size_t index) {
  awaited_ -= std::exchange(nodes_[index].awaited, false);
}

void NodeRecords::enter(std::size_t index, State state) {
  Node& node = nodes_[index];
  count(node, -1);
  node.state = state;
  count(node, 1);
}

const rendezvous::RankAssignment* NodeRecords::assignment(std::size_t node) const {
  return nodes_[node].participant ? &world_.assignments[*nodes_[node].participant] : nullptr;
}

std::size_t NodeRecords::node_of_rank(std::uint32_t rank) const {
  const auto after = std::upper_bound(world_.assignments.begin(), world_.assignments.end(), rank,
                                      [](std::uint32_t r, const rendezvous::RankAssignment& assignment) {
                                        return r < static_cast<std::uint32_t>(assignment.first_rank);
                                      });
  return std::prev(after)->host;
}

bool NodeRecords::runs(std::size_t node, std::uint32_t rank) const {
  const rendezvous::RankAssignment* ranks = assignment(node);
  return ranks != nullptr && is_within(*ranks, rank);
}

std::optional<std::size_t> NodeRecords::running_participant(std::size_t index, std::uint32_t attempt) const {
  const Node& node = nodes_[index];
  const bool runs_it = attempt == attempt_ && node.state == State::kSpawned && !node.lost && !node.ending;
  return runs_it ? node.participant : std::nullopt;
}

std::optional<int> NodeRecords::ran(std::size_t index, std::uint32_t attempt, std::uint32_t rank) const {
  const Node& node = nodes_[index];
  if (attempt == attempt_ && runs(index, rank)) return static_cast<int>(rank) - assignment(index)->first_rank;
  const bool may_live = node.has_workers() || node.state == State::kEnded;
  if (!may_live || attempt != node.spawned || !is_within(node.ran, rank)) return {};
  return static_cast<int>(rank) - node.ran.first_rank;
}

void NodeRecords::came_up(const job::NodeUp& event, Time now) {
  Node& node = nodes_[event.node];
  DDP_REQUIRE(event.incarnation > node.incarnation, node.name, event.incarnation, node.incarnation);
  DDP_REQUIRE(!node.awaited, node.name);
  count(node, -1);
  node.state = State::kUp;
  node.lost = node.suspect = node.reason_reported = node.ending = false;
  count(node, 1);
  node.up_at = node.heard = node.silent_since = now;
  node.answers_since = node.answered_at = Time(0);
  node.incarnation = event.incarnation;
  node.hello = event.hello;
  node.connected = event.connected;
  node.probed = event.probed;
  node.trouble.reset();
}

NodeRecords::Time NodeRecords::heard_from(std::size_t index, Time now) {
  Node& node = nodes_[index];
  const Time silent = now - node.heard;
  node.heard = node.silent_since = now;
  return silent;
}

void NodeRecords::forgive_silence(Time time, Time now) {
  for (Node& node : nodes_)
    node.silent_since = std::min(node.silent_since + time, now);
}

void NodeRecords::spawned(std::size_t participant) {
  const std::size_t index = node_of(participant);
  Node& node = nodes_[index];
  DDP_REQUIRE(node.is_present() && node.awaited && !node.ending, node.name, node.state);
  // If the node refuses the order, its survivors still belong to the attempt before; `refused` restores it.
  node.survived.reset();
  if (node.state == State::kWaiting) node.survived = {node.spawned, node.ran};
  if (!node.survived) node.worker_pids.clear();
  enter(index, State::kSpawned);
  node.spawned = attempt_;
  node.ran = world_.assignments[participant];
  node.worker_pids.resize(static_cast<std::size_t>(node.ran.local_world_size));
}

void NodeRecords::refused(std::size_t index) {
  Node& node = nodes_[index];
  DDP_REQUIRE(node.state == State::kSpawned && !node.ending, node.name, node.state);
  if (!node.survived) return enter(index, State::kEnded);
  std::tie(node.spawned, node.ran) = *node.survived;
  node.ending = true;
}

void NodeRecords::worker_started(std::size_t index, std::uint32_t rank, std::uint32_t pid) {
  const auto local = rank - static_cast<std::uint32_t>(assignment(index)->first_rank);
  Node& node = nodes_[index];
  if (local < node.worker_pids.size()) node.worker_pids[local] = pid;
}

void NodeRecords::lose(std::size_t index, const Error& error, Time lease, bool fenced, Time now) {
  Node& node = nodes_[index];
  DDP_REQUIRE(node.is_present(), node.name, node.state, node.lost);
  node.trouble = {error, now};
  count(node, -1);
  node.lost = true;
  node.awaited = false;
  count(node, 1);
  if (!node.has_workers()) return;
  DDP_REQUIRE(!node.is_busy(now), node.name);  // no attempt begins on a host whose last workers may run
  node.predecessor = Predecessor{.incarnation = node.incarnation,
                                 .machine = machine_of(node.hello),
                                 .pids = node.worker_pids,
                                 .clock_ns = node.hello.clock_ns,
                                 .busy_until = node.heard + lease,
                                 .fenced = fenced};
  // A 0 stands for a worker whose start was never reported. The pids of agent and keeper make sure that the
  // list is not empty.
  std::erase(node.predecessor->pids, 0U);
  node.predecessor->pids.insert(node.predecessor->pids.end(), {node.hello.pid, node.hello.keeper});
}

bool NodeRecords::prove_empty(std::size_t index, std::uint32_t incarnation) {
  Node& node = nodes_[index];
  if (!node.predecessor || node.predecessor->incarnation != incarnation) return false;
  node.predecessor.reset();
  return true;
}

bool NodeRecords::can_see_predecessor(std::size_t index, bool wrapped) const {
  const Node& node = nodes_[index];
  return node.predecessor && !node.predecessor->machine.empty() &&
         node.predecessor->machine == machine_of(node.hello) && !wrapped;
}

std::string NodeRecords::name_of_joined(std::size_t index, const std::string& otherwise) const {
  const std::string& own = nodes_[index].hello.hostname;
  for (std::size_t other = 0; other < nodes_.size(); ++other) {
    const Node& node = nodes_[other];
    const bool there = node.state != State::kConnecting && node.state != State::kGone && !node.lost;
    if (other != index && node.name == own && (other == 0 || there)) return otherwise;
  }
  return own.empty() ? otherwise : own;
}

bool NodeRecords::all_gone() {
  // Continues where the last call stopped, so that all calls together look at each node once.
  while (gone_ < nodes_.size() && nodes_[gone_].state == State::kGone)
    ++gone_;
  return gone_ == nodes_.size();
}

}  // namespace ddp::launcher
