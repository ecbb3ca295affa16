#pragma once

#include <initializer_list>

#include "base/asio.h"

/// The user's signals to the process that owns the job.
namespace ddp::launcher {

/// Adds those of `numbers` that are not ignored: nohup and shells' background jobs ignore signals on purpose,
/// and a handler of ours would undo that.
void add_signals(asio::signal_set& set, std::initializer_list<int> numbers);

/// From here on SIGINT, SIGTERM and SIGHUP end the process at once, for nothing runs any more that would have
/// to be stopped; but with the code that the report has told. Stands in front of the handlers of Asio, whose
/// loop has ended.
void end_at_signals_with(int code);

/// For the little that is left to do after that: Asio gives the signals back when it goes, to what would be
/// another code.
void keep_signals_waiting();

}  // namespace ddp::launcher
