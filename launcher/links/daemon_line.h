#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/asio.h"
#include "launcher/links/daemon_frame.h"

namespace ddp::launcher {

using LocalSocket = asio::local::stream_protocol::socket;

/// The TLS link between a daemon and a master, at either end. One task reads; several tasks send whole
/// frames, one at a time. Loop thread only. The owner keeps the object until all calls have returned.
class DaemonLine {
 public:
  DaemonLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream)
      : stream_(std::move(stream)), free_(loop, std::chrono::steady_clock::time_point::max()) {}

  /// Waits for its turn, then until all is written. An error concerns the link; all later calls return it,
  /// too.
  Awaitable<error_code> send(std::string frame);
  Awaitable<ByteStream::Transferred> read_some(asio::mutable_buffer buffer) {
    return stream_->read_some(buffer);
  }
  /// Ends all pending calls with an error.
  void close();

  /// Sends bytes from `socket` as frames of `kind` until the socket or the link ends. Returns true if the
  /// socket has ended. Holds no buffer while the socket is idle.
  Awaitable<bool> carry(DaemonFrame kind, LocalSocket& socket);

 private:
  std::unique_ptr<ByteStream> stream_;
  asio::steady_timer free_;  ///< never expires; cancelled when a turn has ended
  bool busy_ = false;
  error_code broken_;
};

/// Ends both directions. The other end can still read what was written; closing with unread bytes would turn
/// its last read into an error.
void end_both_directions(LocalSocket& socket);

}  // namespace ddp::launcher
