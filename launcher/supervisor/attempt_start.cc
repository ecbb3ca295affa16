// AttemptStart first; then the orders and texts that a start needs; then StartNotice, and what is missing
// when a start is late.
#include "launcher/supervisor/attempt_start.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "launcher/job/output_credit.h"
#include "remote/hosts/host.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {

namespace {

constexpr std::chrono::seconds kProbeTime{5};

/// Returns the addresses of all nodes. If `all` is false (thousands of nodes with many addresses each),
/// returns only their reached addresses and their addresses on the routes to node 0.
std::vector<std::string> store_guests(const JobSpec& spec, const std::vector<NodeNetwork>& nodes,
                                      const NetChoice& network, bool all) {
  std::vector<std::string> guests = spec.store_allow;
  // The message has a bound. Each node gets an equal share, because a node without any address is locked out.
  const std::size_t room = (rendezvous::kMaxListElements - guests.size()) / nodes.size();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].connected.empty()) guests.push_back(nodes[i].connected);
    if (all) {
      for (const rendezvous::Interface& interface : nodes[i].interfaces)
        guests.push_back(interface.address);
      continue;
    }
    for (std::size_t route = 0; route < network.routes.size() && route + 1 < room; ++route) {
      const std::vector<std::string>& addresses = network.routes[route].addresses;
      if (i < addresses.size() && !addresses[i].empty()) guests.push_back(addresses[i]);
    }
  }
  std::sort(guests.begin(), guests.end());
  guests.erase(std::unique(guests.begin(), guests.end()), guests.end());
  return guests;
}

}  // namespace

rendezvous::OpenStore store_order(const JobSpec& spec, const std::vector<NodeNetwork>& nodes,
                                  const NetChoice& network) {
  rendezvous::OpenStore open;
  open.loopback_only = network.one_machine;
  open.port = spec.master_port;
  if (spec.port_range) std::tie(open.first_port, open.last_port) = *spec.port_range;
  open.allow = store_guests(spec, nodes, network, true);
  if (open.allow.size() > rendezvous::kMaxListElements)
    open.allow = store_guests(spec, nodes, network, false);
  return open;
}

Result<> AttemptStart::begin(std::uint32_t attempt, std::vector<NodeNetwork> nodes, std::string_view wanted) {
  phase_ = Phase::kOpeningStore;
  attempt_ = attempt;
  nodes_ = std::move(nodes);
  local_.assign(nodes_.size(), {});
  network_ = DDP_TRY(choose_network(nodes_, wanted));
  return {};
}

rendezvous::OpenStore AttemptStart::store_order(const JobSpec& spec) const {
  rendezvous::OpenStore open = launcher::store_order(spec, nodes_, network_);
  open.attempt = attempt_;
  open.mode = spec.store;
  return open;
}

AttemptStart::Step AttemptStart::opened(std::size_t participant, const rendezvous::StoreOpened& message) {
  // An answer about an earlier attempt may still be on its way: its port is closed.
  if (phase_ != Phase::kOpeningStore || participant != 0 || message.attempt != attempt_) return {};
  store_port_ = message.port;
  store_token_ = message.token;
  Step step;
  step.probes = orders(master_.begin(network_.master_addrs(), nodes_.size()));
  step.ready = master_.settled();
  // A job of one node has nobody to probe, so it is ready at once.
  phase_ = step.ready ? Phase::kReady : Phase::kProbing;
  return step;
}

AttemptStart::Step AttemptStart::probed(std::size_t participant, const rendezvous::ProbeResult& message) {
  if (phase_ != Phase::kProbing || participant == 0 || message.attempt != attempt_) return {};
  Step step;
  if (message.address.empty()) {
    step.probes = orders(master_.failed(participant));
  } else {
    // The address goes into MASTER_ADDR of all workers, so it must be one that the master proposed.
    const auto candidates = network_.master_addrs();
    if (std::find(candidates.begin(), candidates.end(), message.address) == candidates.end()) {
      step.failure = Error{ErrorCode::kProtocol, "it reported an address that was not probed", 0};
      return step;
    }
    local_[participant] = message.local;
    if (!message.text.empty())
      step.detail =
          nodes_[participant].name + " cannot reach " + nodes_[0].name + " at every address: " + message.text;
    step.probes = orders(master_.reached(participant, message.address));
  }
  if (master_.is_exhausted()) step.failure = no_route_error(participant, message.text);
  step.ready = master_.settled();
  if (step.ready) phase_ = Phase::kReady;
  return step;
}

std::vector<AttemptStart::ProbeOrder> AttemptStart::orders(
    const std::vector<MasterAddress::AddressProbe>& probes) const {
  std::vector<ProbeOrder> orders;
  for (const MasterAddress::AddressProbe& probe : probes)
    orders.push_back({probe.node, {attempt_, probe.addresses, store_port_, to_ms(kProbeTime), store_token_}});
  return orders;
}

/// Returns the error of the node whose answer ruled out the last address; `text` holds its own failures.
Error AttemptStart::no_route_error(std::size_t asked, const std::string& text) const {
  std::string others;
  for (const NetRoute& route : network_.routes) {
    const std::size_t cut_off = master_.cut_off(route.master_addr);
    if (cut_off != 0 && cut_off != asked)
      others += ", and " + nodes_[cut_off].name + " does not reach " + route.master_addr;
  }
  return Error{ErrorCode::kUnreachable, "it cannot reach the store on " + nodes_[0].name + " (" + text + ")" +
                                            others + "; open port " + std::to_string(store_port_) +
                                            " between the nodes, or choose a network with --network"};
}

std::string AttemptStart::awaited_step(std::size_t participant) const {
  switch (phase_) {
    case Phase::kOpeningStore: return participant == 0 ? "opening the store" : "";
    case Phase::kProbing:
      return master_.reaches(participant) ? "" : "trying to reach the store on " + nodes_[0].name;
    case Phase::kReady: break;
  }
  return "";
}

void AttemptStart::complete(rendezvous::Spawn& spawn, std::size_t participant) const {
  spawn.attempt = attempt_;
  spawn.master_addr = master_.chosen();
  spawn.master_port = store_port_;
  spawn.interface_name = interface_for(participant);
}

/// Returns the interface of the chosen route. If the route does not name one, returns the interface of the
/// address from which the node's probe went out.
std::string AttemptStart::interface_for(std::size_t participant) const {
  const std::string& planned = network_.route(master_.chosen()).interfaces[participant];
  if (!planned.empty()) return planned;
  return interface_of(nodes_[participant].interfaces,
                      participant == 0 ? master_.chosen() : local_[participant]);
}

std::vector<std::string> AttemptStart::network_lines(const std::vector<NodeInfiniband>& infiniband) const {
  std::map<std::string, std::vector<std::string>> interfaces;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    interfaces[interface_for(i)].push_back(nodes_[i].name);
  std::vector<std::string> lines{network_text(network_.route(master_.chosen()), interfaces)};
  for (const NetRoute& candidate : network_.routes) {
    if (candidate.master_addr == master_.chosen()) break;
    lines.push_back(nodes_[master_.cut_off(candidate.master_addr)].name + " cannot reach " + nodes_[0].name +
                    " at " + candidate.master_addr +
                    (candidate.network.empty() ? "" : " (" + candidate.network + ")") +
                    "; trying the next address");
  }
  for (const std::string& warning : infiniband_warnings(infiniband))
    lines.push_back("warning: " + warning);
  return lines;
}

namespace {

/// Time from TERM to KILL on a node that has lost the master.
constexpr std::chrono::milliseconds kLinkGrace{5'000};
/// Longest list of awaited nodes, in bytes.
constexpr std::size_t kNamesShown = 60;

}  // namespace

std::uint32_t to_ms(std::chrono::milliseconds value) {
  return static_cast<std::uint32_t>(value.count());
}

std::string awaited_text(const std::map<std::string, std::vector<std::string>>& awaited, std::size_t nodes) {
  std::size_t count = 0;
  std::string text;
  for (const auto& [step, names] : awaited) {
    std::string some = remote::fold_ranges(names);
    if (some.size() > kNamesShown) some = join_some(names, 1);
    text += (text.empty() ? ": " : ", ") + some + " (" + step + ")";
    count += names.size();
  }
  return count == 0 ? text : std::to_string(count) + " of " + counted(nodes, "node") + text;
}

std::chrono::milliseconds link_grace(const JobSpec& spec) {
  // Slurm ends a job by SIGTERM to all processes of its nodes, so the grace of a user's stop applies.
  return spec.launcher == LauncherKind::kSlurm ? spec.stop_grace : std::min(spec.failure_grace, kLinkGrace);
}

HangLimits hang_limits(const JobSpec& spec) {
  return {spec.hang_timeout, spec.hang_by_steps, spec.report_stalls};
}

rendezvous::JobStart job_start(const JobSpec& spec, const remote::Host& host, std::size_t nodes) {
  rendezvous::JobStart job;
  job.job_id = spec.job_id;
  job.host = host.name;
  job.stdin_to_rank0 = spec.stdin_to_rank0;
  job.may_restart = spec.max_restarts > 0 || spec.scale_up_now;
  job.master_timeout_ms = to_ms(node_lease(spec));
  job.link_grace_ms = to_ms(link_grace(spec));
  job.credit = credit_window(nodes);
  job.activity_timeout_ms = to_ms(hang_limits(spec).shortest());
  job.diagnosis = !spec.no_diagnosis;
  job.stop_leaders = spec.stop_leaders;
  // A wrapper gives the node other devices, and other PIDs than the master's.
  job.local = host.wrapper.empty() &&
              (spec.launcher == LauncherKind::kLocal || (is_localhost(host) && !spec.ssh_localhost));
  // A node that joins by itself has its own command and environment and does not get the master's.
  if (spec.launcher == LauncherKind::kJoin && !job.local) return job;
  job.command = spec.command;
  job.chdir = host.chdir.empty() ? spec.chdir : host.chdir;
  job.env = job.local ? spec.local_env : spec.env;
  job.explicit_env = spec.explicit_env;
  job.explicit_env.insert(job.explicit_env.end(), host.env.begin(), host.env.end());
  job.setup = spec.setup;
  if (!host.setup.empty()) job.setup.push_back(host.setup);
  job.devices = host.devices;
  return job;
}

rendezvous::Spawn spawn_message(const rendezvous::World& world, std::size_t participant) {
  const rendezvous::RankAssignment& assignment = world.assignments[participant];
  rendezvous::Spawn spawn;
  spawn.node_rank = static_cast<std::uint32_t>(assignment.node_rank);
  spawn.nodes = static_cast<std::uint32_t>(world.assignments.size());
  spawn.first_rank = static_cast<std::uint32_t>(assignment.first_rank);
  spawn.local_world_size = static_cast<std::uint32_t>(assignment.local_world_size);
  spawn.world_size = static_cast<std::uint32_t>(world.world_size);
  return spawn;
}

namespace {

using std::chrono::seconds;

}  // namespace

void StartNotice::begin(Time now) {
  started_at_ = now;
  check_at_ = now + kLongStart;
  log_after_ = kLongStart;
}

std::optional<job::Waiting> StartNotice::show(const std::string& awaited, Time now) {
  check_at_ = now + seconds(1);
  if (awaited.empty()) return {};
  const bool due = now - started_at_ >= log_after_;
  // The intervals grow up to a minute, so that the log of a start that takes an hour stays short.
  while (due && log_after_ <= now - started_at_)
    log_after_ += std::min<Time>(2 * log_after_, seconds(60));
  shown_ = true;
  return job::Waiting{"waiting for " + awaited, due};
}

std::optional<job::Waiting> StartNotice::end() {
  const bool removes = check_at_ && shown_;
  check_at_.reset();
  return removes ? std::optional(job::Waiting{}) : std::nullopt;
}

std::string missing_step(const JobSpec& spec, const NodeRecords& nodes, const AttemptStart* start,
                         std::size_t index) {
  const NodeRecords::Node& node = nodes[index];
  const bool setup = !spec.setup.empty() || !spec.hosts[index].setup.empty();
  if (node.state == NodeRecords::State::kConnecting) return "waiting for the agent's hello";
  if (node.state == NodeRecords::State::kUp) return setup ? "running --setup" : "checking the job";
  return node.participant && start != nullptr ? start->awaited_step(*node.participant) : "";
}

std::string awaited_text(const JobSpec& spec, const NodeRecords& nodes, const AttemptStart* start) {
  std::map<std::string, std::vector<std::string>> by_step;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeRecords::Node& node = nodes[i];
    const std::string step =
        node.state == NodeRecords::State::kConnecting ? node.start_step : missing_step(spec, nodes, start, i);
    if (!step.empty()) by_step[step].push_back(node.name);
  }
  return awaited_text(by_step, nodes.size());
}

Error late_error(const JobSpec& spec, const std::string& step) {
  return Error{ErrorCode::kTimeout, "it was still " + step + " when the start limit of " +
                                        format_duration(spec.start_timeout) + " ran out (--start-timeout)"};
}

std::vector<std::pair<std::string, Error>> missing_nodes(const JobSpec& spec, const NodeRecords& nodes,
                                                         bool at_start, bool late) {
  std::vector<std::pair<NodeRecords::Time, std::pair<std::string, Error>>> missed;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeRecords::Node& node = nodes[i];
    // After the start only nodes with ranks count; at the start every host that was asked for.
    if ((node.is_member() && !node.lost) || (!at_start && !node.participant)) continue;
    if (!node.trouble && !late) continue;
    Error error =
        node.trouble ? node.trouble->error : late_error(spec, missing_step(spec, nodes, nullptr, i));
    // The cause is the loss of the node; that no other replaced it ended the job.
    if (!at_start) {
      error.code = ErrorCode::kLinkLost;
      error.text +=
          "; no node replaced it within " + format_duration(spec.start_timeout) + " (--start-timeout)";
    }
    missed.push_back(
        {node.trouble ? node.trouble->at : NodeRecords::Time::max(), {node.name, std::move(error)}});
  }
  // The first failure is named first. Nodes that are merely late have no time and come last.
  std::ranges::stable_sort(missed, {}, [](const auto& entry) { return entry.first; });
  std::vector<std::pair<std::string, Error>> sorted;
  for (auto& entry : missed)
    sorted.push_back(std::move(entry.second));
  return sorted;
}

std::string size_text(const rendezvous::World& world) {
  const std::size_t nodes = world.assignments.size();
  const int first = world.assignments[0].local_world_size;
  const bool equal = std::ranges::all_of(
      world.assignments, [first](const auto& ranks) { return ranks.local_world_size == first; });
  const int workers = equal ? first : world.world_size;
  return counted(nodes, "node") + (equal ? " × " : ", ") + counted(workers, "worker");
}

}  // namespace ddp::launcher
