// The part of the Supervisor before the workers run: from the hellos to the order to spawn.
#include <algorithm>
#include <csignal>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "launcher/network_words.h"
#include "launcher/start_messages.h"
#include "launcher/supervisor.h"

namespace ddp::launcher {
namespace {

using std::chrono::seconds;

/// After a first failed host the others get this long to report theirs, so that the user sees all broken
/// hosts at once.
constexpr seconds kSettle{1};
constexpr seconds kProbeTime{5};

}  // namespace

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
  send(event.node, job_start(spec_, spec_.hosts[event.node], nodes_.size()));
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

void Supervisor::handle(std::size_t index, const rendezvous::JobAccepted& message, Time now) {
  Node& node = nodes_[index];
  if (node.state != NodeState::kUp) return;
  node.state = NodeState::kAccepted;
  node.infiniband = {spec_.hosts[index].name, node.hello.gpus, message.infiniband, message.no_infiniband};
  probe_or_spawn(now);
}

/// scancel, or the end of the job's time, sends SIGTERM to all processes of the steps; to us it may come
/// later, or never.
bool Supervisor::ended_by_slurm(const Error& error) const {
  return spec_.launcher == LauncherKind::kSlurm && error.code == ErrorCode::kLinkLost && error.sys == SIGTERM;
}

void Supervisor::handle(std::size_t index, const rendezvous::Refused& message, Time now) {
  Error error{static_cast<ErrorCode>(message.code), message.text, message.sys};
  Node& node = nodes_[index];
  if (ended_by_slurm(error) && state_ < State::kLeaving) {
    if (!user_wants_end_) {
      on(UserSignal{SIGTERM}, now);
      slurm_ends_ = true;
    }
    node.told_why = true;
    if (state_ > State::kProbing) return;
  }
  if (state_ < State::kRunning) {
    node.state = std::max(node.state, NodeState::kAccepted);  // it has answered
    node.told_why = true;
    return fail_start(index, std::move(error), now);
  }
  if (node.state != NodeState::kSpawned || node.lost) return;
  node.told_why = true;
  // Its agent has to leave: it ends its workers, and says when they are gone.
  if (error.code == ErrorCode::kLinkLost) return count_as_lost(index, std::move(error), now);
  // It could not even begin to start its workers: none of them runs, and nothing more will come of it.
  node.state = NodeState::kEnded;
  lose_node(index, std::move(error), now);
}

/// One failed host ends the start, but not before the others had a moment to report theirs.
void Supervisor::fail_start(std::size_t index, Error error, Time now) {
  if (!std::exchange(nodes_[index].start_failed, true))
    failures_.node_failed(spec_.hosts[index].name, std::move(error), now);
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
    failures_.master_failed(plan ? network.error() : plan.error());
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
  store_token_ = message.token;
  state_ = State::kProbing;
  send_probes(master_.begin(network_.master_addrs(), nodes_.size()));
  probe_or_spawn(now);
}

void Supervisor::send_probes(const std::vector<MasterAddress::Probe>& probes) {
  for (const MasterAddress::Probe& probe : probes) {
    send(probe.node,
         rendezvous::Probe{attempt_, probe.addresses, store_port_, to_ms(kProbeTime), store_token_});
  }
}

void Supervisor::handle(std::size_t index, const rendezvous::ProbeResult& message, Time now) {
  if (state_ != State::kProbing || message.attempt != attempt_ || index == 0) return;
  if (message.address.empty()) {
    send_probes(master_.failed(index));
    if (master_.hopeless()) fail_start(index, no_way_error(index, message.text), now);
    return probe_or_spawn(now);
  }
  const auto candidates = network_.master_addrs();
  if (std::find(candidates.begin(), candidates.end(), message.address) == candidates.end()) {
    return fail_start(index,
                      Error{ErrorCode::kProtocol, "it reached an address that it was not asked for", 0}, now);
  }
  nodes_[index].local = message.local;
  if (!message.text.empty())
    detail(spec_.hosts[index].name + " cannot reach " + spec_.hosts[0].name +
           " at every address: " + message.text);
  send_probes(master_.reached(index, message.address));
  if (master_.hopeless()) fail_start(index, no_way_error(index, message.text), now);
  probe_or_spawn(now);
}

/// For the node whose answer left no address that all reach; `text` are its own failures.
Error Supervisor::no_way_error(std::size_t index, const std::string& text) const {
  std::string others;
  for (const NetWay& way : network_.ways) {
    const std::size_t cut_off = master_.cut_off(way.master_addr);
    if (cut_off != 0 && cut_off != index)
      others += ", and " + spec_.hosts[cut_off].name + " does not reach " + way.master_addr;
  }
  return Error{ErrorCode::kUnreachable, "it cannot reach the store on " + spec_.hosts[0].name + " (" + text +
                                            ")" + others + "; open port " + std::to_string(store_port_) +
                                            " between the nodes, or choose a network with --network"};
}

void Supervisor::probe_or_spawn(Time now) {
  if (state_ != State::kProbing || start_failed_ || !all(NodeState::kAccepted)) return;
  if (master_.settled()) spawn_all(now);
}

void Supervisor::spawn_all(Time now) {
  state_ = State::kRunning;
  tell_network();
  detail("all nodes are ready; starting " + std::to_string(plan_.world_size) +
         " workers, MASTER_ADDR=" + master_.chosen() + " MASTER_PORT=" + std::to_string(store_port_));
  failures_.begin_attempt(attempt_, now);
  exited_.clear();
  deadline_.reset();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    rendezvous::Spawn spawn = spawn_message(plan_, i);
    spawn.attempt = attempt_;
    spawn.master_addr = master_.chosen();
    spawn.max_restarts = static_cast<std::uint32_t>(spec_.max_restarts);
    spawn.master_port = store_port_;
    spawn.agent_store = spec_.store == StoreMode::kAgent;
    spawn.interface_name = interface_for(i);
    send(i, std::move(spawn));
    nodes_[i].state = NodeState::kSpawned;
  }
  watch_for_hangs(now);
}

/// By the way that was taken; where that does not tell, by the address that the node's probe went out from.
std::string Supervisor::interface_for(std::size_t node) const {
  const std::string& planned = network_.way(master_.chosen()).interfaces[node];
  if (!planned.empty()) return planned;
  return interface_of(nodes_[node].hello.interfaces, node == 0 ? master_.chosen() : nodes_[node].local);
}

/// What the ranks will use, and what is odd about it: once, and of jobs that need a network at all.
void Supervisor::tell_network() {
  std::map<std::string, std::vector<std::string>> interfaces;
  std::vector<NodeInfiniband> infiniband;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    interfaces[interface_for(i)].push_back(spec_.hosts[i].name);
    infiniband.push_back(nodes_[i].infiniband);
  }
  if (attempt_ > 0 || network_.one_machine) return;
  tell(network_words(network_.way(master_.chosen()), interfaces));
  for (const auto& candidate : network_.ways) {
    if (candidate.master_addr == master_.chosen()) break;
    const std::size_t cut_off = master_.cut_off(candidate.master_addr);
    tell(spec_.hosts[cut_off].name + " cannot reach " + spec_.hosts[0].name + " at " + candidate.master_addr +
         (candidate.network.empty() ? "" : " (" + candidate.network + ")") +
         ", so the next address is taken");
  }
  for (std::string& warning : infiniband_warnings(infiniband))
    tell("warning: " + warning);
}

/// Only who is missing is named, each with its step; who could not be reached has said so itself.
void Supervisor::on_start_deadline(Time now) {
  const std::string limit = limit_text(spec_.start_timeout);
  for (std::size_t i = 0; i < nodes_.size() && now >= start_limit_; ++i) {
    const std::string step = missing_step(i);
    if (step.empty() || std::exchange(nodes_[i].start_failed, true)) continue;
    start_failed_ = true;
    failures_.node_failed(spec_.hosts[i].name,
                          Error{ErrorCode::kTimeout, "it was still " + step + " when the start limit of " +
                                                         limit + " ran out (--start-timeout)"},
                          now);
  }
  if (!start_failed_) {
    start_failed_ = true;
    failures_.master_failed(
        Error{ErrorCode::kTimeout, "the job did not start within " + limit + " (--start-timeout)"});
  }
  leave_all(now);
}

/// What holds up the start at a node; empty: nothing does.
std::string Supervisor::missing_step(std::size_t i) const {
  const Node& node = nodes_[i];
  const bool setup = !spec_.setup.empty() || !spec_.hosts[i].setup.empty();
  if (node.state == NodeState::kConnecting) return "on the way to its hello";
  if (node.state == NodeState::kUp) return setup ? "running --setup" : "checking the job";
  if (node.state != NodeState::kAccepted) return "";
  if (state_ == State::kOpeningStore && i == 0) return "opening the store";
  if (state_ == State::kProbing && !master_.reaches(i))
    return "looking for the store on " + spec_.hosts[0].name;
  return "";
}

}  // namespace ddp::launcher
