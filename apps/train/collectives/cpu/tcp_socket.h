#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Non-blocking socket calls with deadlines. Descriptors are close-on-exec from the start; connected sockets
/// have Nagle's algorithm off. Addresses are numeric: "10.0.0.7:4123" or "[fe80::1]:4123". Waits also watch
/// `interrupt` (a descriptor, or -1). They end with kCancelled when it is readable, and with kTimeout after
/// the deadline. Errors of read_all and write_all are bare reasons ("connection reset") that the caller
/// completes.
using Deadline = std::chrono::steady_clock::time_point;

struct ListeningSocket {
  UniqueFd fd;
  std::string address;  ///< with the port that the kernel chose
};

Result<ListeningSocket> listen_at(const std::string& host);
Result<UniqueFd> connect_to(const std::string& address, Deadline deadline, int interrupt);
/// Accepts one connection that is already waiting; empty if there is none.
Result<UniqueFd> accept_waiting(int listener);
/// Waits until one of `fds` has something to read or has ended, and returns its index. Ignores descriptors of
/// -1.
Result<std::size_t> wait_readable(std::span<const int> fds, Deadline deadline, int interrupt);

Result<> write_all(int fd, std::span<const std::byte> data, Deadline deadline, int interrupt);
/// Fails with kLinkLost "connection closed" at the end of the stream.
Result<> read_all(int fd, std::span<std::byte> data, Deadline deadline, int interrupt);

/// Returns a failed call on a connection as a reason: "connection reset", or the system's text.
Error connection_error(int err);
Error connection_closed();

/// Returns the time left for poll(2): rounded up, 0 after the deadline.
int milliseconds_left(Deadline deadline);

}  // namespace ddp::train
