#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/ip_address.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {

enum class ListenScope : std::uint8_t {
  kAllInterfaces,  ///< both families, on one socket
  kLoopback,       ///< 127.0.0.1, and ::1 if the host has IPv6
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

/// Returns whether this process could listen on the port now.
bool is_port_free(ListenScope scope, std::uint16_t port);

/// An inclusive range of ports.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Listens on a port of `range`. If no range is given, uses one of ports_beside(), which no outgoing
/// connection can take. Prefers a port whose three successors are free too, since programs use
/// MASTER_PORT + 1 … + 3 without asking.
Result<TcpListener> listen_tcp_picked(ListenScope scope, std::optional<PortRange> range);

/// Returns the ports for outgoing connections (net.ipv4.ip_local_port_range); 32768–60999 when unreadable.
PortRange ephemeral_ports();
/// Returns the ports from 10000 up outside `ephemeral`, without those that others find by their number.
std::vector<PortRange> ports_beside(PortRange ephemeral);

/// The peers that a port of the job accepts: the addresses of its nodes, and networks named by the user. It
/// keeps out stray connections and scanners, but is not authentication. A value; no I/O.
class AddressFilter {
 public:
  /// Admits what parse_ip_network reads: an address or a network. ::/0 admits IPv4, too.
  Result<> allow_network(std::string_view text);
  /// Returns whether the address is admitted; true for all if nothing was ever allowed (no filter).
  bool allows(const asio::ip::address& address) const;
  /// Returns true for the first connection of a refused address, of a limited number.
  bool notes_refusal(const asio::ip::address& address);
  bool empty() const { return networks_.empty() && addresses_.empty(); }

 private:
  std::set<IpAddress> addresses_;  // may have 10,000 nodes, and is checked for each of their workers
  std::vector<IpNetwork> networks_;
  std::set<asio::ip::address> refused_;
};

/// Accepts connections. A bad peer or a lack of descriptors never ends the loop. All calls and callbacks on
/// the executor's thread; a callback may call stop().
class AcceptLoop {
 public:
  /// Gets a connection, non-blocking and close-on-exec, and its peer's address without v4 mapping.
  using OnConnection = std::function<void(UniqueFd, const asio::ip::address&)>;

  static Result<std::shared_ptr<AcceptLoop>> start(asio::any_io_executor executor, TcpListener listener,
                                                   OnConnection on_connection);

  /// Call it when the process has closed a descriptor: accepting resumes at once if it rests.
  void descriptor_freed() { retry_.cancel(); }
  /// Leaves new connections in the kernel's queue until `resume`.
  void pause() { paused_ = true; }
  void resume();
  /// Closes the port. Safe to call twice; no callback runs afterwards.
  void stop();

 private:
  AcceptLoop(const asio::any_io_executor& executor, OnConnection on_connection)
      : on_connection_(std::move(on_connection)),
        retry_(executor),
        resumed_(executor, std::chrono::steady_clock::time_point::max()) {}
  static Awaitable<> accept_all(std::shared_ptr<AcceptLoop> self, std::size_t index);
  bool accept_some(std::size_t index);

  OnConnection on_connection_;
  std::vector<asio::posix::stream_descriptor> listeners_;  ///< none: stopped
  asio::steady_timer retry_;
  asio::steady_timer resumed_;  ///< never expires; cancelled by resume() and stop()
  bool paused_ = false;
};

}  // namespace ddp::rendezvous
