#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ddp {

/// Whether `host`, a name or a numeric address, is this machine: one of its addresses, or its name. Asks the
/// name service and may wait for it; a name that cannot be resolved is another machine's.
bool is_own_address(const std::string& host);
/// Whether it can only be this machine: "localhost", 127.x.y.z, ::1. Looks nothing up.
bool is_loopback_address(const std::string& host);

/// Who listens at a TCP port of this machine.
struct PortHolder {
  uid_t uid = 0;
  pid_t pid = 0;        ///< 0: not readable, as with another user's process
  std::string program;  ///< its short name; empty without a pid
};

/// The process that listens at `port` where it is in the way of `address` ("localhost" or numeric; anything
/// else: all addresses). One of another user comes first. Nothing: the kernel names none, for example because
/// the port is bound and nobody listens. Reads /proc; blocks.
std::optional<PortHolder> find_port_holder(const std::string& address, std::uint16_t port);

/// "process 4242 (python3) of user mallory (uid 1001)"; the user only when it is not this process's.
std::string holder_text(const PortHolder& holder);

}  // namespace ddp
