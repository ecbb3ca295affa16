#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/asio.h"
#include "base/error.h"
#include "launcher/job_dir.h"

namespace ddp::launcher {

/// Writes the job directory on a thread of its own: it often lies on a network disk, and one that hangs must
/// not keep the loop from telling the nodes that the master lives. Calls come from the loop thread; callbacks
/// are posted to it.
class JobWriter {
 public:
  /// `trouble`: the directory takes no bytes; called once. `drained`: the backlog has fallen below kLow after
  /// it was full.
  JobWriter(asio::any_io_executor loop, JobDir dir, std::function<void(const Error&)> trouble,
            std::function<void()> drained);
  ~JobWriter();  ///< as close()
  JobWriter(const JobWriter&) = delete;
  JobWriter& operator=(const JobWriter&) = delete;

  static constexpr std::size_t kHigh =
      8u << 20;  ///< bytes that may wait; above it callers hold their sources back
  static constexpr std::size_t kLow = 2u << 20;

  void append(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream, std::string_view bytes);
  bool full() const;
  std::string file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const;
  /// Waits until all is written, then ends the thread. May be called twice.
  void close();

 private:
  struct Piece {
    std::uint32_t attempt;
    std::uint32_t rank;
    std::uint8_t stream;
    std::string bytes;
  };
  void write_loop();

  asio::any_io_executor loop_;
  JobDir dir_;  ///< the thread's alone, but for file()
  std::function<void(const Error&)> trouble_;
  std::function<void()> drained_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Piece> queue_;
  std::size_t backlog_ = 0;
  bool was_full_ = false;
  bool closing_ = false;
  std::thread writer_;
};

}  // namespace ddp::launcher
