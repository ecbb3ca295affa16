#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/result.h"

namespace ddp::remote {

/// A socket address, ready to connect to.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
  std::string host;  ///< numeric: "10.0.0.1", "fe80::1%eth0"
  std::string text;  ///< with the port: "10.0.0.1:22", "[fe80::1%eth0]:22"
};

/// Turns names into addresses without blocking the loop. Up to 16 threads ask the name service
/// (name_service.h) and are never joined. Loop thread only. It is destroyed before the loop.
class Resolver {
 public:
  /// `advice` ends the message about a name that cannot be resolved: what the user can do besides checking
  /// it.
  explicit Resolver(asio::any_io_executor loop, std::string advice = "give address= in the hostfile");

  /// `family` is AF_UNSPEC, AF_INET or AF_INET6. The result is never empty on success. Errors: kUnreachable,
  /// kTimeout, kCancelled; the text has the name.
  Awaitable<Result<std::vector<Endpoint>>> resolve(std::string name, std::uint16_t port, int family,
                                                   std::chrono::steady_clock::time_point deadline);

 private:
  BlockingCalls calls_;
  std::string advice_;
};

}  // namespace ddp::remote
