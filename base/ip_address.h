#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp {

/// An IP address without a zone, which is valid on one machine only. IPv4 is ordered before IPv6.
struct IpAddress {
  bool v6 = false;
  std::array<std::uint8_t, 16> bytes{};  ///< of IPv4 the first four

  unsigned bits() const { return v6 ? 128 : 32; }
  bool is_loopback() const;
  bool is_link_local() const;
  auto operator<=>(const IpAddress&) const = default;
};

/// Reads a numeric address and ignores its zone (fe80::1%eth0). A mapped address (::ffff:10.0.0.7, RFC 4291,
/// section 2.5.5.2) is the IPv4 address: so a socket for both families shows its IPv4 peers.
std::optional<IpAddress> parse_ip_address(std::string_view text);

/// Returns whether `host` can only be this machine: "localhost", 127.x.y.z, ::1. It resolves no name.
bool is_loopback_host(std::string_view host);

struct IpNetwork {
  IpAddress base;       ///< zero behind the prefix
  unsigned prefix = 0;  ///< bits

  bool contains(const IpAddress& address) const;
  /// "10.1.0.0/16"
  std::string text() const;
};

/// Returns the network of `address`. A prefix longer than the address is that address.
IpNetwork network_of(IpAddress address, unsigned prefix);

/// Reads 10.1.0.0/16, fd00::/8 or an address, which is a network of one. A mapped network
/// (::ffff:10.1.0.0/112) is the IPv4 network. kUsage: the text is none, or a mapped network with all of IPv4.
Result<IpNetwork> parse_ip_network(std::string_view text);

}  // namespace ddp
