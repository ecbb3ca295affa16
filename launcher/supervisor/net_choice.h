#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The network facts of one node. Addresses are numeric.
struct NodeNetwork {
  std::string name;        ///< as in the hostfile, for messages
  std::string machine_id;  ///< NodeFacts::machine_id
  std::string connected;   ///< resolved address at which it was reached, may be loopback; empty: unknown
  std::vector<rendezvous::Interface> interfaces;
  bool is_part = false;  ///< the user wants several nodes on one machine: a wrapper, devices, per-node mode
};

/// The facts of the node of `host`, reached at `connected`.
NodeNetwork node_network(const JobSpec& spec, const remote::Host& host, const rendezvous::Hello& hello,
                         const std::string& connected);

/// Returns nodes, in input order, that are one machine under several names, or nothing. Does not count nodes
/// that are parts of a machine, and machines that were reached at loopback addresses only, as in CI.
std::vector<std::size_t> repeated_machine(const std::vector<NodeNetwork>& nodes);

/// One address and network at which all ranks can meet.
struct NetRoute {
  std::string master_addr;
  std::string network;                  ///< "10.1.0.0/16", or the value of --network; empty: none is shared
  std::vector<std::string> interfaces;  ///< per node, in input order; empty text: unknown, set no IFNAME
  /// Address of each node on that interface; empty text: unknown. The list may be empty.
  std::vector<std::string> addresses{};
};

struct NetChoice {
  std::vector<NetRoute> routes;  ///< best first, never empty, addresses distinct; agents probe them
  bool one_machine = false;      ///< all nodes are on one machine and meet at 127.0.0.1 on lo
  std::string reason;            ///< of the first route, for the log and the plan

  std::vector<std::string> master_addrs() const;
  /// `master_addr` is the address of one of the routes.
  const NetRoute& route(std::string_view master_addr) const;
};

/// Returns an error (kSystem) with advice if `node`'s loopback is down, through which a machine reaches its
/// own addresses, too, or if `needs_ipv4` and it lacks 127.0.0.1.
Result<> check_loopback(const NodeNetwork& node, bool needs_ipv4);

/// Chooses the network of the ranks. `nodes[0]` holds rank 0. `wanted` is --network: a CIDR ("10.1.0.0/16"),
/// an interface name, or empty. Rules, in this order:
///   one machine (and no `wanted`)       127.0.0.1 and lo
///   `wanted`                            every node must have an address on it
///   a network that all nodes share      the one that most hostfile names resolve to first; IPv4 before IPv6;
///                                       a VPN last.
///                                       Bridges of containers and virtual machines count only where a node
///                                       was reached through one. Link-local addresses, interfaces that are
///                                       down, and a network on which two machines have the same address
///                                       never count
///   none shared                         the address node 0 was reached at, or its only one; the reason says
///                                       so
/// Every candidate network or address of node 0 becomes a route (with `wanted`, only those that match it). If
/// a firewall closes one, the probes detect this and the next one is used. A route to another machine never
/// uses loopback. Errors (kUsage for a bad CIDR, and for a node that lacks `wanted`, kUnreachable when
/// nothing fits) list the addresses of each node. Also fails as check_loopback does.
Result<NetChoice> choose_network(const std::vector<NodeNetwork>& nodes, std::string_view wanted);

/// Returns the name of the interface that has `address`; empty: none has it. Addresses are numeric; IPv4 may
/// be mapped.
std::string interface_of(const std::vector<rendezvous::Interface>& interfaces, std::string_view address);

/// InfiniBand facts that one node reports.
struct NodeInfiniband {
  std::string name;
  std::uint32_t gpus = 0;
  std::vector<std::string> adapters;  ///< with an active port
  std::string trouble;                ///< why NCCL would not use them; empty: NCCL would
};

/// Returns a text for the user: "network 10.1.0.0/16: MASTER_ADDR=10.1.0.1 (eth0 on a, b; ib1 on c)".
/// `interfaces` maps interface names to nodes; "" holds the nodes whose interface is unknown.
std::string network_text(const NetRoute& route,
                         const std::map<std::string, std::vector<std::string>>& interfaces);

/// Returns one line per reason for which NCCL would use TCP sockets although InfiniBand exists. Returns no
/// lines when no node has both a GPU and an adapter.
std::vector<std::string> infiniband_warnings(const std::vector<NodeInfiniband>& nodes);

/// Chooses the address of node 0 that all ranks get as MASTER_ADDR (sans-IO): the most preferred candidate
/// that every other node can reach. Each node reports the first address that it reaches, which rules out the
/// earlier ones for all nodes. Nodes that have not tried the remaining candidate are then asked for it.
class MasterAddress {
 public:
  /// Asks one node which of these addresses reaches the store. A node has at most one open probe.
  struct AddressProbe {
    std::size_t node;
    std::vector<std::string> addresses;  ///< in order of preference
  };

  /// Starts over with `candidates` (never empty, no two equal) for `nodes` nodes.
  std::vector<AddressProbe> begin(std::vector<std::string> candidates, std::size_t nodes);
  /// `node` reached the store at `address`, one of the probed addresses, and at none before it. Returns the
  /// nodes that have to be asked again.
  std::vector<AddressProbe> reached(std::size_t node, const std::string& address);
  /// `node` reached the store at none of the probed addresses.
  std::vector<AddressProbe> failed(std::size_t node);

  /// Every node reaches `chosen`.
  bool settled() const;
  /// No candidate is reached by all nodes, and no node is asked any more.
  bool is_exhausted() const { return chosen_ == candidates_.size(); }
  /// No answer of `node` is pending.
  bool reaches(std::size_t node) const { return !nodes_[node].asked; }
  /// Returns the best candidate that may still work, or the last one when all are ruled out.
  const std::string& chosen() const;
  /// Returns a node that does not reach `candidate`; 0: none is known. `candidate` must be one of those given
  /// to begin, here and below.
  std::size_t cut_off(const std::string& candidate) const;
  /// Returns all nodes that do not reach `candidate`, ascending.
  std::vector<std::size_t> all_cut_off(const std::string& candidate) const;

 private:
  enum class ProbeState : std::uint8_t { kNothing, kReached, kNot };
  struct Node {
    bool asked = false;
    std::size_t first = 0;  ///< candidates in its probe: [first, last)
    std::size_t last = 0;
    std::vector<ProbeState> known;
  };

  std::size_t index_of(const std::string& candidate) const;
  bool learn(std::size_t node, std::size_t first_reached);
  std::vector<AddressProbe> ask_again();

  std::vector<std::string> candidates_;
  std::vector<Node> nodes_;    ///< the first one is node 0, which is never asked
  std::vector<bool> cut_off_;  ///< by candidate: true if some node does not reach it
  std::size_t asked_ = 0;      ///< number of nodes whose answer is pending
  std::size_t chosen_ = 0;
};

}  // namespace ddp::launcher
