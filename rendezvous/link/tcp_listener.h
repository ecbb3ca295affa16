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
  kLoopback,       ///< 127.0.0.1, and ::1 where there is IPv6
};

/// Ports first … last, both included.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Listening sockets of one port: non-blocking, close-on-exec.
struct TcpListener {
  std::vector<UniqueFd> fds;
  std::uint16_t port = 0;
};

/// Listens on just this port; 0 leaves the choice to the kernel (an ephemeral one: for tests). kSystem with
/// sys == EADDRINUSE when it is taken.
Result<TcpListener> listen_tcp(ListenScope scope, std::uint16_t port);

/// The same on one address of this machine, numeric, of either family. kUsage: it is none.
Result<TcpListener> listen_tcp_at(const std::string& address, std::uint16_t port);

/// Listens on a port of `range`, or without one on a port outside the ephemeral range, which no outgoing
/// connection can take. Prefers a port whose three successors are free too: programs use MASTER_PORT + 1 … +
/// 3 unasked.
Result<TcpListener> listen_tcp_picked(ListenScope scope, std::optional<PortRange> range);

/// A port as listen_tcp_picked() would choose, for someone else to bind (--store worker). It may be lost
/// meanwhile.
Result<std::uint16_t> pick_free_port(ListenScope scope, std::optional<PortRange> range);

/// What the system gives to outgoing connections (net.ipv4.ip_local_port_range); 32768–60999 when unreadable.
PortRange ephemeral_ports();
/// The unprivileged ports to pick from beside `ephemeral`; empty when it covers all.
std::vector<PortRange> ports_beside(PortRange ephemeral);

}  // namespace ddp::rendezvous
