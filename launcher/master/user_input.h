#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/asio.h"
#include "rendezvous/link/connection.h"

/// The user's signals to the process that owns the job, and the user's input to rank 0.
namespace ddp::launcher {

/// Adds the `numbers` that are not ignored. nohup and background jobs of shells ignore signals on purpose,
/// and a handler would undo that.
void add_signals(asio::signal_set& set, std::initializer_list<int> numbers);

/// Returns who sent the last signal `number` of a set: "bash (pid 77 of user ann)". A SIGTERM inside a job of
/// a scheduler is probably the scheduler's. Empty: the terminal, or nobody knows.
std::string signal_sender(int number);

/// Splits this process in two if a shell with job control has started it on a terminal, so that Ctrl-Z does
/// not stop the master: its connections would time out, and its nodes would lose it. Call it before the first
/// thread starts. It returns in the child, which is the master, or without a split.
///
/// The parent is the process that the shell knows, and never returns. It passes on the signals that come to
/// it and not to the master as well (count_signal), is stopped while the master is and by
/// stop_job_control_parent(), and ends as the master ends. If it is killed, so is the master.
/// `forget_secrets` runs in it.
void split_for_job_control(const std::function<void()>& forget_secrets);
/// The master calls it for each signal that it gets.
void count_signal(int number);

/// The other functions do nothing without it.
bool has_job_control_parent();
void stop_job_control_parent();
void continue_job_control_parent();

/// Makes SIGINT, SIGTERM and SIGHUP end the process at once, since nothing is left to stop. The exit code is
/// the report's, and `last_line` (empty: none) goes to stderr if there is room. May be called again with a
/// line. Replaces the handlers of Asio, whose loop has ended.
void end_at_signals_with(int code, std::string_view last_line);

/// Makes `set` wait for SIGINT, SIGTERM and SIGHUP after end_at_signals_with, unless they were ignored.
void catch_signals_again(asio::signal_set& set);

/// Blocks SIGINT, SIGTERM and SIGHUP for the remaining steps. Asio restores their default actions when it is
/// destroyed, which would end the process with another code.
void keep_signals_waiting();

/// Feeds the launcher's stdin to rank 0. It reads only as far as rank 0 takes the data, and sends it to that
/// rank's node. It reads a terminal in the foreground only. A file is left at the first byte that rank 0 did
/// not read, as the next program of a shell's loop expects. Loop thread; the owner keeps it alive until the
/// task of run() has ended.
class StdinFeed {
 public:
  explicit StdinFeed(asio::any_io_executor loop);

  /// Runs until stdin ends, `link` closes, or stop() is called. `warn` gets a line for the user. A new
  /// attempt of the job continues where the last one stopped reading.
  Awaitable<> run(rendezvous::Connection& link, std::function<void(const std::string&)> warn);
  /// Rank 0 took some bytes of what was sent, or has ended.
  void taken(const rendezvous::StdinTaken& taken);
  void stop();

 private:
  void leave_file();

  asio::posix::stream_descriptor stdin_;
  asio::steady_timer room_;   ///< cancelled when the window has grown
  asio::steady_timer front_;  ///< until the next check for the foreground
  static constexpr std::size_t kWindow = 64u << 10;
  std::optional<off_t> start_;  ///< where the file was at the start; empty: stdin cannot be rewound
  std::uint64_t sent_ = 0;
  std::optional<std::uint64_t> read_;  ///< bytes that the last ended rank 0 and those before it have read
  std::size_t window_ = kWindow;       ///< bytes that rank 0's node takes before it acknowledges
  bool stopped_ = false;
};

}  // namespace ddp::launcher
