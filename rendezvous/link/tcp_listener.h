#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
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
  std::vector<asio::posix::stream_descriptor> listeners_;
  asio::steady_timer retry_;
  asio::steady_timer resumed_;  ///< never expires; cancelled by resume() and stop()
  bool paused_ = false;
  bool stopped_ = false;
};

}  // namespace ddp::rendezvous
