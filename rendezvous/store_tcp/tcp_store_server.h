#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/link/address_filter.h"
#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/store/key_store.h"

namespace ddp::rendezvous {

struct TcpStoreOptions {
  ListenScope scope = ListenScope::kAllInterfaces;
  /// Unset: picked outside the ephemeral range, or inside `range`. 0: the kernel's choice, for tests.
  std::optional<std::uint16_t> port;
  std::optional<PortRange> range;
  /// Who may connect; empty: anyone. More can be admitted later: TcpStoreServer::allow().
  AddressFilter filter;
  /// A CHECK for this key alone finds it, though it is no key: the proof that it is this store. Empty: none.
  std::string token;
  std::size_t max_bytes = KeyStore::kDefaultMaxBytes;
  /// Connections open at once; a further one is closed unread. 0: half of the descriptors that we may have,
  /// so that nobody who connects and connects takes those that workers need.
  std::size_t max_connections = 0;
  /// A connection was closed unread because of the filter; called once per address.
  std::function<void(const asio::ip::address&)> on_refused;
  /// A connection was closed because of what it sent: not the protocol, over a limit, store full.
  std::function<void(const asio::ip::address&, const Error&)> on_broken;
};

/// A moment of the server, for the report of a job that does not start.
struct TcpStoreStats {
  std::size_t connections = 0;  ///< open now; a client of torch ≤ 2.0 has two, one of them silent for ever
  std::size_t arrived = 0;      ///< ever: connections that have used a key (a probe does not count)
  std::size_t waiting = 0;      ///< with a pending WAIT or BARRIER
  std::size_t refused = 0;      ///< ever, by the filter
  std::size_t keys = 0;
  std::size_t bytes = 0;  ///< held by keys, values and queues
};

/// Serves the TCPStore protocol (docs/store.md) on an executor's thread, which all calls must come from and
/// all callbacks run on. One per attempt: a new attempt opens a new one on a new port and stops the old, so
/// that nothing of the old attempt can be read. Lives until the last worker of the attempt has ended:
/// PyTorch's watchdog threads use the store to their end. Silent connections are kept; a wait never keeps a
/// connection from being read; a peer that does not read its replies is not read either. Out of descriptors,
/// it accepts again when some are free.
class TcpStoreServer {
 public:
  /// Listens at once. kSystem (EADDRINUSE …) with the port in the text.
  static Result<TcpStoreServer> open(asio::any_io_executor executor, TcpStoreOptions options);

  TcpStoreServer(TcpStoreServer&&) noexcept = default;
  TcpStoreServer& operator=(TcpStoreServer&& other) noexcept;
  /// Stops.
  ~TcpStoreServer();

  std::uint16_t port() const;
  /// Admits one more address, such as one that a node was seen to come from.
  void allow(const asio::ip::address& address);
  /// Serves a connection accepted elsewhere (--store shared), whose first bytes are `received`.
  void adopt(UniqueFd socket, std::string received);
  /// Closes the port and all connections; no callback runs after it. Safe to call twice.
  void stop();

  TcpStoreStats stats() const;
  /// Arrived connections (see above) by address, for "no rank of node X has come".
  std::vector<std::pair<asio::ip::address, std::size_t>> arrived_from() const;
  /// The keys waited for, most waiters first.
  std::vector<AwaitedKey> awaited(std::size_t limit) const;

 private:
  class Loop;
  explicit TcpStoreServer(std::shared_ptr<Loop> loop);

  std::shared_ptr<Loop> loop_;
};

}  // namespace ddp::rendezvous
