#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {

enum class ListenScope : std::uint8_t {
  kAllInterfaces,  ///< both families, on one socket
  kLoopback,       ///< 127.0.0.1, and ::1 if the host has IPv6
};

/// An inclusive range of ports.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Listening sockets of one port: non-blocking, close-on-exec.
struct TcpListener {
  std::vector<UniqueFd> fds;
  std::uint16_t port = 0;
};

/// Listens on exactly this port; for 0 the kernel chooses an ephemeral port (for tests). kSystem with sys ==
/// EADDRINUSE when the port is taken.
Result<TcpListener> listen_tcp(ListenScope scope, std::uint16_t port);

/// Listens on one numeric address of this machine, of either family. kUsage: the text is no numeric address.
Result<TcpListener> listen_tcp_at(const std::string& address, std::uint16_t port);

/// Listens on a port of `range`. If no range is given, uses a port outside the ephemeral range, which no
/// outgoing connection can take. Prefers a port whose three successors are free too, since programs use
/// MASTER_PORT + 1 … + 3 without asking.
Result<TcpListener> listen_tcp_picked(ListenScope scope, std::optional<PortRange> range);

/// Returns the ports for outgoing connections (net.ipv4.ip_local_port_range); 32768–60999 when unreadable.
PortRange ephemeral_ports();
/// Returns the unprivileged ports outside `ephemeral`; empty when it covers all of them.
std::vector<PortRange> ports_beside(PortRange ephemeral);

}  // namespace ddp::rendezvous
