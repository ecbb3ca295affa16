#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/asio.h"
#include "base/unique_fd.h"
#include "launcher/job/job_spec.h"
#include "launcher/lines/live_board.h"

namespace ddp::launcher {

/// Whole lines that wait for one output (sans-IO), which may be slower than its sources. A holding queue lets
/// its owner hold the sources back. A skipping queue drops the oldest lines of the workers and shows the
/// number of dropped lines instead. It drops ddplaunch's own lines only above kMostOurs.
class ConsoleQueue {
 public:
  static constexpr std::size_t kHigh = 4u << 20;  ///< bytes that may wait while holding; above: full
  /// Hard limit while holding, whatever the owner does. It covers bytes in transit, and bytes that agents
  /// send beyond their credit at a stop. Above it the oldest half is dropped.
  static constexpr std::size_t kMost = 128u << 20;
  /// Hard limit of ddplaunch's own lines, which repeat messages of nodes. Above it the oldest half is
  /// dropped.
  static constexpr std::size_t kMostOurs = 16u << 20;
  static constexpr std::size_t kLow = 1u << 20;
  static constexpr std::size_t kSkipAt = 1u << 20;  ///< bytes that may wait while skipping
  static constexpr std::size_t kKept = 64u << 10;   ///< bytes that stay after skipping: the latest

  struct Segment {
    int stream;  ///< 1 or 2
    bool ours;
    std::uint64_t skipped;  ///< lines missing before the bytes
    std::string bytes;
  };

  /// Segments of one kind are joined up to `join` bytes, so that one write takes many lines.
  ConsoleQueue(bool skips, std::size_t join) : skips_(skips), join_(join) {}

  void push(int stream, bool ours, std::string_view lines);
  /// Does the same for many lines without a copy. Leaves an empty string with memory to reuse.
  void hand_over(int stream, bool ours, std::string& lines);
  bool empty() const { return segments_.empty(); }
  /// Returns the oldest segment, with a first line about its gap if it has one. Its bytes still count as
  /// waiting until done() is called with it.
  Segment pop();
  void done(Segment& segment);
  void clear();

  std::size_t waiting(int stream) const { return waiting_[static_cast<std::size_t>(stream - 1)]; }
  bool full() const { return !skips_ && backlog() > kHigh; }
  bool has_room() const { return backlog() < kLow; }
  bool skips() const { return skips_; }

 private:
  std::size_t backlog() const { return waiting_[0] + waiting_[1]; }
  void push_piece(int stream, bool ours, std::string_view lines);
  void count(int stream, bool ours, std::size_t bytes);
  void skip_ahead(bool ours, std::size_t keep);

  bool skips_;
  std::size_t join_;
  std::deque<Segment> segments_;
  std::string spare_;                     ///< of a finished segment
  std::size_t queued_ = 0;                ///< bytes in segments_
  std::size_t ours_ = 0;                  ///< bytes in segments_ of ddplaunch's own lines
  std::array<std::size_t, 2> waiting_{};  ///< by stream, including bytes taken but not done
};

/// Returns "… 12,345 lines not shown; the files have them".
std::string skipped_text(std::uint64_t lines);

/// Returns the size of a terminal; the default if it is unknown.
TerminalView::Size terminal_size(int fd);
/// Returns whether the terminal of this process wraps its rows again when it becomes narrower, by TERM.
bool terminal_reflows();

/// One output of the console (stdout, stderr or both), with its queue and the thread that writes it. Any
/// thread but this one may call it. The thread shares ownership and outlives the owner when a write never
/// returns.
class ConsoleLane : public std::enable_shared_from_this<ConsoleLane> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Target {
    std::array<int, 2> fds;  ///< of stream 1 and 2; equal when the lane has one stream
    bool is_terminal;
    bool has_view;  ///< it is a terminal that can move its cursor
  };

  /// `drained` is posted to `loop` when a full queue has fallen below kLow.
  static std::shared_ptr<ConsoleLane> start(Target target, ConsolePolicy policy, asio::any_io_executor loop,
                                            std::function<void()> drained);

  const Target& target() const { return target_; }
  /// Never blocks. `ours` marks lines of ddplaunch itself, which are never skipped.
  void push(int stream, bool ours, std::string_view lines);
  /// Adds many lines of workers: takes them and leaves an empty string.
  void hand_over(int stream, std::string& lines);
  /// Sets the live rows of one stream; the latest call wins. Requires a view.
  void show(int stream, std::vector<LiveRow> rows);
  /// Writes what is queued, removes the live rows from the screen, and waits for both, `limit` at most. Then
  /// a terminal gets nothing before `away` is false, or the end.
  void suspend(bool away, std::chrono::milliseconds limit);
  bool full() const;
  bool flush(int stream, std::chrono::milliseconds limit);
  int broken(int stream) const;
  /// Returns how long the current write has waited; 0: no write is in progress.
  Clock::duration stuck() const;
  void finish();  ///< the thread ends when all is written
  void join();
  void abandon();  ///< the thread ends as soon as it can, without writing the rest

 private:
  ConsoleLane(Target target, ConsolePolicy policy, asio::any_io_executor loop, std::function<void()> drained);
  void run();
  bool wait_for_work(std::unique_lock<std::mutex>& lock);
  Clock::time_point due() const;
  void write_next(std::unique_lock<std::mutex>& lock);
  void wake(std::unique_lock<std::mutex>& lock);
  void write_now(int stream, std::string& lines);
  int write_segment(const ConsoleQueue::Segment& segment, const std::vector<LiveRow>& rows);
  std::vector<LiveRow> rows_to_show() const;

  const Target target_;
  asio::any_io_executor loop_;
  const std::function<void()> drained_;
  TerminalView view_;  ///< used only by the thread

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable written_;
  ConsoleQueue queue_;
  std::array<std::vector<LiveRow>, 2> rows_;
  std::array<int, 2> broken_{};  ///< errno of the first failed write
  Clock::time_point drawn_;      ///< time of the last write
  Clock::time_point writing_since_;
  bool direct_;  ///< `fd` supports RWF_NOWAIT: the loop may write
  bool writing_ = false;
  bool rows_changed_ = false;
  bool rows_on_screen_ = false;
  bool away_ = false;  ///< no rows
  bool held_ = false;  ///< no lines either
  bool was_full_ = false;
  bool closing_ = false;
  bool abandoned_ = false;
  std::thread thread_;
};

/// The user's stdout and stderr. Threads write them, so that a slow terminal or a full pipe never stops the
/// loop. If both are one terminal or file, they keep their common order; otherwise neither waits for the
/// other. The descriptors keep their mode (blocking: they may be shared). After a failed write a stream
/// discards what follows. The policy decides what a slow output does (docs/users/output.md): it becomes full,
/// or it skips lines and reports their number. Calls come from the loop thread; `drained` is posted to the
/// loop.
class Console {
 public:
  /// `drained` is called when a full output has room again.
  Console(asio::any_io_executor loop, std::function<void()> drained,
          ConsolePolicy policy = ConsolePolicy::kAuto, int out = 1, int err = 2);
  ~Console();  ///< waits like close()
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Adds ddplaunch's own lines, whole ones, to stream 1 or 2. Lines of the workers are
  /// dropped first (ConsoleQueue). Never blocks, except for a moment after use_terminal().
  void write(int stream, std::string_view lines);
  /// Adds lines of the workers. Never blocks; the caller must respect `full()`.
  void add(int stream, std::string_view lines) { lane_of(stream).push(stream, false, lines); }
  /// Does the same for many lines: takes them and leaves an empty string.
  void hand_over(int stream, std::string& lines) { lane_of(stream).hand_over(stream, lines); }
  /// Sets the live rows below the lines of `stream`; the latest call wins. Requires shows_rows().
  void show(int stream, std::vector<LiveRow> rows) { lane_of(stream).show(stream, std::move(rows)); }
  bool shows_rows(int stream) const { return lane_of(stream).target().has_view; }
  bool is_terminal(int stream) const { return lane_of(stream).target().is_terminal; }

  /// True when too much output waits for `stream`, or for any stream. The caller must then hold its sources
  /// back.
  bool full(int stream) const { return lane_of(stream).full(); }
  bool full() const;
  /// Call it about once a second. It warns the user when a reader has blocked the workers for long.
  void watch();
  /// On Ctrl-Z, removes the live rows from the screen (waits a moment for this); resume() shows them again.
  void suspend();
  void resume();

  /// Waits until `stream` has written all its output, `limit` at most. Returns true if it has.
  bool flush(int stream, std::chrono::milliseconds limit);
  /// Returns the errno of the first failed write of `stream`, 0 if none: EPIPE when its reader has gone.
  int broken(int stream) const { return lane_of(stream).broken(stream); }
  /// Call it after a Ctrl-C and when the job has ended. If nothing reads the pipe of stderr any more,
  /// ddplaunch's own lines for stderr go to the user's terminal from now on, provided that this process is in
  /// its foreground. Returns whether they do. The usual case is `2>&1 | tee log` after a Ctrl-C, which also
  /// ends tee.
  bool use_terminal();
  bool uses_terminal() const { return static_cast<bool>(terminal_); }
  /// Waits until all is written, however long the readers take. May be called twice.
  void close();
  /// Ends without writing the rest; its thread may stay in a write forever.
  void abandon();

  asio::any_io_executor loop() const { return loop_; }

 private:
  ConsoleLane& lane_of(int stream) const { return *lanes_[stream == 2 && lanes_.size() == 2 ? 1 : 0]; }
  void report_blocked(std::size_t lane);

  asio::any_io_executor loop_;
  std::vector<std::shared_ptr<ConsoleLane>> lanes_;
  UniqueFd terminal_;      ///< the user's terminal after use_terminal(); empty: stderr is used
  bool reported_ = false;  ///< the blocking reader was reported
  bool flushing_ = false;  ///< no more output will come
};

/// Returns the reader of the pipe behind `fd`, as "less (pid 4711)". This is the first other process of this
/// user that has the read end. Returns an empty text if `fd` is no pipe or no reader is visible. Walks /proc,
/// so call it rarely.
std::string pipe_reader(int fd);

}  // namespace ddp::launcher
