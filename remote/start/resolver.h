#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/result.h"

namespace ddp::remote {

/// The system's name service, asked by the program `getent` in a child process. ddplaunch is static, and
/// glibc's own functions would load modules that fit only the C library of the build. All calls block, at
/// most until the deadline; the child is killed then. Thread-safe.

struct User {
  std::string name;
  std::string home;
};

/// Returns the user with this uid, from /etc/passwd or else from the name service (LDAP, SSSD), which has 5
/// s. nullopt: unknown, or no answer.
std::optional<User> find_user(uid_t uid);

/// Returns the addresses of `host` in the order in which to try them. Never empty on success. Without
/// `getent` (a system of busybox alone) /etc/hosts answers. An answer is kept for 30 s. Errors: kUnreachable,
/// the name is unknown; kTimeout. The text is the reason alone.
Result<std::vector<asio::ip::address>> find_addresses(const std::string& host, int family,
                                                      std::chrono::steady_clock::time_point deadline);

/// A socket address, ready to connect to.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
  std::string host;  ///< numeric: "10.0.0.1", "fe80::1%eth0"
  std::string text;  ///< with the port: "10.0.0.1:22", "[fe80::1%eth0]:22"
};

/// Turns names into addresses without blocking the loop. Up to 16 threads ask the name service
/// and are never joined. Loop thread only. It is destroyed before the loop.
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
