// From small to large: the kinds of interfaces; networks that all nodes share; the three ways to choose
// (--network, a shared network, none); texts; and last MasterAddress, the probes of the chosen routes.
#include "launcher/supervisor/net_choice.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "base/ip_address.h"
#include "base/text.h"

namespace ddp::launcher {

namespace {

using rendezvous::Interface;

// The kind is guessed from the name, because the kernel does not say what an interface is for.
enum class InterfaceKind { kReal, kVpn, kBridge };

InterfaceKind link_kind(std::string_view name) {
  for (const std::string_view start :
       {"docker", "br-", "veth", "virbr", "vnet", "cni", "flannel", "cali", "cilium", "lxc", "lxd", "podman",
        "kube-", "nodelocaldns", "vmnet", "vboxnet"}) {
    if (name.starts_with(start)) return InterfaceKind::kBridge;
  }
  for (const std::string_view start : {"tun", "tap", "wg", "tailscale", "zt", "ppp", "utun"}) {
    if (name.starts_with(start)) return InterfaceKind::kVpn;
  }
  return InterfaceKind::kReal;
}

struct Usable {
  const Interface* interface = nullptr;
  IpAddress address;
  InterfaceKind kind = InterfaceKind::kReal;
};

struct NodeAddresses {
  const NodeNetwork* given = nullptr;
  std::optional<IpAddress> connected;
  std::vector<Usable> usable;  // up, not loopback, not link-local
};

std::vector<NodeAddresses> parsed(const std::vector<NodeNetwork>& nodes) {
  std::vector<NodeAddresses> made;
  for (const NodeNetwork& given : nodes) {
    NodeAddresses node{&given, parse_ip_address(given.connected), {}};
    for (const Interface& interface : given.interfaces) {
      const auto address = parse_ip_address(interface.address);
      if (!address || !interface.up || interface.loopback || address->is_loopback() ||
          address->is_link_local())
        continue;
      node.usable.push_back({&interface, *address, link_kind(interface.name)});
    }
    made.push_back(std::move(node));
  }
  return made;
}

bool all_on_one_machine(const std::vector<NodeNetwork>& nodes) {
  return nodes.size() == 1 || std::all_of(nodes.begin(), nodes.end(), [&](const NodeNetwork& node) {
           return !node.machine_id.empty() && node.machine_id == nodes[0].machine_id;
         });
}

// Returns a node on another machine that also has node 0's `address`, and so cannot reach node 0 there.
const NodeAddresses* also_has(const std::vector<NodeAddresses>& nodes, const IpAddress& address) {
  const std::string& machine = nodes[0].given->machine_id;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const bool other = machine.empty() || nodes[i].given->machine_id != machine;
    const auto it = [&](const Usable& usable) { return usable.address == address; };
    if (other && std::any_of(nodes[i].usable.begin(), nodes[i].usable.end(), it)) return &nodes[i];
  }
  return nullptr;
}

// Lists the addresses of each node for errors. The list is bounded, so that it does not hide the message.
std::string inventory(const std::vector<NodeAddresses>& nodes) {
  constexpr std::size_t kShown = 16;
  std::string text = "\nthe addresses of the nodes:";
  for (std::size_t i = 0; i < std::min(nodes.size(), kShown); ++i) {
    text += "\n  " + nodes[i].given->name + ":";
    std::string list;
    for (const Interface& interface : nodes[i].given->interfaces) {
      const auto address = parse_ip_address(interface.address);
      if (interface.loopback || (address && address->is_link_local())) continue;
      list += (list.empty() ? " " : ", ") + interface.name + " " + interface.address + "/" +
              std::to_string(interface.prefix_length) + (interface.up ? "" : " (down)");
    }
    text += list.empty() ? " no address but loopback" : list;
  }
  if (nodes.size() > kShown) text += "\n  and " + std::to_string(nodes.size() - kShown) + " more nodes";
  return text;
}

// One network on which all nodes have an address.
struct NetworkOption {
  std::vector<const Usable*> members;  // per node
  std::string name;                    // "10.0.0.0/24"
  std::size_t resolved = 0;            // nodes whose name resolved to their address in this network
};

// Returns a fitting address of the node, preferably the one to which its name resolved.
template <class Fits>
const Usable* best_member(const NodeAddresses& node, Fits fits) {
  const Usable* best = nullptr;
  for (const Usable& usable : node.usable) {
    if (!fits(usable)) continue;
    if (usable.address == node.connected) return &usable;
    if (!best) best = &usable;
  }
  return best;
}

std::size_t count_resolved(const std::vector<NodeAddresses>& nodes, const NetworkOption& option) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    count += nodes[i].connected == option.members[i]->address ? 1 : 0;
  return count;
}

// A bridge that is local to each host (docker0, virbr0) has the same address on every machine.
bool same_address_on_two_machines(const std::vector<NodeAddresses>& nodes, const NetworkOption& option) {
  // Nodes of one machine may share an address. Without a machine id nobody can tell, so the network counts as
  // unusable.
  std::map<IpAddress, const std::string*> seen;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string& machine = nodes[i].given->machine_id;
    const auto [at, fresh] = seen.emplace(option.members[i]->address, &machine);
    if (!fresh && (machine.empty() || *at->second != machine)) return true;
  }
  return false;
}

std::optional<NetworkOption> shared_through(const std::vector<NodeAddresses>& nodes, const Usable& first) {
  const IpNetwork network = network_of(first.address, first.interface->prefix_length);
  NetworkOption option{{&first}, network.text(), 0};
  bool bridge = first.kind == InterfaceKind::kBridge;
  bool reached = nodes[0].connected && network.contains(*nodes[0].connected);
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    // Both ends must agree: with unequal prefixes one of them looks for the other behind a gateway.
    const Usable* member = best_member(nodes[i], [&](const Usable& usable) {
      return network.contains(usable.address) &&
             network_of(usable.address, usable.interface->prefix_length).contains(first.address);
    });
    if (!member) return std::nullopt;
    bridge = bridge || member->kind == InterfaceKind::kBridge;
    reached = reached || (nodes[i].connected && network.contains(*nodes[i].connected));
    option.members.push_back(member);
  }
  // A bridge usually ends at its host, even if all hosts have one of the same network. It counts if a node
  // was reached through it.
  if ((bridge && !reached) || same_address_on_two_machines(nodes, option)) return std::nullopt;
  option.resolved = count_resolved(nodes, option);
  return option;
}

std::vector<NetworkOption> shared_networks(const std::vector<NodeAddresses>& nodes) {
  std::vector<NetworkOption> options;
  for (const Usable& first : nodes[0].usable) {
    if (auto option = shared_through(nodes, first)) options.push_back(std::move(*option));
  }
  std::stable_sort(options.begin(), options.end(), [](const NetworkOption& a, const NetworkOption& b) {
    auto is_vpn = [](const Usable* member) { return member->kind == InterfaceKind::kVpn; };
    const bool a_vpn = std::any_of(a.members.begin(), a.members.end(), is_vpn);
    const bool b_vpn = std::any_of(b.members.begin(), b.members.end(), is_vpn);
    // The network of the host names is the one that the administrator meant. Stable, so that the order of the
    // interfaces of node 0 decides between equals.
    if (a.resolved != b.resolved) return a.resolved > b.resolved;
    if (a_vpn != b_vpn) return b_vpn;
    return !a.members[0]->address.v6 && b.members[0]->address.v6;
  });
  return options;
}

/// Adds `route` unless an earlier, better one has the same address.
void add_route(NetChoice& choice, NetRoute route) {
  const auto same = [&](const NetRoute& known) { return known.master_addr == route.master_addr; };
  if (std::none_of(choice.routes.begin(), choice.routes.end(), same))
    choice.routes.push_back(std::move(route));
}

NetRoute route_of(const NetworkOption& option) {
  NetRoute route{option.members[0]->interface->address, option.name, {}};
  for (const Usable* member : option.members) {
    route.interfaces.push_back(member->interface->name);
    route.addresses.push_back(member->interface->address);
  }
  return route;
}

/// Returns the route through `address` of node 0 when no network is shared by all. Each other node uses the
/// interface at which it was reached.
NetRoute route_to(const std::string& address, const std::vector<NodeAddresses>& nodes) {
  NetRoute route{address, "", {}};
  for (const NodeAddresses& node : nodes) {
    const auto wanted = &node == &nodes[0] ? parse_ip_address(address) : node.connected;
    const Usable* member = best_member(node, [&](const Usable& usable) { return usable.address == wanted; });
    route.interfaces.push_back(member ? member->interface->name : "");
    route.addresses.push_back(member ? member->interface->address : "");
  }
  return route;
}

bool worth_trying(const std::optional<IpAddress>& address) {
  return address && !address->is_loopback() && !address->is_link_local();
}

NetChoice loopback_choice(std::size_t nodes) {
  NetChoice choice;
  choice.routes.push_back({"127.0.0.1", "", std::vector<std::string>(nodes, "lo")});
  choice.one_machine = true;
  choice.reason = nodes == 1 ? "one node: 127.0.0.1" : "all nodes are on one machine: 127.0.0.1";
  return choice;
}

struct Wanted {
  std::string text;
  std::optional<IpNetwork> network;  // unset: `text` is an interface name
};

Result<Wanted> parse_wanted(std::string_view text) {
  if (text.find('/') == std::string_view::npos) return Wanted{std::string(text), std::nullopt};
  const auto network = parse_ip_network(text);
  if (!network) {
    return Error{ErrorCode::kUsage, "--network " + std::string(text) +
                                        ": neither a network such as 10.1.0.0/16 nor an interface name"};
  }
  return Wanted{std::string(text), *network};
}

Result<NetChoice> wanted_choice(const std::vector<NodeAddresses>& nodes, const Wanted& wanted,
                                bool one_machine) {
  if (wanted.text == "lo" || (wanted.network && wanted.network->base.is_loopback())) {
    if (one_machine) return loopback_choice(nodes.size());
    return Error{ErrorCode::kUsage,
                 "--network " + wanted.text + ": loopback does not reach another machine" + inventory(nodes)};
  }
  const auto fits = [&](const Usable& usable) {
    return wanted.network ? wanted.network->contains(usable.address) : usable.interface->name == wanted.text;
  };
  NetworkOption option{{}, wanted.text, 0};
  std::string lacking;
  bool exists = wanted.network.has_value();
  for (const NodeAddresses& node : nodes) {
    const Usable* member = best_member(node, fits);
    option.members.push_back(member);
    if (member) continue;
    lacking += (lacking.empty() ? "" : ", ") + node.given->name;
    exists = exists || std::ranges::count(node.given->interfaces, wanted.text, &Interface::name) > 0;
  }
  if (!lacking.empty()) {
    const std::string what = wanted.network ? "no usable address in it"
                             : exists       ? "no usable address on that interface"
                                            : "no interface has that name";
    return Error{ErrorCode::kUsage,
                 "--network " + wanted.text + ": " + what + " on " + lacking + inventory(nodes)};
  }
  // Node 0 may have several fitting addresses, and another node may reach only one of them.
  const Usable& best = *option.members[0];
  std::vector<const Usable*> own{&best};
  for (const Usable& usable : nodes[0].usable) {
    if (fits(usable)) own.push_back(&usable);
  }
  NetChoice choice;  // never loopback: the store must listen on this network
  for (const Usable* usable : own) {
    option.members[0] = usable;
    if (!also_has(nodes, usable->address)) add_route(choice, route_of(option));
  }
  if (choice.routes.empty()) {
    return Error{ErrorCode::kUsage,
                 "--network " + wanted.text + ": " + nodes[0].given->name + " and " +
                     also_has(nodes, best.address)->given->name + " have the same address on it, " +
                     best.interface->address +
                     ", so this network does not connect them; choose another with --network" +
                     inventory(nodes)};
  }
  choice.reason = "--network " + wanted.text + ": " + choice.routes[0].master_addr;
  return choice;
}

// In routed clusters, and in clouds with /32 addresses, nodes share no network but may still reach each
// other.
Result<NetChoice> unshared_choice(const std::vector<NodeAddresses>& nodes) {
  const NodeAddresses& first = nodes[0];
  NetChoice choice;
  std::vector<const Usable*> own;
  for (const Usable& usable : first.usable) {
    if (usable.kind != InterfaceKind::kBridge) own.push_back(&usable);
  }
  if (worth_trying(first.connected)) {
    add_route(choice, route_to(first.given->connected, nodes));
    choice.reason = "no network is shared by all nodes; taking the address at which " + first.given->name +
                    " was reached";
  } else if (own.size() == 1) {
    choice.reason = "no network is shared by all nodes; taking the only address of " + first.given->name;
  } else {
    return Error{ErrorCode::kUnreachable,
                 "no network is shared by all nodes, and " + first.given->name +
                     " was reached by loopback only; name its network with --network" + inventory(nodes)};
  }
  for (const Usable* usable : own)
    add_route(choice, route_to(usable->interface->address, nodes));
  choice.reason += ": " + choice.routes[0].master_addr;
  return choice;
}

std::string shared_reason(const NetworkOption& option, std::size_t nodes) {
  std::string text = option.name + ", shared by all " + std::to_string(nodes) + " nodes";
  if (option.resolved == nodes) return text + ", where their names resolve to";
  if (option.resolved == 0) return text;
  return text + ", where " + std::to_string(option.resolved) + " of their names resolve to";
}

}  // namespace

NodeNetwork node_network(const JobSpec& spec, const remote::Host& host, const rendezvous::Hello& hello,
                         const std::string& connected) {
  const bool by_name = spec.launcher == LauncherKind::kSsh || spec.launcher == LauncherKind::kDaemon;
  const bool is_part = !by_name || !host.wrapper.empty() || !host.devices.empty();
  return {host.name, hello.machine_id, connected, hello.interfaces, is_part};
}

std::vector<std::size_t> repeated_machine(const std::vector<NodeNetwork>& nodes) {
  std::map<std::string_view, std::vector<std::size_t>> machines;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (!nodes[i].machine_id.empty() && !nodes[i].is_part) machines[nodes[i].machine_id].push_back(i);
  const auto at_loopback = [&](std::size_t i) {
    const std::string& where = nodes[i].connected.empty() ? nodes[i].name : nodes[i].connected;
    return is_loopback_host(where);
  };
  for (const auto& [machine, members] : machines)
    // Several nodes at loopback addresses of one machine are how tests and CI make a cluster.
    if (members.size() > 1 && !std::ranges::all_of(members, at_loopback)) return members;
  return {};
}

Result<> check_loopback(const NodeNetwork& node, bool needs_ipv4) {
  bool up = false;
  for (const Interface& interface : node.interfaces) {
    const auto address = parse_ip_address(interface.address);
    if (!interface.loopback || !interface.up || !address) continue;
    if (address->is_loopback() && !address->v6) return {};
    up = true;
  }
  if (up && !needs_ipv4) return {};
  return Error{ErrorCode::kSystem,
               up ? "lo has no address 127.0.0.1 on " + node.name + "; ip addr add 127.0.0.1/8 dev lo"
                  : "lo is down on " + node.name + "; ip link set lo up"};
}

Result<NetChoice> choose_network(const std::vector<NodeNetwork>& given, std::string_view wanted) {
  if (given.empty()) return Error{ErrorCode::kInternal, "a choice of network without nodes"};
  const bool one_machine = all_on_one_machine(given);
  for (const NodeNetwork& node : given) {
    // Before any choice: a job on a machine whose loopback is down waits for ever, whatever its network is.
    DDP_TRY(check_loopback(node, one_machine && wanted.empty()));
  }
  const std::vector<NodeAddresses> nodes = parsed(given);
  if (!wanted.empty()) {
    const auto parsed_wanted = DDP_TRY(parse_wanted(wanted));
    return wanted_choice(nodes, parsed_wanted, one_machine);
  }
  if (one_machine) return loopback_choice(nodes.size());

  const std::vector<NetworkOption> options = shared_networks(nodes);
  if (options.empty()) return unshared_choice(nodes);
  NetChoice choice;
  for (const NetworkOption& option : options)
    add_route(choice, route_of(option));
  choice.reason = shared_reason(options[0], nodes.size()) + ": " + choice.routes[0].master_addr;
  // The last resort behind all shared networks: the master reached node 0 at this address, so others may,
  // too.
  if (worth_trying(nodes[0].connected)) add_route(choice, route_to(given[0].connected, nodes));
  return choice;
}

std::vector<std::string> NetChoice::master_addrs() const {
  std::vector<std::string> addresses;
  for (const NetRoute& route : routes)
    addresses.push_back(route.master_addr);
  return addresses;
}

const NetRoute& NetChoice::route(std::string_view master_addr) const {
  for (const NetRoute& route : routes) {
    if (route.master_addr == master_addr) return route;
  }
  return routes.front();
}

std::string interface_of(const std::vector<Interface>& interfaces, std::string_view address) {
  const auto wanted = parse_ip_address(address);
  for (const Interface& interface : interfaces) {
    if (wanted && parse_ip_address(interface.address) == wanted) return interface.name;
  }
  return "";
}

constexpr std::size_t kMostNames = 4;

std::string network_text(const NetRoute& route,
                         const std::map<std::string, std::vector<std::string>>& interfaces) {
  std::string text = route.network.empty() ? "" : "network " + route.network + ": ";
  text += "MASTER_ADDR=" + route.master_addr;
  std::string list;
  if (interfaces.size() == 1) {
    list = interfaces.begin()->first;
  } else {
    for (const auto& [interface, nodes] : interfaces)
      list += (list.empty() ? "" : "; ") + (interface.empty() ? "unknown interface" : interface) + " on " +
              join_some(nodes, kMostNames);
  }
  return list.empty() ? text : text + " (" + list + ")";
}

std::vector<std::string> infiniband_warnings(const std::vector<NodeInfiniband>& nodes) {
  std::map<std::string, std::vector<std::string>> troubled;
  std::vector<std::string> without;
  bool any = false;
  for (const NodeInfiniband& node : nodes) {
    if (node.gpus == 0) continue;
    any = any || !node.adapters.empty();
    if (node.adapters.empty())
      without.push_back(node.name);
    else if (!node.trouble.empty())
      troubled[node.trouble].push_back(node.name);
  }
  std::vector<std::string> warnings;
  for (const auto& [trouble, names] : troubled)
    warnings.push_back("NCCL will use TCP sockets although InfiniBand exists: " + trouble + " (" +
                       join_some(names, kMostNames) + ")");
  if (any && !without.empty())
    warnings.push_back("no active InfiniBand port on " + join_some(without, kMostNames) +
                       ", but on the other nodes; NCCL needs it on all nodes: fix it, or set "
                       "NCCL_IB_DISABLE=1 on all nodes");
  return warnings;
}

std::vector<MasterAddress::AddressProbe> MasterAddress::begin(std::vector<std::string> candidates,
                                                              std::size_t nodes) {
  candidates_ = std::move(candidates);
  chosen_ = 0;
  asked_ = nodes - 1;
  cut_off_.assign(candidates_.size(), false);
  nodes_.assign(nodes, Node{});
  std::vector<AddressProbe> probes;
  for (std::size_t i = 0; i < nodes; ++i) {
    Node& node = nodes_[i];
    const bool asked = i != 0;
    node.known.assign(candidates_.size(), asked ? ProbeState::kNothing : ProbeState::kReached);
    if (!asked) continue;
    node.asked = true;
    node.last = candidates_.size();
    probes.push_back({i, candidates_});
  }
  return probes;
}

std::vector<MasterAddress::AddressProbe> MasterAddress::reached(std::size_t node,
                                                                const std::string& address) {
  return learn(node, index_of(address)) ? ask_again() : std::vector<AddressProbe>{};
}

std::vector<MasterAddress::AddressProbe> MasterAddress::failed(std::size_t node) {
  return learn(node, candidates_.size()) ? ask_again() : std::vector<AddressProbe>{};
}

/// Returns true when a node may have to be asked again.
bool MasterAddress::learn(std::size_t index, std::size_t first_reached) {
  Node& node = nodes_[index];
  if (!node.asked) return false;
  node.asked = false;
  --asked_;
  // A node tries its candidates in order, so all before the one that it reached have failed. Those behind are
  // unknown.
  for (std::size_t i = node.first; i < std::min(node.last, first_reached); ++i) {
    node.known[i] = ProbeState::kNot;
    cut_off_[i] = true;
  }
  if (first_reached < node.last) node.known[first_reached] = ProbeState::kReached;
  const std::size_t before = chosen_;
  // The choice only moves on and never back, so the probes end after one round per candidate at most.
  while (chosen_ < candidates_.size() && cut_off_[chosen_])
    ++chosen_;
  return !is_exhausted() && (chosen_ != before || node.known[chosen_] == ProbeState::kNothing);
}

/// Asks for the chosen candidate only, since the others matter only if it fails.
std::vector<MasterAddress::AddressProbe> MasterAddress::ask_again() {
  std::vector<AddressProbe> probes;
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.asked || node.known[chosen_] != ProbeState::kNothing) continue;
    node.asked = true;
    ++asked_;
    node.first = chosen_;
    node.last = chosen_ + 1;
    probes.push_back({i, {candidates_[chosen_]}});
  }
  return probes;
}

bool MasterAddress::settled() const {
  // A node whose answer is known reaches the chosen candidate; otherwise it would be asked again.
  return !is_exhausted() && asked_ == 0;
}

const std::string& MasterAddress::chosen() const {
  return candidates_[std::min(chosen_, candidates_.size() - 1)];
}

std::size_t MasterAddress::cut_off(const std::string& candidate) const {
  const std::vector<std::size_t> nodes = all_cut_off(candidate);
  return nodes.empty() ? 0 : nodes.front();
}

std::vector<std::size_t> MasterAddress::all_cut_off(const std::string& candidate) const {
  const std::size_t index = index_of(candidate);
  std::vector<std::size_t> nodes;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].known[index] == ProbeState::kNot) nodes.push_back(i);
  }
  return nodes;
}

std::size_t MasterAddress::index_of(const std::string& candidate) const {
  return static_cast<std::size_t>(std::find(candidates_.begin(), candidates_.end(), candidate) -
                                  candidates_.begin());
}

}  // namespace ddp::launcher
