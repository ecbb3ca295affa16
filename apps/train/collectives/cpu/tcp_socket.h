#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// The few socket calls of the ring, non-blocking with deadlines. Descriptors are born close-on-exec;
/// connected sockets have Nagle's algorithm off. Addresses are numeric: "10.0.0.7:4123" or "[fe80::1]:4123".
/// Waits also watch `interrupt` (a descriptor, or -1): when it is readable they end with kCancelled; past the
/// deadline with kTimeout. The errors of read_all and write_all are bare reasons ("connection reset") for the
/// caller to place.
using Deadline = std::chrono::steady_clock::time_point;

struct ListeningSocket {
  UniqueFd fd;
  std::string address;  ///< with the port that the kernel chose
};

Result<ListeningSocket> listen_at(const std::string& host);
Result<UniqueFd> connect_to(const std::string& address, Deadline deadline, int interrupt);
/// One connection that is already waiting; empty when there is none.
Result<UniqueFd> accept_waiting(int listener);
/// Waits until one of them has something to read or has ended; gives its index. A descriptor of -1 is left
/// out.
Result<std::size_t> wait_readable(std::span<const int> fds, Deadline deadline, int interrupt);

Result<> write_all(int fd, std::span<const std::byte> data, Deadline deadline, int interrupt);
/// kLinkLost "connection closed" at the end of the stream.
Result<> read_all(int fd, std::span<std::byte> data, Deadline deadline, int interrupt);

/// A failed call on a connection as a reason: "connection reset", "connection closed", or the system's words.
Error connection_error(int err);
Error connection_closed();

/// For poll(2): rounded up, 0 when past.
int milliseconds_left(Deadline deadline);

}  // namespace ddp::train
