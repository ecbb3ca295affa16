#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/asio.h"
#include "rendezvous/link/connection.h"

namespace ddp::launcher {

/// Feeds the launcher's stdin to rank 0. It reads only as far as rank 0 takes the data, and sends it to that
/// rank's node. It reads a terminal in the foreground only. A file is left at the first byte that rank 0 did
/// not read, as the next program of a shell's loop expects. Loop thread; the owner keeps it alive until the
/// task of run() has ended.
class StdinFeed {
 public:
  explicit StdinFeed(asio::any_io_executor loop);

  /// Runs until stdin ends, `link` closes, or stop() is called. `warn` gets a line for the user. A new
  /// attempt of the job continues where the last one stopped reading.
  Awaitable<> run(rendezvous::Connection& link, std::function<void(const std::string&)> warn);
  /// Rank 0 took some bytes of what was sent, or has ended.
  void taken(const rendezvous::StdinTaken& taken);
  void stop();

 private:
  void leave_file();

  asio::posix::stream_descriptor stdin_;
  asio::steady_timer room_;   ///< cancelled when the window has grown
  asio::steady_timer front_;  ///< until the next check for the foreground
  static constexpr std::size_t kWindow = 64u << 10;
  std::optional<off_t> start_;  ///< where the file was at the start; empty: stdin cannot be rewound
  std::uint64_t sent_ = 0;
  std::optional<std::uint64_t> read_;  ///< bytes that the last ended rank 0 and those before it have read
  std::size_t window_ = kWindow;       ///< bytes that rank 0's node takes before it acknowledges
  bool stopped_ = false;
};

}  // namespace ddp::launcher
