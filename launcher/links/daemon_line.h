#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "launcher/link_protocol/daemon_frame.h"

namespace ddp::launcher {

using LocalSocket = asio::local::stream_protocol::socket;

/// The TLS link of a daemon and a master, at either end: one task reads, several send whole frames, one at a
/// time. Loop thread only. The owner keeps it until all calls have returned.
class DaemonLine {
 public:
  DaemonLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream)
      : stream_(std::move(stream)), free_(loop, std::chrono::steady_clock::time_point::max()) {}

  /// Waits for its turn, then until all was written. An error is that of the link, and of all later calls.
  Awaitable<error_code> send(std::string frame);
  Awaitable<ByteStream::Transferred> read_some(asio::mutable_buffer buffer) {
    return stream_->read_some(buffer);
  }
  /// Ends what is under way with an error.
  void close();

  /// Sends what `socket` gives as frames of `kind` until it ends or the link does, and then says how: true,
  /// the socket has ended. While there is nothing to carry no memory is held for it.
  Awaitable<bool> carry(DaemonFrame kind, LocalSocket& socket);

 private:
  std::unique_ptr<ByteStream> stream_;
  asio::steady_timer free_;  ///< never expires; cancelled when a turn has ended
  bool busy_ = false;
  error_code broken_;
};

/// For co_spawn of what keeps its own outcome: only a broken invariant throws.
inline void daemon_task_end(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);
}

/// All of `bytes`; an error when nobody reads any more.
Awaitable<error_code> write_all(LocalSocket& socket, std::string_view bytes);

/// No more bytes either way; what was written may still be read at the other end. (Closing with unread bytes
/// would make the other end's last read an error.)
void end_both_directions(LocalSocket& socket);

}  // namespace ddp::launcher
