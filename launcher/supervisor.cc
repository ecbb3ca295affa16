#include "launcher/supervisor.h"

#include <algorithm>
#include <csignal>
#include <tuple>
#include <utility>

#include "base/exit_status.h"
#include "launcher/start_messages.h"

namespace ddp::launcher {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// After a first failed host the others get this long to report theirs, so that the user sees all broken
/// hosts at once.
constexpr seconds kSettle{1};
/// Beyond the grace: the agent kills, reaps and drains within it, or its node counts as lost.
constexpr seconds kStopSlack{10};
/// From Leave to the end of the link.
constexpr seconds kLeaveTime{5};
constexpr seconds kProbeTime{5};

std::uint32_t to_ms(milliseconds value) {
  return static_cast<std::uint32_t>(value.count());
}

}  // namespace

Supervisor::Supervisor(const JobSpec& spec) : spec_(spec) {
  std::size_t count = spec.hosts.size();
  if (spec.max_nodes > 0) count = std::min(count, static_cast<std::size_t>(spec.max_nodes));
  nodes_.resize(count);
}

Supervisor::Actions Supervisor::start(Time now) {
  started_ = now;
  deadline_ = now + spec_.start_timeout;
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

// ---- start

void Supervisor::on(const NodeUp& event, Time now) {
  Node& node = nodes_[event.node];
  if (node.state != NodeState::kConnecting) return;
  node.state = NodeState::kUp;
  node.hello = event.hello;
  node.connected = event.connected;
  if (state_ != State::kConnecting) {
    send(event.node, rendezvous::Leave{});
    node.state = NodeState::kLeaving;
    return;
  }
  detail(spec_.hosts[event.node].name + ": agent on " + node.hello.hostname + ", " +
         std::to_string(node.hello.cpus) + " CPUs, " + std::to_string(node.hello.gpus) + " GPUs");
  send(event.node, job_start(spec_, spec_.hosts[event.node]));
  if (all(NodeState::kUp) && !start_failed_) make_plan(now);
}

void Supervisor::on(const NodeFailed& event, Time now) {
  Node& node = nodes_[event.node];
  if (node.state == NodeState::kGone) return;
  node.state = NodeState::kGone;
  if (state_ == State::kLeaving) {
    finish_if_gone();
    return;
  }
  fail_start(event.node, event.error, now);
}

void Supervisor::handle(std::size_t index, const rendezvous::JobAccepted&, Time now) {
  Node& node = nodes_[index];
  if (node.state != NodeState::kUp) return;
  node.state = NodeState::kAccepted;
  probe_or_spawn(now);
}

void Supervisor::handle(std::size_t index, const rendezvous::Refused& message, Time now) {
  Error error{static_cast<ErrorCode>(message.code), message.text, message.sys};
  if (state_ < State::kRunning) {
    nodes_[index].state = std::max(nodes_[index].state, NodeState::kAccepted);  // it has answered
    return fail_start(index, std::move(error), now);
  }
  // It could not even begin to start its workers: none of them runs, and nothing more will come of it.
  if (nodes_[index].state == NodeState::kSpawned) {
    nodes_[index].state = NodeState::kEnded;
    lose_node(index, std::move(error), now);
  }
}

/// One failed host ends the start, but not before the others had a moment to report theirs.
void Supervisor::fail_start(std::size_t index, Error error, Time now) {
  add_node_failure(index, std::move(error), now);
  if (!start_failed_) {
    start_failed_ = true;
    deadline_ = std::min(*deadline_, now + kSettle);
  }
  const bool all_known = std::none_of(nodes_.begin(), nodes_.end(), [](const Node& n) {
    return n.state == NodeState::kConnecting || n.state == NodeState::kUp;
  });
  if (all_known) leave_all(now);
}

void Supervisor::make_plan(Time now) {
  std::vector<rendezvous::NodeSlots> slots;
  std::vector<NodeNetwork> networks;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const remote::Host& host = spec_.hosts[i];
    const rendezvous::Hello& hello = nodes_[i].hello;
    std::optional<int> devices;
    if (!host.devices.empty()) devices = static_cast<int>(host.devices.size());
    slots.push_back(
        {host.name, host.slots, devices, static_cast<int>(hello.gpus), static_cast<int>(hello.cpus)});
    networks.push_back({host.name, hello.machine_id, nodes_[i].connected, hello.interfaces});
  }
  auto plan = rendezvous::plan_ranks(slots, procs_wanted(spec_));
  auto network = choose_network(networks, spec_.network);
  if (!plan || !network) {  // these errors name the nodes themselves
    end_.master = plan ? network.error() : plan.error();
    return leave_all(now);
  }
  plan_ = std::move(*plan);
  network_ = std::move(*network);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const rendezvous::NodeRanks& ranks = plan_.nodes[i];
    detail(spec_.hosts[i].name + ": ranks " + std::to_string(ranks.first_rank) + " to " +
           std::to_string(ranks.first_rank + ranks.local_world_size - 1) + " (" + ranks.reason + ")");
  }
  detail("network: " + network_.reason);
  open_store();
}

void Supervisor::open_store() {
  state_ = State::kOpeningStore;
  rendezvous::OpenStore open;
  open.attempt = attempt_;
  open.mode = static_cast<std::uint8_t>(spec_.store);
  open.loopback_only = network_.one_machine;
  open.port = spec_.master_port;
  if (spec_.port_range) std::tie(open.first_port, open.last_port) = *spec_.port_range;
  for (const Node& node : nodes_) {
    for (const rendezvous::Interface& interface : node.hello.interfaces)
      open.allow.push_back(interface.address);
    if (!node.connected.empty()) open.allow.push_back(node.connected);
  }
  std::sort(open.allow.begin(), open.allow.end());
  open.allow.erase(std::unique(open.allow.begin(), open.allow.end()), open.allow.end());
  send(0, std::move(open));
}

void Supervisor::handle(std::size_t index, const rendezvous::StoreOpened& message, Time now) {
  if (state_ != State::kOpeningStore || index != 0 || message.attempt != attempt_) return;
  store_port_ = message.port;
  state_ = State::kProbing;
  nodes_[0].probed = true;
  // With --store worker nobody listens before rank 0 runs, so there is nothing to probe.
  const bool nothing_to_probe = spec_.store == StoreMode::kWorker;
  master_addr_ = network_.master_addrs.front();
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    nodes_[i].probed = nothing_to_probe;
    if (nothing_to_probe) continue;
    send(i, rendezvous::Probe{attempt_, network_.master_addrs, store_port_, to_ms(kProbeTime)});
  }
  probe_or_spawn(now);
}

void Supervisor::handle(std::size_t index, const rendezvous::ProbeResult& message, Time now) {
  if (state_ != State::kProbing || message.attempt != attempt_ || index == 0) return;
  if (message.address.empty()) {
    return fail_start(
        index,
        Error{ErrorCode::kUnreachable, "it cannot reach the store on " + spec_.hosts[0].name + " (" +
                                           message.text + "); open port " + std::to_string(store_port_) +
                                           " between the nodes, or choose a network with --network"},
        now);
  }
  // All ranks get one MASTER_ADDR: the least preferred one that some node had to take. Who took another is
  // asked again.
  const auto& candidates = network_.master_addrs;
  const auto place = [&](const std::string& address) {
    return std::find(candidates.begin(), candidates.end(), address) - candidates.begin();
  };
  nodes_[index].probed = true;
  nodes_[index].address = message.address;
  if (place(message.address) > place(master_addr_)) {
    master_addr_ = message.address;
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
      if (!nodes_[i].probed || nodes_[i].address == master_addr_) continue;
      nodes_[i].probed = false;
      send(i, rendezvous::Probe{attempt_, {master_addr_}, store_port_, to_ms(kProbeTime)});
    }
  }
  probe_or_spawn(now);
}

void Supervisor::probe_or_spawn(Time now) {
  if (state_ != State::kProbing || start_failed_ || !all(NodeState::kAccepted)) return;
  if (std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.probed; })) spawn_all(now);
}

void Supervisor::spawn_all(Time now) {
  state_ = State::kRunning;
  detail("all nodes are ready; starting " + std::to_string(plan_.world_size) +
         " workers, MASTER_ADDR=" + master_addr_ + " MASTER_PORT=" + std::to_string(store_port_));
  started_ = now;
  deadline_.reset();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    rendezvous::Spawn spawn = spawn_message(plan_, i);
    spawn.attempt = attempt_;
    spawn.master_addr = master_addr_;
    spawn.master_port = store_port_;
    spawn.agent_store = spec_.store == StoreMode::kAgent;
    spawn.interface_name = network_.interfaces[i];
    send(i, std::move(spawn));
    nodes_[i].state = NodeState::kSpawned;
  }
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

void Supervisor::handle(std::size_t index, const rendezvous::WorkerExited& message, Time now) {
  if (message.attempt != attempt_ || nodes_[index].state != NodeState::kSpawned) return;
  if (!runs(index, message.rank)) {
    actions_.push_back(Disconnect{index});
    return lose_node(index, Error{ErrorCode::kProtocol, "it reports a rank that it was not given", 0}, now);
  }
  if (message.code == 0 && message.signal == 0) return;
  add_worker_failure(index, message);
  if (state_ == State::kRunning) {
    stop_all(spec_.failure_grace, "rank " + std::to_string(message.rank) + " failed", now);
  }
}

void Supervisor::handle(std::size_t index, const rendezvous::AttemptEnded& message, Time now) {
  Node& node = nodes_[index];
  if (message.attempt != attempt_ || node.state != NodeState::kSpawned) return;
  node.state = NodeState::kEnded;
  if (message.left > 0) {
    actions_.push_back(Say{"warning: " + std::to_string(message.left) +
                           (message.left == 1 ? " process is left on " : " processes are left on ") +
                           spec_.hosts[index].name + ": " + message.left_text});
  }
  if (all(NodeState::kEnded)) leave_all(now);
}

void Supervisor::on(const NodeGone& event, Time now) {
  Node& node = nodes_[event.node];
  const NodeState before = std::exchange(node.state, NodeState::kGone);
  if (before == NodeState::kGone) return;
  if (state_ == State::kLeaving || before == NodeState::kLeaving) return finish_if_gone();
  if (state_ < State::kRunning) return fail_start(event.node, event.error, now);
  lose_node(event.node, event.error, now);
}

/// A node will not run its part any more; its state has been set.
void Supervisor::lose_node(std::size_t index, Error error, Time now) {
  if (nodes_[index].state == NodeState::kSpawned) nodes_[index].state = NodeState::kGone;
  add_node_failure(index, std::move(error), now);
  if (state_ == State::kRunning) {
    stop_all(spec_.failure_grace, "node " + spec_.hosts[index].name + " was lost", now);
  } else if (state_ == State::kStopping && all(NodeState::kEnded)) {
    leave_all(now);
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
  // A signal that comes while a failure is being cleaned up hurries us, but the failure stays the cause.
  const bool failed = !end_.failures.empty();
  if (!failed && end_.stop_signal == 0) {
    end_.stop_signal = event.number;
  }
  switch (state_) {
    case State::kConnecting:
    case State::kOpeningStore:
    case State::kProbing:
      leave_all(now);
      break;
    case State::kRunning:
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
  if (!stop_ordered_) stop_ordered_ = now;
  kill_due_ = std::min(kill_due_.value_or(now + grace), now + grace);
  deadline_ = *kill_due_ + kStopSlack;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kSpawned) send(i, rendezvous::Stop{attempt_, to_ms(grace), reason});
  }
  if (all(NodeState::kEnded)) leave_all(now);
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
        add_node_failure(
            i, Error{ErrorCode::kLinkLost, "it did not end its workers in time; look for leftovers there"},
            now);
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
    case State::kFinished:
      deadline_.reset();
      break;
  }
}

void Supervisor::on_start_deadline(Time now) {
  if (!start_failed_) {
    start_failed_ = true;
    end_.master =
        Error{ErrorCode::kTimeout, "the job did not start within " +
                                       std::to_string(duration_cast<seconds>(spec_.start_timeout).count()) +
                                       " s; waiting for " + waiting_for() + " (--start-timeout)"};
  }
  leave_all(now);
}

// ---- bookkeeping

void Supervisor::send(std::size_t node, rendezvous::Message message) {
  actions_.push_back(ToNode{node, std::move(message)});
}

bool Supervisor::all(NodeState at_least) const {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.state >= at_least; });
}

std::string Supervisor::waiting_for() const {
  std::string text;
  int count = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const char* step = nullptr;
    if (node.state == NodeState::kConnecting)
      step = "no hello yet";
    else if (node.state == NodeState::kUp)
      step = "checking the job";
    else if (node.state == NodeState::kAccepted && i == 0 && store_port_ == 0)
      step = "opening the store";
    else if (node.state == NodeState::kAccepted && !node.probed)
      step = "looking for the store";
    if (step == nullptr || ++count > 8) continue;
    if (!text.empty()) text += ", ";
    text += spec_.hosts[i].name + " (" + step + ")";
  }
  if (count > 8) text += " and " + std::to_string(count - 8) + " more";
  return text;
}

void Supervisor::add_worker_failure(std::size_t index, const rendezvous::WorkerExited& message) {
  Failure failure;
  failure.host = spec_.hosts[index].name;
  failure.rank = static_cast<int>(message.rank);
  failure.local_rank = failure.rank - plan_.nodes[index].first_rank;
  failure.pid = message.pid;
  failure.status = message.code;
  failure.signal = message.signal;
  failure.core_dumped = message.core;
  failure.at = duration_cast<milliseconds>(current_->happened - started_);
  failure.kind = message.signal != 0 ? Failure::Kind::kSignaled : Failure::Kind::kExited;
  if (message.pid == 0) {
    failure.kind = Failure::Kind::kExec;
    failure.error = Error{ErrorCode::kExec, message.text, message.sys};
  }
  // What happened after our order is its consequence; within the error of the clocks our own signals are told
  // by number. A SIGKILL is ours only once the grace has run, for before that we send none.
  if (stop_ordered_) {
    const Time latest = current_->happened + current_->error;
    const bool ours = (message.signal == SIGTERM && latest >= *stop_ordered_) ||
                      (message.signal == SIGKILL && latest >= *kill_due_);
    failure.stopped_by_us = ours || current_->happened >= *stop_ordered_;
  }
  end_.failures.push_back(std::move(failure));
}

void Supervisor::add_node_failure(std::size_t index, Error error, Time now) {
  Failure failure;
  failure.kind = Failure::Kind::kNode;
  failure.host = spec_.hosts[index].name;
  failure.error = std::move(error);
  // The report names the host; texts that already do are not to say it twice.
  const std::string prefix = failure.host + ": ";
  if (failure.error.text.starts_with(prefix)) failure.error.text.erase(0, prefix.size());
  failure.at = duration_cast<milliseconds>(now - started_);
  failure.stopped_by_us = false;
  end_.failures.push_back(std::move(failure));
}

}  // namespace ddp::launcher
