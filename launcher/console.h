#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"

namespace ddp::launcher {

/// The user's stdout and stderr. Writing happens on threads, so that a slow terminal or a full pipe never
/// stops the loop. Where both are one terminal they keep their common order; otherwise neither waits for the
/// other. The descriptors stay as the user gave them (blocking: they may be shared). A stream that takes
/// nothing any more swallows what follows. Calls come from the loop thread, `drained` is posted to it.
class Console {
 public:
  /// `drained`: the backlog fell below kLow after it was above kHigh.
  Console(asio::any_io_executor loop, std::function<void()> drained, int out = 1, int err = 2);
  ~Console();  ///< waits as close() does
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  static constexpr std::size_t kHigh =
      4u << 20;  ///< bytes that may wait; above it callers hold their sources back
  static constexpr std::size_t kLow = 1u << 20;

  /// Queues bytes for stream 1 or 2; never blocks and never drops. Keeping to `full()` is the caller's duty.
  void write(int stream, std::string_view bytes);
  bool full() const;
  /// Waits until `stream` has taken all, `limit` at most; true when it has.
  bool flush(int stream, std::chrono::milliseconds limit);
  /// Errno of the first failed write of `stream`, 0 if none: EPIPE when its reader has gone.
  int broken(int stream) const;
  /// Waits until all is written, as long as the readers take. May be called twice.
  void close();
  /// Ends without what is still unwritten; its thread may stay in a write for ever.
  void abandon();

 private:
  struct Segment {
    int stream;
    std::string bytes;
  };
  /// One thread and its queue. Shared with the thread, which may outlive us when its write never returns.
  struct Lane;
  static void write_loop(const std::shared_ptr<Lane>& lane);
  Lane& lane_of(int stream) const { return *lanes_[stream == 2 && lanes_.size() == 2 ? 1 : 0]; }

  std::vector<std::shared_ptr<Lane>> lanes_;
};

}  // namespace ddp::launcher
