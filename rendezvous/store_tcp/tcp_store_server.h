#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/store/key_store.h"

namespace ddp::rendezvous {

struct TcpStoreOptions {
  ListenScope scope = ListenScope::kAllInterfaces;
  /// Unset: picked outside the ephemeral range, or inside `range`. 0: the kernel's choice, for tests.
  std::optional<std::uint16_t> port;
  std::optional<PortRange> range;
  /// Addresses that may connect; empty: all.
  AddressFilter filter;
  /// A CHECK for this key alone finds it, although it is not stored: that proves the identity of the store.
  /// Empty: none.
  std::string token;
  std::size_t max_bytes = KeyStore::kDefaultMaxBytes;
  /// Limit of the unfinished requests, unread replies and waits of all connections. Above it the connection
  /// ends that holds the most for the longest time.
  std::size_t max_buffers = std::size_t{1} << 30;
  /// Limit of open connections. A further one takes the place of the oldest that has sent no request, else it
  /// is closed unread. 0: half of this process's descriptor limit, so that a peer with endless connections
  /// leaves the descriptors that workers need.
  std::size_t max_connections = 0;
  /// A connection was closed unread because of the filter; called once per address.
  std::function<void(const asio::ip::address&)> on_refused;
  /// A connection was closed because of its bytes: another protocol, over a limit, store full.
  std::function<void(const asio::ip::address&, const Error&)> on_broken;
};

/// Serves the TCPStore protocol (docs/developers/store_protocol.md) on an executor's thread. All calls must
/// come from that thread, and all callbacks run on it. Each attempt opens its own server on a new port and
/// stops the previous one, so that no key of an old attempt can be read. It must live until the last worker
/// of the attempt has ended, since PyTorch's watchdog threads use the store until then. Silent connections
/// are kept. No connection keeps others waiting: after 256 requests or 1 MiB of replies the others have their
/// turn. A connection is read even while it waits, but not while it does not take its replies. If
/// descriptors run out, the server accepts again once some are free.
class TcpStoreServer {
 public:
  /// Listens at once. Error: kSystem (EADDRINUSE …) with the port in the text.
  static Result<TcpStoreServer> open(asio::any_io_executor executor, TcpStoreOptions options);

  TcpStoreServer(TcpStoreServer&&) noexcept = default;
  TcpStoreServer& operator=(TcpStoreServer&& other) noexcept;
  /// Calls stop().
  ~TcpStoreServer();

  std::uint16_t port() const;
  /// Closes the port and all connections; no callback runs afterwards. Safe to call twice.
  void stop();

 private:
  class Loop;
  explicit TcpStoreServer(std::shared_ptr<Loop> loop);

  std::shared_ptr<Loop> loop_;
};

}  // namespace ddp::rendezvous
