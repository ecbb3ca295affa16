#include "launcher/supervisor/attempt_start.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

#include "launcher/supervisor/start_messages.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kProbeTime{5};

/// Returns the addresses of all nodes. If `all` is false (thousands of nodes with many addresses each),
/// returns only their reached addresses and their addresses on the routes to node 0.
std::vector<std::string> store_guests(const JobSpec& spec, const std::vector<NodeNetwork>& nodes,
                                      const NetChoice& network, bool all) {
  std::vector<std::string> guests = spec.store_allow;
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
  auto network = choose_network(nodes_, wanted);
  if (!network) return network.error();
  network_ = std::move(*network);
  return {};
}

rendezvous::OpenStore AttemptStart::store_order(const JobSpec& spec) const {
  rendezvous::OpenStore open = launcher::store_order(spec, nodes_, network_);
  open.attempt = attempt_;
  open.mode = static_cast<std::uint8_t>(spec.store);
  return open;
}

AttemptStart::Step AttemptStart::opened(std::size_t participant, const rendezvous::StoreOpened& message) {
  if (phase_ != Phase::kOpeningStore || participant != 0 || message.attempt != attempt_) return {};
  store_port_ = message.port;
  store_token_ = message.token;
  Step step;
  step.probes = orders(master_.begin(network_.master_addrs(), nodes_.size()));
  step.ready = master_.settled();
  phase_ = step.ready ? Phase::kReady : Phase::kProbing;
  return step;
}

AttemptStart::Step AttemptStart::probed(std::size_t participant, const rendezvous::ProbeResult& message) {
  if (phase_ != Phase::kProbing || participant == 0 || message.attempt != attempt_) return {};
  Step step;
  if (message.address.empty()) {
    step.probes = orders(master_.failed(participant));
  } else {
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
    case Phase::kOpeningStore:
      return participant == 0 ? "opening the store" : "";
    case Phase::kProbing:
      return master_.reaches(participant) ? "" : "trying to reach the store on " + nodes_[0].name;
    case Phase::kReady:
      break;
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

}  // namespace ddp::launcher
