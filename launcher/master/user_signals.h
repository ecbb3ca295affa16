#pragma once

#include <initializer_list>
#include <string_view>

#include "base/asio.h"

/// The user's signals to the process that owns the job.
namespace ddp::launcher {

/// Adds those of `numbers` that are not ignored: nohup and shells' background jobs ignore signals on purpose,
/// and a handler of ours would undo that.
void add_signals(asio::signal_set& set, std::initializer_list<int> numbers);

/// Whether somebody would continue us after a stop: a parent in our session, outside of our process group, as
/// a shell with job control is. Otherwise the group is orphaned (setsid, `ssh -t HOST ddplaunch`, a
/// container), and the kernel would ignore Ctrl-Z, but not a SIGSTOP of ours.
bool can_be_continued();

/// From here on SIGINT, SIGTERM and SIGHUP end the process at once, for nothing runs any more that would have
/// to be stopped; but with the code that the report has told, and `last_line` (empty: none) on stderr, if
/// there is room. May be called again with a line. Stands in front of the handlers of Asio, whose loop has
/// ended.
void end_at_signals_with(int code, std::string_view last_line);

/// For the little that is left to do after that: Asio gives the signals back when it goes, to what would be
/// another code.
void keep_signals_waiting();

}  // namespace ddp::launcher
