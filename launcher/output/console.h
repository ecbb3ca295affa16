#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "launcher/job/output_options.h"
#include "launcher/output/console_lane.h"

namespace ddp::launcher {

/// The user's stdout and stderr. Writing happens on threads, so that a slow terminal or a full pipe never
/// stops the loop. Where both are one terminal or file they keep their common order; otherwise neither waits
/// for the other. The descriptors stay as the user gave them (blocking: they may be shared). A stream that
/// takes nothing any more swallows what follows. What happens when an output is slow is the policy's matter
/// (docs/output.md): it is full, or it skips lines and says how many. Calls come from the loop thread,
/// `drained` is posted to it.
class Console {
 public:
  /// `drained`: an output that was full has room again.
  Console(asio::any_io_executor loop, std::function<void()> drained,
          ConsolePolicy policy = ConsolePolicy::kAuto, int out = 1, int err = 2);
  ~Console();  ///< waits as close() does
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Words of ours, whole lines, for stream 1 or 2: never skipped. Never blocks.
  void write(int stream, std::string_view lines) { lane_of(stream).push(stream, true, lines); }
  /// Lines of the workers. Never blocks; keeping to `full()` is the caller's duty.
  void add(int stream, std::string_view lines) { lane_of(stream).push(stream, false, lines); }
  /// The same for much at once: takes the lines, leaves an empty string.
  void hand_over(int stream, std::string& lines) { lane_of(stream).hand_over(stream, lines); }
  /// What stands below the lines of `stream` from now on; the latest wins. Only where shows_rows().
  void show(int stream, std::vector<LiveRow> rows) { lane_of(stream).show(stream, std::move(rows)); }
  bool shows_rows(int stream) const { return lane_of(stream).target().has_view; }
  bool is_terminal(int stream) const { return lane_of(stream).target().is_terminal; }

  /// Too much waits for `stream`, or for any: its sources are to be held back.
  bool full(int stream) const { return lane_of(stream).full(); }
  bool full() const;
  /// To be called about once a second: tells the user when a reader has held the workers up for long.
  void watch();
  /// Ctrl-Z: the live rows leave the screen (waits a moment for that), and come back.
  void suspend();
  void resume();

  /// Waits until `stream` has taken all, `limit` at most; true when it has.
  bool flush(int stream, std::chrono::milliseconds limit);
  /// Errno of the first failed write of `stream`, 0 if none: EPIPE when its reader has gone.
  int broken(int stream) const { return lane_of(stream).broken(stream); }
  /// Waits until all is written, as long as the readers take. May be called twice.
  void close();
  /// Ends without what is still unwritten; its thread may stay in a write for ever.
  void abandon();

  asio::any_io_executor loop() const { return loop_; }

 private:
  ConsoleLane& lane_of(int stream) const { return *lanes_[stream == 2 && lanes_.size() == 2 ? 1 : 0]; }
  void report_blocked(std::size_t lane);

  asio::any_io_executor loop_;
  std::vector<std::shared_ptr<ConsoleLane>> lanes_;
  bool reported_ = false;  ///< who blocks
  bool flushing_ = false;  ///< nothing more comes
};

/// Who reads the pipe that `fd` writes into, as "less (pid 4711)": the first process of this user that has
/// its read end, other than we ourselves. Empty when `fd` is no pipe or nobody can be seen. Walks /proc, so
/// not for often.
std::string pipe_reader(int fd);

}  // namespace ddp::launcher
