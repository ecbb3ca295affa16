#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/link_protocol/daemon_frame.h"
#include "rendezvous/secure/link_token.h"

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

/// Returns the token of --token-file (`file`), else `given` (from DDPLAUNCH_TOKEN), else that of the default
/// file. Error kUsage: the token is missing or invalid; the text says how to make one.
Result<rendezvous::LinkToken> find_daemon_token(const std::string& file,
                                                const Result<rendezvous::LinkToken>& given);

/// Writes a new random token to `path`, readable only by its owner. An empty `path` means the default one,
/// whose directory is made. The file must not exist; a reader sees no file or the whole token. Returns the
/// path. Error kUsage with sys EEXIST: the file exists.
Result<std::string> write_new_token(std::string path);

/// The token by which the processes of one user on one machine authenticate each other: loopback-token beside
/// the default token file. The first call makes it. Errors kUsage, kSystem: it cannot be made, or is not this
/// user's alone.
Result<rendezvous::LinkToken> loopback_token();

}  // namespace ddp::launcher
