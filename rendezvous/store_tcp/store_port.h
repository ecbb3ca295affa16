#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "rendezvous/link/tcp_listener.h"

// The port of a store: which one it takes, and which peers may connect.

namespace ddp::rendezvous {

/// The peers that a port of the job accepts: the addresses of its nodes, and networks named by the user. It
/// keeps out stray connections and scanners, but is not authentication. A value; no I/O.
class AddressFilter {
 public:
  /// Admits one address, mapped or not.
  void allow(const asio::ip::address& address);
  /// Admits "10.1.0.0/16", "fd00::/8" or a single address; a zone ("fe80::1%eth0") is ignored. kUsage when
  /// the text is neither.
  Result<> allow_network(std::string_view text);
  /// Returns whether the address is admitted; true for all if nothing was ever allowed (no filter).
  bool allows(const asio::ip::address& address) const;
  /// Returns true for the first connection of a refused address, of a limited number.
  bool notes_refusal(const asio::ip::address& address);
  bool empty() const { return networks_.empty() && addresses_.empty(); }

 private:
  using AddressBytes = std::array<std::uint8_t, 16>;  // IPv4 as mapped IPv6
  struct AddressRange {
    AddressBytes bytes;
    unsigned prefix;  // bits, of 128
  };

  std::set<AddressBytes> addresses_;  // may have 10,000 nodes, and is checked for each of their workers
  std::vector<AddressRange> networks_;
  std::set<asio::ip::address> refused_;
};

/// An inclusive range of ports.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Listens on a port of `range`. If no range is given, uses a port outside the ephemeral range, which no
/// outgoing connection can take. Prefers a port whose three successors are free too, since programs use
/// MASTER_PORT + 1 … + 3 without asking.
Result<TcpListener> listen_tcp_picked(ListenScope scope, std::optional<PortRange> range);

/// Returns the ports for outgoing connections (net.ipv4.ip_local_port_range); 32768–60999 when unreadable.
PortRange ephemeral_ports();
/// Returns the unprivileged ports outside `ephemeral`; empty when it covers all of them.
std::vector<PortRange> ports_beside(PortRange ephemeral);

}  // namespace ddp::rendezvous
