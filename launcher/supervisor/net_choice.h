#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// One node as the choice sees it. Addresses are numeric.
struct NodeNetwork {
  std::string name;        ///< as the hostfile wrote it, for messages
  std::string machine_id;  ///< NodeFacts::machine_id
  std::string
      connected;  ///< address its name resolved to, where it was reached; empty: unknown. May be loopback
  std::vector<rendezvous::Interface> interfaces;
};

/// One way for all ranks to meet.
struct NetRoute {
  std::string master_addr;
  std::string network;  ///< "10.1.0.0/16", or what --network names; empty: no network that all share
  std::vector<std::string> interfaces;  ///< per node, in input order; empty text: not clear, set no IFNAME
  /// Of each node on that interface, as far as it is known: empty text, or the list is empty.
  std::vector<std::string> addresses{};
};

struct NetChoice {
  std::vector<NetRoute>
      routes;                ///< best first; never empty. Agents probe their addresses, no two of them equal
  bool one_machine = false;  ///< everything is on one machine and meets at 127.0.0.1 on lo
  std::string reason;        ///< for the first way, in words, for the log and the plan

  std::vector<std::string> master_addrs() const;
  /// `master_addr` is one of the ways'.
  const NetRoute& route(std::string_view master_addr) const;
};

/// Which network the ranks use. `nodes[0]` holds rank 0. `wanted` is --network: a CIDR ("10.1.0.0/16"), an
/// interface name, or empty. Rules, in this order:
///   one machine (and no `wanted`)       127.0.0.1 and lo
///   `wanted`                            every node must have an address on it
///   a network that all nodes share      the one that most hostfile names resolve to first; IPv4 before IPv6;
///   a VPN last.
///                                       Bridges of containers and virtual machines count only where a node
///                                       was reached through one. Link-local addresses, interfaces that are
///                                       down, and a network on which two machines have the same address
///                                       never count
///   none shared                         the address node 0 was reached at, or its only one; the reason says
///   so
/// Every network or address of node 0 that comes into question is a way, so that one which a firewall closes
/// is found out by the probes and the next one taken; with `wanted` only those that it names. Never loopback
/// towards another machine. Errors (kRefused for a node that lacks `wanted`, kUsage for a bad CIDR,
/// kUnreachable when nothing fits) list what each node has.
Result<NetChoice> choose_network(const std::vector<NodeNetwork>& nodes, std::string_view wanted);

/// Name of the interface that has `address`; empty: none of these. Both are numeric, IPv4 perhaps mapped.
std::string interface_of(const std::vector<rendezvous::Interface>& interfaces, std::string_view address);

}  // namespace ddp::launcher
