#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/asio.h"
#include "launcher/control/control_socket.h"

namespace ddp::launcher {

/// The answers of the owner of a job to its control socket. Called on the loop thread; must not wait.
struct ControlHandlers {
  std::function<std::string()> status;  ///< JSON
  std::function<void(bool now)> stop;   ///< `now`: without a grace period
};

/// Serves a job's control socket: HTTP/1.1, one request for each connection (docs/users/operate.md). A client
/// that is slow, or that sends no request, only holds its own connection for a few seconds. At most
/// kMostClients are served at once; further ones wait. Loop thread.
class ControlServer {
 public:
  static constexpr std::size_t kMostClients = 16;

  /// Accepts clients of `uid` and of root.
  ControlServer(asio::io_context& loop, ControlSocket socket, ControlHandlers handlers, uid_t uid);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// Closes the socket and all connections, so that no work is left on the loop.
  void close();

 private:
  struct State;
  ControlSocket socket_;  ///< only its file; the acceptor owns the descriptor
  std::shared_ptr<State> state_;
};

}  // namespace ddp::launcher
