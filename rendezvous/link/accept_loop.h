#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/link/address_filter.h"
#include "rendezvous/link/tcp_listener.h"

namespace ddp::rendezvous {

/// Accepts connections from the addresses that a filter admits. A bad peer or a lack of descriptors never
/// ends the loop. All calls and callbacks on the executor's thread; a callback may call stop().
class AcceptLoop : public std::enable_shared_from_this<AcceptLoop> {
 public:
  struct Callbacks {
    /// Gets a connection, non-blocking and close-on-exec, and its peer's address without v4 mapping.
    std::function<void(UniqueFd, const asio::ip::address&)> on_connection;
    /// Called once per address that the filter refused. May be empty.
    std::function<void(const asio::ip::address&)> on_refused;
  };

  static Result<std::shared_ptr<AcceptLoop>> start(asio::any_io_executor executor, TcpListener listener,
                                                   AddressFilter filter, Callbacks callbacks);

  /// Call it when the process has closed a descriptor: accepting resumes at once if it rests.
  void descriptor_freed();
  /// Leaves new connections in the kernel's queue until `go_on`.
  void pause() { paused_ = true; }
  void go_on();
  /// Closes the port. Safe to call twice; no callback runs afterwards.
  void stop();

 private:
  AcceptLoop(asio::any_io_executor executor, AddressFilter filter, Callbacks callbacks);
  void await(std::size_t index);
  void accept_some(std::size_t index);
  void refuse(const asio::ip::address& address);
  void rest();
  void resume();
  void await_all();

  asio::any_io_executor executor_;
  AddressFilter filter_;
  Callbacks callbacks_;
  std::vector<asio::posix::stream_descriptor> listeners_;
  asio::steady_timer retry_;
  bool resting_ = false;
  bool paused_ = false;
  bool stopped_ = false;
  std::set<asio::ip::address> refused_from_;
};

}  // namespace ddp::rendezvous
