#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/asio.h"
#include "rendezvous/link/connection.h"

namespace ddp::launcher {

/// Our own stdin becomes rank 0's: read as far as rank 0 takes it, and sent to its node. A terminal is read
/// in the foreground only. Loop thread; the owner keeps it alive until the task of run() has ended.
class StdinFeed {
 public:
  explicit StdinFeed(asio::any_io_executor loop);

  /// Until our stdin ends, `link` closes, or stop(). `warn` gets a line for the user. A new attempt of the
  /// job goes on where the last one stopped reading.
  Awaitable<> run(rendezvous::Connection& link, std::function<void(const std::string&)> warn);
  /// Rank 0 took `bytes` of what was sent.
  void taken(std::uint32_t bytes);
  void stop();

 private:
  asio::posix::stream_descriptor stdin_;
  asio::steady_timer room_;   ///< cancelled when the window has grown
  asio::steady_timer front_;  ///< until we look again whether we are in the foreground
  static constexpr std::size_t kWindow = 64u << 10;
  std::size_t window_ = kWindow;  ///< bytes that rank 0's node takes before it acknowledges
  bool stopped_ = false;
};

}  // namespace ddp::launcher
