#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {

/// A blocking client of PyTorch's TCPStore protocol (the numbering of torch ≥ 2.2). It works with the store
/// of node 0's agent and with one that PyTorch itself serves. One connection, one thread. Movable; the
/// destructor closes.
///
/// Every call has its own deadline. kTimeout from get() means that the key does not exist yet: the pending
/// WAIT has been cancelled, and the client stays usable. After any other Error (and after kTimeout of the
/// other calls, where the server owes a reply) each later call fails at once with kLinkLost. A signal never
/// ends a call early. Errors name the operation, the key and the store's address.
class TcpStoreClient {
 public:
  using Bytes = std::string;
  using Duration = std::chrono::milliseconds;

  /// Connects and validates, retrying until `timeout` while the server is not up. `host` is a name or an
  /// address. `timeout` is also the deadline of later calls without one. kUnreachable when no connection was
  /// made. `interrupt`: a descriptor (not owned) that ends every wait with kCancelled when it is readable, or
  /// -1.
  static Result<TcpStoreClient> connect(const std::string& host, std::uint16_t port, Duration timeout,
                                        int interrupt = -1);

  /// There is no reply: success means that the bytes are sent before any later request of this client.
  Result<> set(std::string_view key, std::string_view value);
  /// Waits for the key, then reads it.
  Result<Bytes> get(std::string_view key, Duration timeout);
  /// Adds to the decimal text under `key` (missing = 0); returns the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, Duration timeout);
  /// Returns the address of this end as the server sees it without NAT: "10.0.0.7".
  Result<std::string> local_address() const;

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
  Result<> wait_for(std::string_view key, Deadline deadline, std::string_view what);
  Result<> cancel_wait(std::string_view what);

  UniqueFd fd_;
  std::string peer_;  // "host:port" as given to connect()
  Duration timeout_;  // of calls without one
  int interrupt_;
  std::optional<std::string> broken_;  // why the connection is unusable
};

}  // namespace ddp::rendezvous
