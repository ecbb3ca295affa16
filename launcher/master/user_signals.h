#pragma once

#include <initializer_list>
#include <string_view>

#include "base/asio.h"

/// The user's signals to the process that owns the job.
namespace ddp::launcher {

/// Adds the `numbers` that are not ignored. nohup and background jobs of shells ignore signals on purpose,
/// and a handler would undo that.
void add_signals(asio::signal_set& set, std::initializer_list<int> numbers);

/// True if a parent would continue the launcher after a stop. This needs a parent in the same session,
/// outside the process group, such as a shell with job control. Otherwise the group is orphaned (setsid, `ssh
/// -t HOST ddplaunch`, a container). The kernel would then ignore Ctrl-Z, but not the launcher's own SIGSTOP.
bool can_be_continued();

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
