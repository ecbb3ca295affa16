#pragma once

#include <memory>
#include <string>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "remote/shells/remote_shell.h"

namespace ddp::launcher {

/// The master's end of a link to a node's daemon, as a channel to the agent that the daemon starts there.
/// `host` and `where` ("gpu01:29499 (10.0.0.2)") are for messages, `address` is the node's. kSystem: out of
/// descriptors. Loop thread only. A channel that goes first tells the agent by end of file, as SSH does.
Result<std::unique_ptr<remote::Channel>> make_daemon_channel(const asio::any_io_executor& loop,
                                                             std::unique_ptr<ByteStream> stream,
                                                             std::string host, std::string where,
                                                             std::string address);

}  // namespace ddp::launcher
