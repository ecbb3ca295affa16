#include "remote/transports/command_transport.h"

#include <cerrno>
#include <filesystem>
#include <string>

#include "tests/ssh/channel_io.h"
#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::remote;
using namespace ddp::remote::test;

namespace {

/// An agent's program is executed by its physical path, which messages name.
const std::string kShell = std::filesystem::canonical("/bin/sh").string();

/// Runs a fan-out over local children. All hosts run the same shell line, which does not see the host's
/// index.
Outcomes start_all(asio::io_context& loop, std::size_t count, const std::string& line,
                   std::chrono::milliseconds limit, bool cancel_soon = false) {
  LocalTransport transport(loop.get_executor());
  FanOutOptions options;
  options.argv = {kShell, "-c", line};
  options.deadline = std::chrono::steady_clock::now() + limit;
  options.expected = AgentHello{1, "0.1.0"};
  FanOut fan_out(loop.get_executor(), transport, transport, options);
  std::vector<Host> hosts;
  for (std::size_t i = 0; i < count; ++i)
    hosts.push_back(host_named("node" + std::to_string(i)));
  const auto cancel = [&] {
    CHECK(fan_out.waiting().size() == count);
    fan_out.cancel();
  };
  if (cancel_soon) asio::post(loop, [&] { asio::post(loop, cancel); });  // runs after the fan-out has begun
  Outcomes outcomes;
  run_fan_out(loop, fan_out, std::move(hosts), outcomes);
  CHECK(fan_out.waiting().empty());
  return outcomes;
}

}  // namespace

TEST_CASE("a local command's input, output, stderr and exit status, and a signal as 128 and its number") {
  asio::io_context loop(1);
  LocalTransport transport(loop.get_executor());
  const auto ran = run_command(loop, transport, host_named("localhost"),
                               {"/bin/sh", "-c", "echo out; echo err >&2; cat; exit 7"}, "typed\n");
  REQUIRE(ran.opened.has_value());
  CHECK(ran.out == "out\ntyped\n");
  CHECK(ran.errors == "err\n");
  CHECK(ran.end.status == 7);
  CHECK_FALSE(ran.end.broken.has_value());
  const std::string bytes = mebibyte();
  CHECK(run_command(loop, transport, host_named("localhost"), {"/bin/cat"}, bytes).out == bytes);
  CHECK(run_command(loop, transport, host_named("localhost"), {"/bin/sh", "-c", "kill -9 $$"}).end.status ==
        137);
}

TEST_CASE("a program that does not exist is an error of open") {
  asio::io_context loop(1);
  LocalTransport transport(loop.get_executor());
  const auto ran = run_command(loop, transport, host_named("localhost"), {"/no/such/program"});
  REQUIRE_FALSE(ran.opened.has_value());
  CHECK(ran.opened.error().code == ErrorCode::kExec);
  CHECK(ran.opened.error().sys == ENOENT);
  CHECK(ran.opened.error().text ==
        "localhost: cannot execute '/no/such/program': /no/such/program: No such file or directory");
}

TEST_CASE("a dropped channel gives the command end of file, and the command is reaped") {
  const auto descriptors = open_descriptors();
  {
    asio::io_context loop(1);
    LocalTransport transport(loop.get_executor());
    bool gone = false;
    asio::co_spawn(loop, transport.open(host_named("localhost"), {"/bin/cat"}, Deadline::max()),
                   [&gone](std::exception_ptr, Result<std::unique_ptr<Channel>> channel) {
                     gone = channel.has_value();
                   });
    loop.run();  // returns when the child has been reaped
    CHECK(gone);
    CHECK(children() == 0);
  }
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("a destroyed event loop kills and reaps all running commands") {
  const auto descriptors = open_descriptors();
  {
    std::unique_ptr<Channel> kept;
    asio::io_context loop(1);
    LocalTransport transport(loop.get_executor());
    asio::co_spawn(loop, transport.open(host_named("localhost"), {"/bin/sleep", "600"}, Deadline::max()),
                   [&kept](std::exception_ptr, Result<std::unique_ptr<Channel>> channel) {
                     kept = std::move(*channel);
                   });
    while (!kept)
      REQUIRE(loop.run_one_for(std::chrono::seconds(60)) > 0);
    CHECK(children() == 1);
    kept.reset();
  }
  CHECK(children() == 0);
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("fan-out hands the channel over with the bytes that followed the greeting") {
  asio::io_context loop(1);
  auto outcomes =
      start_all(loop, 8, "echo noise; echo problem >&2; printf 'ddplaunchd-hello 1 0.1.0\\nFRAME'; exec cat",
                std::chrono::seconds(10));
  REQUIRE(outcomes.size() == 8);
  for (auto& [host, outcome] : outcomes) {
    REQUIRE(outcome.has_value());
    CHECK(outcome->hello.version == "0.1.0");
    REQUIRE(outcome->noise.size() == 1);
    CHECK(outcome->noise[0] == "noise");
    // The channel still delivers, in order, the bytes that had not arrived.
    char more[16];
    while (outcome->first_bytes.size() < 5) {
      outcome->first_bytes.append(more, outcome->channel->socket().read_some(asio::buffer(more)));
    }
    CHECK(outcome->first_bytes == "FRAME");
    while (outcome->errors.size() < 8) {
      outcome->errors.append(more, outcome->channel->errors().read_some(asio::buffer(more)));
    }
    CHECK(outcome->errors == "problem\n");
    outcome->channel.reset();
  }
  let_children_end(loop);
  CHECK(children() == 0);
}

TEST_CASE("fan-out reports each kind of failure in its own words") {
  asio::io_context loop(1);
  const auto text_of = [&loop](const std::string& line) {
    auto outcomes = start_all(loop, 1, line, std::chrono::seconds(10));
    REQUIRE_FALSE(outcomes.at(0).has_value());
    return outcomes.at(0).error().text;
  };
  CHECK(text_of("exit 127") == "node0: no ddplaunchd at " + kShell +
                                   "; install the same version there or name it with --agent PATH");
  CHECK(text_of("echo sorry >&2; exit 3") ==
        "node0: " + kShell + " ended with exit status 3 before its greeting; its last lines:\n  sorry");
  CHECK(text_of("echo 'ddplaunchd-hello 2 0.9.0'; exec cat") ==
        "node0: its ddplaunchd is version 0.9.0 (protocol 2), this ddplaunch is version 0.1.0 (protocol 1); "
        "install the "
        "same version there or name it with --agent PATH");
  let_children_end(loop);
  CHECK(children() == 0);
}

TEST_CASE("fan-out gives up silent hosts at the deadline and leaves nothing") {
  const auto descriptors = open_descriptors();
  // The time that four shells need depends on the machine. The limit grows until all of them have written.
  bool all_spoke = false;
  for (std::chrono::milliseconds limit(300); limit <= std::chrono::seconds(20) && !all_spoke; limit *= 4) {
    asio::io_context loop(1);
    auto outcomes = start_all(loop, 4, "echo starting; exec cat", limit);
    REQUIRE(outcomes.size() == 4);
    all_spoke = true;
    for (const auto& [host, outcome] : outcomes) {
      REQUIRE_FALSE(outcome.has_value());
      CHECK(outcome.error().code == ErrorCode::kTimeout);
      all_spoke =
          all_spoke && outcome.error().text == "node" + std::to_string(host) + ": no greeting of " + kShell +
                                                   " before the start limit; its last lines:\n  starting";
    }
    let_children_end(loop);
    CHECK(children() == 0);
  }
  CHECK(all_spoke);
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("fan-out can be cancelled at any time") {
  const auto descriptors = open_descriptors();
  {
    asio::io_context loop(1);
    auto outcomes = start_all(loop, 16, "exec cat", std::chrono::seconds(60), true);
    REQUIRE(outcomes.size() == 16);
    for (const auto& [host, outcome] : outcomes) {
      REQUIRE_FALSE(outcome.has_value());
      CHECK(outcome.error().code == ErrorCode::kCancelled);
    }
    let_children_end(loop);
    CHECK(children() == 0);
  }
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("more stderr than a socket holds does not stop the greeting") {
  asio::io_context loop(1);
  auto outcomes = start_all(
      loop, 2, "head -c 2000000 /dev/zero | tr '\\0' x >&2; echo 'ddplaunchd-hello 1 0.1.0'; exec cat",
      std::chrono::seconds(20));
  for (auto& [host, outcome] : outcomes) {
    REQUIRE(outcome.has_value());
    CHECK(outcome->errors.size() == 64 * 1024);
    outcome->channel.reset();
  }
  let_children_end(loop);
}
