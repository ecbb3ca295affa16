#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/unique_fd.h"
#include "launcher/job/job_spec.h"
#include "launcher/output/console_lane.h"

namespace ddp::launcher {

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
