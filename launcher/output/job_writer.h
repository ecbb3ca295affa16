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
#include "launcher/job/job_spec.h"
#include "launcher/output/job_dir.h"
#include "rendezvous/protocol/message.h"

namespace spdlog {
class logger;
}

namespace ddp::launcher {

/// Writes the job directory on its own thread. The directory is often on a network disk, and a hanging disk
/// must not stop the loop's heartbeats to the nodes. Bytes are gathered per file and written in large pieces,
/// at most kLinger after they arrive, so that `tail -f` works. Calls come from the loop thread; callbacks are
/// posted to it. The thread shares ownership and outlives the owner when a write never returns.
class JobWriter : public std::enable_shared_from_this<JobWriter> {
 public:
  /// `say` gets messages for the user, such as that the disk is full. `drained` is called when a full backlog
  /// has fallen below kLow. `first` (may be empty) runs on the thread before its first write. The owner must
  /// call close().
  using FirstTask = std::function<void()>;
  static std::shared_ptr<JobWriter> start(asio::any_io_executor loop, JobDir dir,
                                          std::function<void(const std::string&)> say,
                                          std::function<void()> drained, FirstTask first = {});
  JobWriter(const JobWriter&) = delete;
  JobWriter& operator=(const JobWriter&) = delete;

  static constexpr std::size_t kHigh = 8u << 20;  ///< bytes that may wait; above it callers hold sources back
  static constexpr std::size_t kLow = 2u << 20;
  /// Hard limit of the backlog, whatever the callers do. It covers bytes in transit when the disk hangs, and
  /// bytes that agents send beyond their credit at a stop. Bytes above it are lost to the files and counted,
  /// like bytes that a full disk refuses.
  static constexpr std::size_t kMost = 128u << 20;
  static constexpr std::size_t kPiece = 256u << 10;  ///< a file with this backlog is written at once
  static constexpr std::chrono::milliseconds kLinger{100};

  void append(const OutputKey& key, std::string_view bytes);
  /// Does the same without a copy. `memory` holds the bytes, which must not change any more.
  void append(const OutputKey& key, std::string_view bytes, std::shared_ptr<const char[]> memory);
  bool full() const { return backlog_.load(std::memory_order_relaxed) > kHigh; }
  std::string file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const;
  /// Gets the unreported losses of the files, as text; usually empty.
  using LastTask = std::function<std::vector<std::string>(const std::string& lost)>;
  /// Makes the thread write the whole backlog and then call `last`. Waits for both as long as the disk
  /// accepts bytes, and for `limit` when it accepts none. Returns warnings for the user: losses of the files
  /// and the warnings of `last`. Unset: not finished yet, and another call continues the wait.
  std::optional<std::vector<std::string>> finish(const LastTask& last, std::chrono::milliseconds limit);
  /// Returns the number of bytes not yet written.
  std::size_t backlog() const { return backlog_.load(std::memory_order_relaxed); }
  /// Waits like finish(), then ends the thread. A blocked thread is abandoned. May be called twice.
  void close(std::chrono::milliseconds limit);

 private:
  JobWriter(asio::any_io_executor loop, JobDir dir, std::function<void(const std::string&)> say,
            std::function<void()> drained);
  struct OutputPiece {
    std::shared_ptr<const char[]> memory;  ///< null: the bytes are in `gathered`
    std::string_view bytes;
    std::string gathered;
    std::size_t lost = 0;  ///< nonzero: number of bytes missing here; the piece has no bytes
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
  JobDir dir_;  ///< used only by the thread, except for file()
  std::function<void(const std::string&)> say_;
  std::function<void()> drained_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable progress_;  ///< something was written, or finish() or close() finished
  // Members guarded by the mutex:
  WriteBatch waiting_;
  std::map<OutputKey, std::size_t> place_;  ///< index in waiting_
  std::pair<OutputKey, std::size_t> last_;  ///< of the latest append; the next one often has the same key
  std::vector<std::string> spare_;          ///< buffers to reuse
  bool write_now_ = false;                  ///< enough bytes wait for a write
  bool was_full_ = false;
  LastTask last_task_;  ///< called after the last write
  bool has_last_task_ = false;
  std::optional<std::vector<std::string>> settled_;
  std::uint64_t written_ = 0;  ///< pieces; grows while the disk accepts bytes
  bool closing_ = false;
  bool ended_ = false;      ///< set by the thread at its end
  bool abandoned_ = false;  ///< the loop may no longer exist
  std::atomic<std::size_t> backlog_ = 0;
  std::thread writer_;
};

/// ddplaunch.log in the job's directory: timestamped messages and actions of ddplaunch, for a later analysis.
/// It has all steps, even without --verbose, and nothing of the environment. Loop thread.
class JobLog {
 public:
  /// Starts with one line about the job. `files` must outlive the log.
  JobLog(JobWriter& files, const JobSpec& spec);
  ~JobLog();
  JobLog(const JobLog&) = delete;
  JobLog& operator=(const JobLog&) = delete;

  /// Logs a message that the user also sees.
  void said(std::string_view text) const;
  /// Logs a completed step.
  void step(std::string_view text) const;
  /// Logs the start or end of a worker on `host`; ignores other messages.
  void from_node(const std::string& host, const rendezvous::Message& message) const;
  /// Logs the report, line by line.
  void ended(std::string_view report) const;

 private:
  std::unique_ptr<spdlog::logger> log_;
};

}  // namespace ddp::launcher
