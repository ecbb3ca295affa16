#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/byte_stream.h"

namespace ddp::launcher {

/// What a daemon does for one master that has proved itself, in a process of its own: starts the agent beside
/// it and carries its three streams and its end over the link, as sshd would. When the link ends first, the
/// agent sees the end of its input, stops its workers and leaves; the session ends when the agent has.
struct DaemonSessionOptions {
  std::string agent;                            ///< the path of ddplaunchd
  std::function<void(const std::string&)> log;  ///< a line, without its newline
};

/// Returns when the agent has ended and the master was told. Loop thread only.
Awaitable<> serve_daemon_session(std::unique_ptr<ByteStream> stream, DaemonSessionOptions options);

}  // namespace ddp::launcher
