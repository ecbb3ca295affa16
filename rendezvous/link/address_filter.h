#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/result.h"

namespace ddp::rendezvous {

/// ::ffff:10.0.0.7 is 10.0.0.7: what a socket that serves both families shows for an IPv4 peer.
asio::ip::address without_mapping(const asio::ip::address& address);

/// The address in what accept() or getpeername() gave, without mapping; unspecified for another family.
asio::ip::address address_of(const sockaddr_storage& storage);

/// Whom a port of the job talks to: the addresses of its nodes, and networks the user named. A fence against
/// strays and scanners, not authentication. A value; no I/O.
class AddressFilter {
 public:
  /// Admits one address, mapped or not.
  void allow(const asio::ip::address& address);
  /// Admits "10.1.0.0/16", "fd00::/8" or a single address; a zone ("fe80::1%eth0") does not count. kUsage
  /// when the text is neither.
  Result<> allow_network(std::string_view text);
  /// True also when nothing was ever allowed: no filter.
  bool allows(const asio::ip::address& address) const;
  bool empty() const { return networks_.empty() && addresses_.empty(); }

 private:
  using AddressBytes = std::array<std::uint8_t, 16>;  // IPv4 as mapped IPv6
  struct AddressRange {
    AddressBytes bytes;
    unsigned prefix;  // bits, of 128
  };

  std::set<AddressBytes> addresses_;  // of 10,000 nodes, say, asked for each of their workers
  std::vector<AddressRange> networks_;
};

}  // namespace ddp::rendezvous
