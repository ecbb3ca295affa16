// The part of the Supervisor from an attempt's Begin to the order to spawn its workers.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/format_text.h"
#include "launcher/report/start_failures.h"
#include "launcher/supervisor/network_text.h"
#include "launcher/supervisor/start_messages.h"
#include "launcher/supervisor/supervisor.h"
#include "remote/hosts/host_range.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

using std::chrono::seconds;

constexpr seconds kProbeTime{5};

/// "2 nodes × 8 workers", or "2 nodes, 12 workers" if the nodes differ.
std::string size_text(const rendezvous::World& world) {
  const std::size_t nodes = world.assignments.size();
  const int first = world.assignments[0].local_world_size;
  const bool equal = std::ranges::all_of(
      world.assignments, [first](const auto& ranks) { return ranks.local_world_size == first; });
  const int workers = equal ? first : world.world_size;
  return counted(nodes, "node") + (equal ? " × " : ", ") + counted(workers, "worker");
}

}  // namespace

void Supervisor::carry_out(const rendezvous::Begin& action, Time now) {
  attempt_ = action.attempt;
  world_ = action.world;
  store_port_ = 0;
  stop_reason_.clear();
  growing_ = revoking_ = false;
  hung_.clear();
  exited_.clear();
  early_exit_notice_.reset();
  for (Node& node : nodes_) {
    node.participant.reset();
    if (node.state == NodeState::kEnded && !node.lost) node.state = NodeState::kAccepted;
  }
  for (std::size_t i = 0; i < world_.assignments.size(); ++i)
    participant_node(i).participant = i;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == NodeState::kWaiting && !nodes_[i].participant && !nodes_[i].lost)
      end_survivors(i, spec_.failure_grace, "its node is not in attempt " + std::to_string(attempt_));
  }
  // The previous attempt was stopped because the job grew, so its ends are no failures.
  if (!end().failures.empty()) failures_.forget_attempt();
  failures_.begin_attempt(attempt_, now);
  if (attempt_ > 0) start_limit_ = now + spec_.start_timeout;
  deadline_ = start_limit_;
  if (attempt_ == 0) report_start();
  if (choose_network()) open_store();
}

/// Reports which node runs which ranks, and which nodes that the user named run none.
void Supervisor::report_start() {
  failures_.name_job("job " + spec_.job_id + ": " + size_text(world_), spec_.job_dir);
  if (!spec_.quiet) actions_.emplace_back(job::PrintLine{job_line(end()), true});
  std::vector<StartGroup> missing;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (const rendezvous::RankAssignment* ranks = assignment(i)) {
      const auto last = ranks->first_rank + ranks->local_world_size - 1;
      detail(node.name + (last == ranks->first_rank ? ": rank " : ": ranks ") +
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
      notify(node.name + (node.state == NodeState::kAccepted ? " is a spare" : " has not joined yet"));
    }
  }
  for (const StartGroup& group : missing)
    say("warning: the job starts without " + group_hosts_text(group) + ": " + reason_text(group));
}

/// Returns false when there is none; the job is then over.
bool Supervisor::choose_network() {
  std::vector<NodeNetwork> networks;
  for (std::size_t i = 0; i < world_.assignments.size(); ++i)
    networks.push_back({participant_node(i).name, participant_node(i).hello.machine_id,
                        participant_node(i).connected, participant_node(i).hello.interfaces});
  auto network = launcher::choose_network(networks, spec_.network);
  if (!network) {  // the error names the nodes itself
    failures_.master_failed(network.error());
    state_ = State::kOpeningStore;
    inform(rendezvous::AttemptFailed{network.error().text, true});
    return false;
  }
  network_ = std::move(*network);
  detail("network: " + network_.reason);
  return true;
}

void Supervisor::open_store() {
  state_ = State::kOpeningStore;
  rendezvous::OpenStore open;
  open.attempt = attempt_;
  open.mode = static_cast<std::uint8_t>(spec_.store);
  open.loopback_only = network_.one_machine;
  open.port = spec_.master_port;
  if (spec_.port_range) std::tie(open.first_port, open.last_port) = *spec_.port_range;
  open.allow = store_guests(true);
  if (open.allow.size() > rendezvous::kMaxListElements) open.allow = store_guests(false);
  send(node_of(0), std::move(open));
}

/// Returns the addresses of all nodes. If `all` is false (thousands of nodes with many addresses each),
/// returns only their reached addresses and their addresses on the routes to node 0.
std::vector<std::string> Supervisor::store_guests(bool all) const {
  std::vector<std::string> guests = spec_.store_allow;
  const std::size_t room = (rendezvous::kMaxListElements - guests.size()) / world_.assignments.size();
  for (std::size_t i = 0; i < world_.assignments.size(); ++i) {
    if (!participant_node(i).connected.empty()) guests.push_back(participant_node(i).connected);
    if (all) {
      for (const rendezvous::Interface& interface : participant_node(i).hello.interfaces)
        guests.push_back(interface.address);
      continue;
    }
    for (std::size_t route = 0; route < network_.routes.size() && route + 1 < room; ++route) {
      const std::vector<std::string>& addresses = network_.routes[route].addresses;
      if (i < addresses.size() && !addresses[i].empty()) guests.push_back(addresses[i]);
    }
  }
  std::sort(guests.begin(), guests.end());
  guests.erase(std::unique(guests.begin(), guests.end()), guests.end());
  return guests;
}

void Supervisor::handle(std::size_t index, const rendezvous::StoreOpened& message, Time now) {
  if (state_ != State::kOpeningStore || nodes_[index].participant != 0 || message.attempt != attempt_) return;
  store_port_ = message.port;
  store_token_ = message.token;
  state_ = State::kProbing;
  send_probes(master_.begin(network_.master_addrs(), world_.assignments.size()));
  probe_or_spawn(now);
}

void Supervisor::send_probes(const std::vector<MasterAddress::AddressProbe>& probes) {
  for (const MasterAddress::AddressProbe& probe : probes) {
    send(node_of(probe.node),
         rendezvous::Probe{attempt_, probe.addresses, store_port_, to_ms(kProbeTime), store_token_});
  }
}

void Supervisor::handle(std::size_t index, const rendezvous::ProbeResult& message, Time now) {
  const auto participant = nodes_[index].participant;
  if (state_ != State::kProbing || message.attempt != attempt_ || participant.value_or(0) == 0) return;
  if (message.address.empty()) {
    send_probes(master_.failed(*participant));
    if (master_.is_exhausted()) return fail_start(index, no_route_error(*participant, message.text), now);
    return probe_or_spawn(now);
  }
  const auto candidates = network_.master_addrs();
  if (std::find(candidates.begin(), candidates.end(), message.address) == candidates.end()) {
    return fail_start(index, Error{ErrorCode::kProtocol, "it reported an address that was not probed", 0},
                      now);
  }
  nodes_[index].local = message.local;
  if (!message.text.empty())
    detail(nodes_[index].name + " cannot reach " + participant_node(0).name +
           " at every address: " + message.text);
  send_probes(master_.reached(*participant, message.address));
  if (master_.is_exhausted()) return fail_start(index, no_route_error(*participant, message.text), now);
  probe_or_spawn(now);
}

/// Returns the error of the node whose answer ruled out the last address; `text` holds its own failures.
Error Supervisor::no_route_error(std::size_t asked, const std::string& text) const {
  std::string others;
  for (const NetRoute& route : network_.routes) {
    const std::size_t cut_off = master_.cut_off(route.master_addr);
    if (cut_off != 0 && cut_off != asked)
      others += ", and " + participant_node(cut_off).name + " does not reach " + route.master_addr;
  }
  return Error{ErrorCode::kUnreachable, "it cannot reach the store on " + participant_node(0).name + " (" +
                                            text + ")" + others + "; open port " +
                                            std::to_string(store_port_) +
                                            " between the nodes, or choose a network with --network"};
}

void Supervisor::probe_or_spawn(Time now) {
  if (state_ == State::kProbing && master_.settled()) spawn_all(now);
}

void Supervisor::spawn_all(Time now) {
  state_ = State::kRunning;
  report_network();
  detail("all nodes are ready; starting " + counted(world_.world_size, "worker") +
         ", MASTER_ADDR=" + master_.chosen() + " MASTER_PORT=" + std::to_string(store_port_));
  failures_.begin_attempt(attempt_, now);
  deadline_.reset();
  source_ = source_of_state();
  report_source();
  survivors_.begin(world_.assignments.size(), spec_.start_timeout, now);
  for (std::size_t i = 0; i < world_.assignments.size(); ++i) {
    rendezvous::Spawn spawn = spawn_message(world_, i);
    spawn.attempt = attempt_;
    if (source_) spawn.from = static_cast<std::int32_t>(source_->rank);
    spawn.master_addr = master_.chosen();
    spawn.max_restarts = static_cast<std::uint32_t>(spec_.max_restarts);
    spawn.master_port = store_port_;
    spawn.agent_store = spec_.store == StoreMode::kAgent;
    spawn.interface_name = interface_for(i);
    send(node_of(i), std::move(spawn));
    Node& node = participant_node(i);
    node.state = NodeState::kSpawned;
    node.spawned = attempt_;
    node.ran = world_.assignments[i];
    node.worker_pids.resize(static_cast<std::size_t>(node.ran.local_world_size));
    node.survivors.clear();
    node.ending = false;
  }
  monitor_hangs(now);
}

/// Returns the interface of the chosen route. If the route does not name one, returns the interface of the
/// address from which the node's probe went out.
std::string Supervisor::interface_for(std::size_t index) const {
  const std::string& planned = network_.route(master_.chosen()).interfaces[index];
  if (!planned.empty()) return planned;
  return interface_of(participant_node(index).hello.interfaces,
                      index == 0 ? master_.chosen() : participant_node(index).local);
}

/// Reports the network of the ranks and its problems: once, and only for jobs that need a network.
void Supervisor::report_network() {
  std::map<std::string, std::vector<std::string>> interfaces;
  std::vector<NodeInfiniband> infiniband;
  for (std::size_t i = 0; i < world_.assignments.size(); ++i) {
    interfaces[interface_for(i)].push_back(participant_node(i).name);
    infiniband.push_back(participant_node(i).infiniband);
  }
  if (attempt_ > 0 || network_.one_machine) return;
  notify(network_text(network_.route(master_.chosen()), interfaces));
  for (const auto& candidate : network_.routes) {
    if (candidate.master_addr == master_.chosen()) break;
    const std::size_t cut_off = master_.cut_off(candidate.master_addr);
    notify(participant_node(cut_off).name + " cannot reach " + participant_node(0).name + " at " +
           candidate.master_addr + (candidate.network.empty() ? "" : " (" + candidate.network + ")") +
           "; trying the next address");
  }
  for (std::string& warning : infiniband_warnings(infiniband))
    notify("warning: " + warning);
}

/// A first attempt that cannot start would fail again. A later attempt may run without the node.
void Supervisor::fail_start(std::size_t index, Error error, Time now) {
  if (attempt_ > 0) {
    nodes_[index].reason_reported = true;
    lose(index, error, now);
    return send_away(index, error);
  }
  const std::string why = nodes_[index].name + ": " + error.text;
  take_as_failed(index, std::move(error), now);
  inform(rendezvous::AttemptFailed{why, true});
}

/// Names only the nodes that hold up the start, each with its step.
void Supervisor::on_start_deadline(Time now) {
  const std::string limit = limit_text(spec_.start_timeout);
  for (const rendezvous::RankAssignment& assignment : world_.assignments) {
    const std::string step = missing_step(assignment.host);
    if (step.empty()) continue;
    take_as_failed(assignment.host,
                   Error{ErrorCode::kTimeout, "it was still " + step + " when the start limit of " + limit +
                                                  " ran out (--start-timeout)"},
                   now);
  }
  const Error late{ErrorCode::kTimeout, "the job did not start within " + limit + " (--start-timeout)"};
  if (end().failures.empty()) failures_.master_failed(late);
  inform(rendezvous::AttemptFailed{late.text, true});
}

/// Returns the nodes that hold up the start. Empty: the start is over.
std::string Supervisor::awaited_text() const {
  if (attempt_ > 0 || (state_ != State::kConnecting && !starting())) return {};
  std::map<std::string, std::vector<std::string>> by_step;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const std::string step = node.state == NodeState::kConnecting ? node.start_step : missing_step(i);
    if (!step.empty()) by_step[step].push_back(node.name);
  }
  return launcher::awaited_text(by_step, nodes_.size());
}

/// Reports what a long start waits for: every second for a terminal, at growing intervals for a log.
void Supervisor::report_waiting(Time now) {
  if (!waiting_check_) return;
  if (attempt_ > 0 || (state_ != State::kConnecting && !starting())) {  // the start is over
    waiting_check_.reset();
    if (waiting_shown_) actions_.emplace_back(job::Waiting{});
    return;
  }
  if (now < *waiting_check_) return;
  waiting_check_ = now + seconds(1);
  const std::string text = awaited_text();  // looks at every node, so not at every event
  // In per-node mode the listener itself reports the nodes that it waits for.
  if (text.empty() || spec_.quiet || (spec_.launcher == LauncherKind::kJoin && state_ == State::kConnecting))
    return;
  const bool due = now - started_at_ >= waiting_due_;
  while (due && waiting_due_ <= now - started_at_)
    waiting_due_ += std::min<Time>(2 * waiting_due_, seconds(60));
  waiting_shown_ = true;
  actions_.emplace_back(job::Waiting{"waiting for " + text, due});
}

/// Returns the step that holds up the start at a node; empty: none.
std::string Supervisor::missing_step(std::size_t i) const {
  const Node& node = nodes_[i];
  const bool setup = !spec_.setup.empty() || !spec_.hosts[i].setup.empty();
  if (node.state == NodeState::kConnecting) return "waiting for the agent's hello";
  if (node.state == NodeState::kUp) return setup ? "running --setup" : "checking the job";
  if (!node.participant) return "";
  if (state_ == State::kOpeningStore && *node.participant == 0) return "opening the store";
  if (state_ == State::kProbing && !master_.reaches(*node.participant))
    return "trying to reach the store on " + participant_node(0).name;
  return "";
}

}  // namespace ddp::launcher
