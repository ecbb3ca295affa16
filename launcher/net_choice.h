#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rendezvous/message.h"

namespace ddp::launcher {

/// One node as the choice sees it. Addresses are numeric.
struct NodeNetwork {
  std::string name;        ///< as the hostfile wrote it, for messages
  std::string machine_id;  ///< NodeFacts::machine_id
  std::string
      connected;  ///< address its name resolved to, where it was reached; empty: unknown. May be loopback
  std::vector<rendezvous::Interface> interfaces;
};

struct NetChoice {
  std::vector<std::string>
      master_addrs;  ///< candidates for MASTER_ADDR, best first; never empty. Agents probe them
  std::vector<std::string> interfaces;  ///< per node, in input order; empty text: not clear, set no IFNAME
  bool one_machine = false;             ///< everything is on one machine: 127.0.0.1 and lo
  std::string reason;                   ///< in words, for the log and the plan
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
/// Never loopback towards another machine. Errors (kRefused for a node that lacks `wanted`, kUsage for a bad
/// CIDR, kUnreachable when nothing fits) list what each node has.
Result<NetChoice> choose_network(const std::vector<NodeNetwork>& nodes, std::string_view wanted);

}  // namespace ddp::launcher
