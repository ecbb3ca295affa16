#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {

/// A blocking client of PyTorch's TCPStore protocol (the numbering of torch ≥ 2.2): the store that node 0's
/// agent serves, and equally one served by PyTorch itself. One connection, one thread. Movable; the
/// destructor closes.
///
/// Every call has its own deadline. kTimeout from wait() and get() means that a key is not there yet: the
/// pending WAIT has been cancelled and the client is usable. After any other Error (and a kTimeout of the
/// other calls, where the server owes a reply) it is not: each later call fails at once with kLinkLost. A
/// signal never ends a call early. Errors name the operation, the key and the store's address.
class TcpStoreClient {
 public:
  using Bytes = std::string;
  using Duration = std::chrono::milliseconds;

  /// Connects and validates, retrying until `timeout` while the server is not up yet. `host` is a name or an
  /// address. `timeout` is also the deadline of later calls that take none. kUnreachable when no connection
  /// came about. `interrupt`: a descriptor that ends every wait with kCancelled when it is readable, or -1;
  /// not owned.
  static Result<TcpStoreClient> connect(const std::string& host, std::uint16_t port, Duration timeout,
                                        int interrupt = -1);

  /// No reply exists: success means that the bytes are on their way, in order before whatever this client
  /// asks next.
  Result<> set(std::string_view key, std::string_view value);
  /// Waits for the key, then reads it.
  Result<Bytes> get(std::string_view key, Duration timeout);
  /// Adds to the decimal text under `key` (missing = 0); gives the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, Duration timeout);
  /// Waits until all keys exist.
  Result<> wait(std::span<const std::string> keys, Duration timeout);
  Result<bool> check(std::span<const std::string> keys, Duration timeout);
  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` empty; gives the
  /// value now
  /// (`expected` itself when the key is missing and nothing was stored).
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                            Duration timeout);
  /// True when the key existed.
  Result<bool> delete_key(std::string_view key, Duration timeout);
  Result<std::int64_t> num_keys(Duration timeout);

  /// Appends to the value (missing = empty). As set(): no reply.
  Result<> append(std::string_view key, std::string_view value);
  /// Waits for all keys, then reads them in the order asked.
  Result<std::vector<Bytes>> multi_get(std::span<const std::string> keys, Duration timeout);
  /// As set(), for several keys in one message.
  Result<> multi_set(std::span<const std::pair<std::string, std::string>> entries);

  /// Our end's address as the server sees it, without NAT: "10.0.0.7".
  Result<std::string> local_address() const;
  /// "host:port" as given to connect().
  const std::string& peer() const { return peer_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  TcpStoreClient(UniqueFd fd, std::string peer, Duration timeout, int interrupt);

  Error broken(Error error);
  Result<> send(std::string_view bytes, Deadline deadline, std::string_view what);
  Result<> receive(char* into, std::size_t size, Deadline deadline, std::string_view what);
  Result<> poll_for(short events, Deadline deadline, std::string_view what);
  Result<> roundtrip(std::string_view request, char* reply, std::size_t size, Deadline deadline,
                     std::string_view what);
  Result<std::int64_t> ask_number(std::string_view request, Deadline deadline, std::string_view what);
  Result<Bytes> receive_bytes(Deadline deadline, std::string_view what);
  Result<> wait_until(std::span<const std::string_view> keys, Deadline deadline, std::string_view what);
  Result<> cancel_wait(std::string_view what);

  UniqueFd fd_;
  std::string peer_;
  Duration timeout_;  // of calls that take none
  int interrupt_;
  std::optional<std::string> broken_;  // why the connection is useless
};

}  // namespace ddp::rendezvous
