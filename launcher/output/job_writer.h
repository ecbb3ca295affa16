#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "launcher/job_dir.h"

namespace ddp::launcher {

/// Writes the job directory on a thread of its own: it often lies on a network disk, and one that hangs must
/// not keep the loop from telling the nodes that the master lives. Bytes are gathered for each file and
/// written in large pieces, kLinger after they came at the latest, so that `tail -f` works. Calls come from
/// the loop thread; callbacks are posted to it.
class JobWriter {
 public:
  /// `say`: words for the user, such as that the disk is full. `drained`: the backlog has fallen below kLow
  /// after it was full.
  JobWriter(asio::any_io_executor loop, JobDir dir, std::function<void(const std::string&)> say,
            std::function<void()> drained);
  ~JobWriter();  ///< as close()
  JobWriter(const JobWriter&) = delete;
  JobWriter& operator=(const JobWriter&) = delete;

  static constexpr std::size_t kHigh =
      8u << 20;  ///< bytes that may wait; above it callers hold their sources back
  static constexpr std::size_t kLow = 2u << 20;
  static constexpr std::size_t kPiece = 256u << 10;  ///< a file with so many bytes is written at once
  static constexpr std::chrono::milliseconds kLinger{100};

  void append(const OutputKey& key, std::string_view bytes);
  /// The same without a copy: `memory` holds the bytes and does not change any more.
  void append(const OutputKey& key, std::string_view bytes, std::shared_ptr<const char[]> memory);
  bool full() const { return backlog_.load(std::memory_order_relaxed) > kHigh; }
  std::string file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const;
  /// Waits until all is written, `limit` at most. Returns what the files lack, in words; empty: nothing, or
  /// it is not known yet.
  std::string settle(std::chrono::milliseconds limit);
  /// Waits until all is written, then ends the thread. May be called twice.
  void close();

 private:
  struct Piece {
    std::shared_ptr<const char[]> memory;  ///< null: `gathered` has the bytes
    std::string_view bytes;
    std::string gathered;
    std::string_view view() const { return memory ? bytes : std::string_view(gathered); }
  };
  struct Waiting {
    OutputKey key;
    std::vector<Piece> pieces;
    std::size_t size = 0;
  };
  using Batch = std::vector<Waiting>;
  Waiting& waiting_of(const OutputKey& key);
  std::string& gathered_of(Waiting& waiting);
  void added(std::unique_lock<std::mutex>& lock, Waiting& waiting, std::size_t bytes, bool first);
  void write_loop();
  void write(Batch& batch);
  void recycle(Batch& batch);

  asio::any_io_executor loop_;
  JobDir dir_;  ///< the thread's alone, but for file()
  std::function<void(const std::string&)> say_;
  std::function<void()> drained_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  // Under the mutex:
  Batch waiting_;
  std::map<OutputKey, std::size_t> place_;  ///< in waiting_
  std::pair<OutputKey, std::size_t> last_;  ///< of the latest append: mostly the next one's, too
  std::vector<std::string> spare_;          ///< buffers to use again
  bool hurry_ = false;                      ///< enough waits for a write
  bool was_full_ = false;
  bool writing_ = false;
  bool closing_ = false;
  std::atomic<std::size_t> backlog_ = 0;
  std::thread writer_;
};

}  // namespace ddp::launcher
