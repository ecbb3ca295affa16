#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {

/// Makes one attempt at a TCP connection to any of `host`'s addresses: non-blocking, close-on-exec,
/// TCP_NODELAY. Blocks until `deadline`. kUnreachable: no answer (yet), try again; kUsage: no retry can help
/// (`sys` is 0); kCancelled: `interrupt` (a descriptor, or -1) is readable.
Result<UniqueFd> connect_tcp_once(const std::string& host, std::uint16_t port,
                                  std::chrono::steady_clock::time_point deadline, int interrupt = -1);

/// Waits until `fd` is ready for `events` (-1: only for the deadline). Returns true when ready, false after
/// the deadline. kCancelled as above; kSystem.
Result<bool> poll_with_interrupt(int fd, short events, std::chrono::steady_clock::time_point deadline,
                                 int interrupt);

/// Returns the time until `deadline` for poll(): 0 when past, rounded up so that a wait never ends early.
int poll_timeout(std::chrono::steady_clock::time_point deadline);

}  // namespace ddp::rendezvous
