#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "remote/shells/remote_shell.h"

namespace ddp::remote::test {

/// What a command did, seen through a Channel.
struct Ran {
  Result<> opened = Error{ErrorCode::kInternal, "not run", 0};
  std::string address;
  std::string out;
  std::string errors;
  ChannelEnd end;
};

/// Runs one command to its end: writes `input` and closes the link's write side, reads both streams, awaits
/// end(). Blocks; drives `loop` itself. Fails the test when it takes longer than `limit`.
Ran run_command(asio::io_context& loop, RemoteShell& shell, const Host& host, std::vector<std::string> argv,
                std::string input = {}, std::chrono::milliseconds limit = std::chrono::seconds(20));

Host host_named(const std::string& name);

/// Numbers of open descriptors and of children (zombies too) of this process: equal before and after, or
/// something leaks.
std::size_t open_descriptors();
std::size_t children();

}  // namespace ddp::remote::test
