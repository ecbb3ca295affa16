#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {

/// A blocking client of PyTorch's TCPStore protocol (torch ≥ 2.1 numbering): the store that node 0's agent serves, and
/// equally one served by PyTorch itself. One connection, one thread. Every call has its own deadline; after an Error of
/// code kTimeout the connection is still usable (a pending WAIT is cancelled), after any other Error it is not.
class TcpStoreClient {
 public:
  using Bytes = std::string;
  using Duration = std::chrono::milliseconds;

  /// Connects and validates, retrying until `timeout` while the server is not up yet. `host` is a name or an address.
  static Result<TcpStoreClient> connect(const std::string& host, std::uint16_t port, Duration timeout);

  Result<> set(std::string_view key, std::string_view value);
  /// Waits for the key, then reads it.
  Result<Bytes> get(std::string_view key, Duration timeout);
  /// Adds to the decimal text under `key` (missing = 0); gives the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, Duration timeout);
  /// Waits until all keys exist.
  Result<> wait(std::span<const std::string> keys, Duration timeout);
  Result<bool> check(std::span<const std::string> keys, Duration timeout);
  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` empty; gives the value now.
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                            Duration timeout);
  /// True when the key existed.
  Result<bool> delete_key(std::string_view key, Duration timeout);
  Result<std::int64_t> num_keys(Duration timeout);

 private:
  explicit TcpStoreClient(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace ddp::rendezvous
