#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/asio.h"
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

/// Returns the address of a numeric `host` without asking anybody ("10.0.0.1", "fe80::1%eth0"). `family` is
/// AF_UNSPEC, AF_INET or AF_INET6.
std::optional<asio::ip::address> numeric_address(const std::string& host, int family);

/// Returns the addresses of `host` in the order in which to try them. Never empty on success. Without
/// `getent` (a system of busybox alone) /etc/hosts answers. An answer is kept for 30 s. Errors: kUnreachable,
/// the name is unknown; kTimeout. The text is the reason alone.
Result<std::vector<asio::ip::address>> find_addresses(const std::string& host, int family,
                                                      std::chrono::steady_clock::time_point deadline);

}  // namespace ddp::remote
