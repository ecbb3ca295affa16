#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "remote/start/fan_out.h"
#include "remote/transports/transport.h"

namespace ddp::remote::test {

/// The results of a command, received through a Channel.
struct Ran {
  Result<> opened = Error{ErrorCode::kInternal, "not run", 0};
  std::string address;
  std::string out;
  std::string errors;
  ChannelEnd end;
};

/// Runs one command to its end: writes `input`, closes the link's write side, reads both streams and awaits
/// end(). Blocks while it runs `loop`. The test fails if this takes longer than `limit`.
Ran run_command(asio::io_context& loop, Transport& transport, const Host& host, std::vector<std::string> argv,
                std::string input = {}, std::chrono::milliseconds limit = std::chrono::seconds(20));

Host host_named(const std::string& name);

/// Bytes that do not repeat.
std::string mebibyte();

using Outcomes = std::map<std::size_t, Result<StartedAgent>>;

/// Runs a fan-out to its end. The channels in `outcomes` must not outlive it. `at_outcome` is called at each
/// outcome.
void run_fan_out(
    asio::io_context& loop, FanOut& fan_out, std::vector<Host> hosts, Outcomes& outcomes,
    const std::function<void()>& at_outcome = [] {});

/// These functions return the numbers of this process's open descriptors and children, including zombies.
/// Numbers that differ before and after a test case show a leak.
std::size_t open_descriptors();
std::size_t children();
/// Runs the loop until this process has no child, at most for 25 s.
void let_children_end(asio::io_context& loop);

}  // namespace ddp::remote::test
