#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {

/// One attempt at a TCP connection to any of `host`'s addresses: non-blocking, close-on-exec, TCP_NODELAY.
/// Blocks until `deadline`. kUnreachable: nobody answers (yet), try again; kUsage: no retry can help (`sys`
/// is 0).
Result<UniqueFd> connect_tcp_once(const std::string& host, std::uint16_t port,
                                  std::chrono::steady_clock::time_point deadline);

/// What is left until `deadline` for poll(): 0 when past, rounded up so that a wait never ends early.
int poll_timeout(std::chrono::steady_clock::time_point deadline);

}  // namespace ddp::rendezvous
