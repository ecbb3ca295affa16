#pragma once

#include <poll.h>

#include "base/asio.h"

namespace ddp {

/// Returns whether a read of `fd` would not block; for a pidfd, whether the process has ended.
inline bool is_readable(int fd) {
  pollfd look{fd, POLLIN, 0};
  return ::poll(&look, 1, 0) > 0;
}

/// Returns whether a write to `fd` would not block; for a connecting socket, whether the attempt is over.
inline bool is_writable(int fd) {
  pollfd look{fd, POLLOUT, 0};
  return ::poll(&look, 1, 0) > 0;
}

/// Waits until a read of `descriptor` would not block. Returns the error of a cancelled or closed descriptor.
/// For callers that take readiness itself as the event, as with ChildProcess::end_fd. async_wait alone is
/// unreliable: Asio (seen in 1.81) reuses the state of a closed descriptor for the next one opened. A queued
/// event of the closed descriptor then completes the wait of the new one.
inline Awaitable<error_code> until_readable(asio::posix::stream_descriptor& descriptor) {
  for (;;) {
    const auto [error] = co_await descriptor.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
    if (error || is_readable(descriptor.native_handle())) co_return error;
  }
}

}  // namespace ddp
