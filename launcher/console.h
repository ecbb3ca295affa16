#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/asio.h"

namespace ddp::launcher {

/// The user's stdout and stderr. Writing happens on a thread of its own, so that a slow terminal or a full
/// pipe never stops the loop; both streams keep their common order. The descriptors stay as the user gave
/// them (blocking: they may be shared). A stream whose reader is gone swallows what follows. Calls come from
/// the loop thread.
class Console {
 public:
  /// `drained` is posted to `loop` each time the backlog has fallen below kLow after it was above kHigh.
  Console(asio::any_io_executor loop, std::function<void()> drained, int out = 1, int err = 2);
  ~Console();  ///< as close()
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  static constexpr std::size_t kHigh =
      4u << 20;  ///< bytes that may wait; above it callers hold their sources back
  static constexpr std::size_t kLow = 1u << 20;

  /// Queues bytes for stream 1 or 2; never blocks and never drops. Keeping to `full()` is the caller's duty.
  void write(int stream, std::string_view bytes);
  bool full() const;
  /// Errno of the first failed write of `stream`, 0 if none: EPIPE when its reader has gone.
  int broken(int stream) const;
  /// Waits until all is written, then ends the thread. Blocks as long as the reader does; may be called
  /// twice.
  void close();

 private:
  struct Segment {
    int stream;
    std::string bytes;
  };
  void write_loop();
  int write_out(int fd, std::string_view bytes);

  asio::any_io_executor loop_;
  std::function<void()> drained_;
  std::array<int, 2> fds_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Segment> queue_;
  std::size_t backlog_ = 0;
  bool was_full_ = false;
  bool closing_ = false;
  std::array<int, 2> broken_{};
  std::thread writer_;
};

}  // namespace ddp::launcher
