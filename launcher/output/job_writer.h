#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "launcher/output/job_dir.h"

namespace ddp::launcher {

/// Writes the job directory on a thread of its own: it often lies on a network disk, and one that hangs must
/// not keep the loop from telling the nodes that the master lives. Bytes are gathered for each file and
/// written in large pieces, kLinger after they came at the latest, so that `tail -f` works. Calls come from
/// the loop thread; callbacks are posted to it. Shared with the thread, which outlives the owner when its
/// write never returns.
class JobWriter : public std::enable_shared_from_this<JobWriter> {
 public:
  /// `say`: words for the user, such as that the disk is full. `drained`: the backlog has fallen below kLow
  /// after it was full. The owner calls close().
  static std::shared_ptr<JobWriter> start(asio::any_io_executor loop, JobDir dir,
                                          std::function<void(const std::string&)> say,
                                          std::function<void()> drained);
  JobWriter(const JobWriter&) = delete;
  JobWriter& operator=(const JobWriter&) = delete;

  static constexpr std::size_t kHigh =
      8u << 20;  ///< bytes that may wait; above it callers hold their sources back
  static constexpr std::size_t kLow = 2u << 20;
  /// Never more, whatever the callers do: what is on its way when the disk hangs, and what agents send at a
  /// stop beyond their credit. Bytes above are lost to the files and counted, as those that a full disk
  /// refuses.
  static constexpr std::size_t kMost = 128u << 20;
  static constexpr std::size_t kPiece = 256u << 10;  ///< a file with so many bytes is written at once
  static constexpr std::chrono::milliseconds kLinger{100};

  void append(const OutputKey& key, std::string_view bytes);
  /// The same without a copy: `memory` holds the bytes and does not change any more.
  void append(const OutputKey& key, std::string_view bytes, std::shared_ptr<const char[]> memory);
  bool full() const { return backlog_.load(std::memory_order_relaxed) > kHigh; }
  std::string file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const;
  using LastTask = std::function<std::vector<std::string>()>;
  /// Has the thread write all that waits and then call `last`. Waits for both as long as the disk takes
  /// something, and `limit` when it takes nothing. Returns warnings for the user: what the files lack, and
  /// those of `last`; unset: not done yet, and another call waits for the same.
  std::optional<std::vector<std::string>> settle(const LastTask& last, std::chrono::milliseconds limit);
  /// Bytes that are not written yet.
  std::size_t backlog() const { return backlog_.load(std::memory_order_relaxed); }
  /// Waits as settle() does, then ends the thread; one that is stuck is left behind. May be called twice.
  void close(std::chrono::milliseconds limit);

 private:
  JobWriter(asio::any_io_executor loop, JobDir dir, std::function<void(const std::string&)> say,
            std::function<void()> drained);
  struct OutputPiece {
    std::shared_ptr<const char[]> memory;  ///< null: `gathered` has the bytes
    std::string_view bytes;
    std::string gathered;
    std::size_t lost = 0;  ///< more than 0: no bytes, but the number of those that are missing here
    std::string_view view() const { return memory ? bytes : std::string_view(gathered); }
  };
  struct PendingOutput {
    OutputKey key;
    std::vector<OutputPiece> pieces;
    std::size_t size = 0;
  };
  using WriteBatch = std::vector<PendingOutput>;
  PendingOutput& pending_of(const OutputKey& key);
  std::string& gathered_of(PendingOutput& waiting);
  bool lose(const OutputKey& key, std::size_t bytes);
  void added(std::unique_lock<std::mutex>& lock, PendingOutput& waiting, std::size_t bytes, bool first);
  template <class Done>
  bool wait_for(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit, Done done);
  void write_loop();
  void call_last_task(std::unique_lock<std::mutex>& lock);
  void write(WriteBatch& batch);
  void post(std::function<void()> task);
  void recycle(WriteBatch& batch);

  asio::any_io_executor loop_;
  JobDir dir_;  ///< the thread's alone, but for file()
  std::function<void(const std::string&)> say_;
  std::function<void()> drained_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable progress_;  ///< something was written, or the end of settle() or close() came
  // Under the mutex:
  WriteBatch waiting_;
  std::map<OutputKey, std::size_t> place_;  ///< in waiting_
  std::pair<OutputKey, std::size_t> last_;  ///< of the latest append: mostly the next one's, too
  std::vector<std::string> spare_;          ///< buffers to use again
  bool write_now_ = false;                  ///< enough waits for a write
  bool was_full_ = false;
  LastTask last_task_;  ///< to be called
  bool has_last_task_ = false;
  std::optional<std::vector<std::string>> settled_;
  std::uint64_t written_ = 0;  ///< pieces; grows as long as the disk takes something
  bool closing_ = false;
  bool ended_ = false;      ///< the thread's last word
  bool abandoned_ = false;  ///< the loop may be gone
  std::atomic<std::size_t> backlog_ = 0;
  std::thread writer_;
};

}  // namespace ddp::launcher
