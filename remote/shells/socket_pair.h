#pragma once

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::remote {

/// Both ends of a local stream, closed on exec.
struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

/// A larger buffer needs fewer context switches between two processes. The kernel grants as much as the
/// administrator allows.
inline constexpr int kSendBuffer = 256 << 10;

/// `flags`: SOCK_NONBLOCK or 0. `send_buffer`: bytes that wait in each direction.
Result<SocketPair> make_socket_pair(int flags, int send_buffer = kSendBuffer);

/// Registers a socket with the loop.
Result<asio::local::stream_protocol::socket> as_socket(const asio::any_io_executor& loop, UniqueFd fd);

}  // namespace ddp::remote
