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

/// Turns ::ffff:10.0.0.7 into 10.0.0.7. A socket that serves both families shows IPv4 peers in that form.
asio::ip::address without_mapping(const asio::ip::address& address);

/// Returns the address that accept() or getpeername() gave, without mapping; unspecified for other families.
asio::ip::address address_of(const sockaddr_storage& storage);

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
  bool empty() const { return networks_.empty() && addresses_.empty(); }

 private:
  using AddressBytes = std::array<std::uint8_t, 16>;  // IPv4 as mapped IPv6
  struct AddressRange {
    AddressBytes bytes;
    unsigned prefix;  // bits, of 128
  };

  std::set<AddressBytes> addresses_;  // may have 10,000 nodes, and is checked for each of their workers
  std::vector<AddressRange> networks_;
};

}  // namespace ddp::rendezvous
