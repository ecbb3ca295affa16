#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ddp {

/// Returns whether `host`, a name or a numeric address, is this machine: one of its addresses, or its name.
/// It may wait for the name service. A name that cannot be resolved counts as another machine.
bool is_own_address(const std::string& host);
/// Returns the first address of `host`, a name or a numeric address; empty: it has none. It may wait for the
/// name service.
std::string first_address(const std::string& host);
/// Returns whether `host` can only be this machine: "localhost", 127.x.y.z, ::1. It resolves no name.
bool is_loopback_address(const std::string& host);

/// The process that listens at a TCP port of this machine.
struct PortHolder {
  uid_t uid = 0;
  pid_t pid = 0;        ///< 0: not readable, as for another user's process
  std::string program;  ///< its short name; empty without a pid
};

/// Returns the process that listens at `port` and conflicts with `address` ("localhost" or numeric; any other
/// text means all addresses). A process of another user takes precedence. nullopt: the kernel names none, for
/// example if the port is bound and no process listens. Reads /proc. Blocking.
std::optional<PortHolder> find_port_holder(const std::string& address, std::uint16_t port);

/// Returns "process 4242 (python3) of user mallory (uid 1001)"; the user only if it is not this process's
/// user.
std::string holder_text(const PortHolder& holder);

}  // namespace ddp
