#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/asio.h"
#include "launcher/job/output_options.h"
#include "launcher/lines/console_queue.h"
#include "launcher/lines/terminal_view.h"

namespace ddp::launcher {

/// One output of the console, which may be stdout and stderr at once, with its queue and the thread that
/// writes it. Any thread but its own may call; shared with the thread, which outlives the owner when its
/// write never returns.
class ConsoleLane : public std::enable_shared_from_this<ConsoleLane> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Target {
    std::array<int, 2> fds;  ///< of stream 1 and 2; the same one when the lane is for one stream only
    bool is_terminal;
    bool has_view;  ///< it is a terminal that knows how to move its cursor
  };

  /// `drained` is posted to `loop` when the queue has fallen below kLow after it was full.
  static std::shared_ptr<ConsoleLane> start(Target target, ConsolePolicy policy, asio::any_io_executor loop,
                                            std::function<void()> drained);

  const Target& target() const { return target_; }
  /// Never blocks. `ours`: words that are never skipped.
  void push(int stream, bool ours, std::string_view lines);
  /// Lines of the workers, much at once: takes them, leaves an empty string.
  void hand_over(int stream, std::string& lines);
  /// The live rows of one stream from now on; the latest wins. Only where there is a view.
  void show(int stream, std::vector<LiveRow> rows);
  /// Takes the live rows off the screen, or brings them back; waits until it is done, `limit` at most.
  void suspend(bool away, std::chrono::milliseconds limit);
  bool full() const;
  bool flush(int stream, std::chrono::milliseconds limit);
  int broken(int stream) const;
  /// For how long its present write has waited; 0: it writes nothing.
  Clock::duration stuck() const;
  void finish();  ///< its thread ends when all is written
  void join();
  void abandon();  ///< its thread ends as soon as it can, with what is unwritten

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
  TerminalView view_;  ///< the thread's alone

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable written_;
  ConsoleQueue queue_;
  std::array<std::vector<LiveRow>, 2> rows_;
  std::array<int, 2> broken_{};  ///< errno of the first failed write
  Clock::time_point drawn_;      ///< when it last wrote
  Clock::time_point writing_since_;
  bool direct_;  ///< `fd` can be told not to wait: the loop may write
  bool writing_ = false;
  bool rows_changed_ = false;
  bool rows_on_screen_ = false;
  bool away_ = false;
  bool was_full_ = false;
  bool closing_ = false;
  bool abandoned_ = false;
  std::thread thread_;
};

}  // namespace ddp::launcher
