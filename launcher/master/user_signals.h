#pragma once

#include <sys/types.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/asio.h"

/// The user's signals to the process that owns the job.
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
/// stop_shells_process(), and ends as the master ends. If it is killed, so is the master. `forget_secrets`
/// runs in it.
void part_from_shell(const std::function<void()>& forget_secrets);
/// The master calls it for each signal that it gets.
void count_signal(int number);

/// The other functions do nothing without it.
bool has_shells_process();
void stop_shells_process();
void continue_shells_process();

/// Makes SIGINT, SIGTERM and SIGHUP end the process at once, since nothing is left to stop. The exit code is
/// the report's, and `last_line` (empty: none) goes to stderr if there is room. May be called again with a
/// line. Replaces the handlers of Asio, whose loop has ended.
void end_at_signals_with(int code, std::string_view last_line);

/// Makes `set` wait for SIGINT, SIGTERM and SIGHUP after end_at_signals_with, unless they were ignored.
void take_back_signals(asio::signal_set& set);

/// Blocks SIGINT, SIGTERM and SIGHUP for the remaining steps. Asio restores their default actions when it is
/// destroyed, which would end the process with another code.
void keep_signals_waiting();

}  // namespace ddp::launcher
