#pragma once

#include <poll.h>

#include "base/asio.h"

namespace ddp {

/// Whether a read of `fd` would not wait; of a pidfd: whether the process has ended.
inline bool is_readable(int fd) {
  pollfd look{fd, POLLIN, 0};
  return ::poll(&look, 1, 0) > 0;
}

/// Whether a write to `fd` would not wait; of a socket that connects: whether that is over.
inline bool is_writable(int fd) {
  pollfd look{fd, POLLOUT, 0};
  return ::poll(&look, 1, 0) > 0;
}

/// Waits until a read of `descriptor` would not wait; the error is that of a cancelled or closed descriptor.
/// For whoever takes readiness itself as the news, as that of a pidfd. async_wait alone cannot be believed:
/// Asio (seen in 1.81) gives the state of a closed descriptor to the next one that is opened while an event
/// of the closed one may still be queued, and that event then completes the wait of the new one.
inline Awaitable<error_code> until_readable(asio::posix::stream_descriptor& descriptor) {
  for (;;) {
    const auto [error] = co_await descriptor.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
    if (error || is_readable(descriptor.native_handle())) co_return error;
  }
}

}  // namespace ddp
