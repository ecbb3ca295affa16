// Hosts that ask for the agent in every wrong way: the fan-out against scripts that play such a host.
#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <string>

#include "base/sha256.h"
#include "remote/fan_out.h"
#include "remote/local_shell.h"
#include "tests/ssh/channel_io.h"
#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::remote;
using namespace ddp::remote::test;

namespace {

/// A directory whose ddplaunchd is this test's own program: it is large, and has a build id.
class Stock {
 public:
  Stock() {
    REQUIRE(::mkdtemp(directory_) != nullptr);
    REQUIRE(::symlink("/proc/self/exe", (std::string(directory_) + "/ddplaunchd").c_str()) == 0);
  }
  ~Stock() {
    ::unlink((std::string(directory_) + "/ddplaunchd").c_str());
    ::rmdir(directory_);
  }
  Stock(const Stock&) = delete;
  Stock& operator=(const Stock&) = delete;
  AgentStock make() const { return AgentStock({directory_, {1, "0.1.0"}, false}); }
  std::string directory() const { return directory_; }

 private:
  char directory_[32] = "/tmp/ddplaunch-stock-XXXXXX";
};

/// What FanOut reports of a host whose wrapper is this shell line, which ignores the command behind it.
Result<StartedAgent> start(asio::io_context& loop, AgentStock& stock, const std::string& line,
                           std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  LocalShell shell(loop.get_executor());
  FanOutOptions options;
  options.argv = {"/opt/ddplaunchd", "--stdio"};
  options.deadline = std::chrono::steady_clock::now() + limit;
  options.expected = AgentHello{1, "0.1.0"};
  options.stock = &stock;
  FanOut fan_out(loop.get_executor(), shell, shell, options);
  Host host = host_named("box");
  host.wrapper = {"/bin/sh", "-c", line};
  std::optional<Result<StartedAgent>> reported;
  bool returned = false;
  asio::co_spawn(loop,
                 fan_out.run({host},
                             [&reported](std::size_t, Result<StartedAgent> outcome) {
                               reported.emplace(std::move(outcome));
                             }),
                 [&returned](std::exception_ptr broken) {
                   if (broken) std::rethrow_exception(broken);
                   returned = true;
                 });
  loop.restart();
  while (!returned)
    loop.run_one();
  return std::move(*reported);
}

void let_children_end(asio::io_context& loop) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (children() > 0 && std::chrono::steady_clock::now() < limit) {
    loop.restart();
    loop.run_one_for(std::chrono::milliseconds(100));
  }
  CHECK(children() == 0);
}

const std::string kAsk = "echo \"ddplaunchd-need $(uname -m) 127\"; read -r n; head -c $n >/dev/null; ";

}  // namespace

TEST_CASE("the file arrives whole, and what the agent says behind it") {
  Stock files;
  AgentStock stock = files.make();
  const auto set = stock.set_for("x86_64");
  if (!set) return;  // another machine: there is nothing to send
  const PushedFile& file = (*set)->files.at(0);
  CHECK(file.sha256 == sha256_hex((*set)->bytes.at(0)));
  asio::io_context loop(1);
  const std::string size = std::to_string(file.size);
  auto outcome = start(loop, stock,
                       kAsk + "echo ddplaunchd-send 0; s=$(head -c " + size +
                           " | sha256sum); [ \"${s%% *}\" = " + file.sha256 +
                           " ] && printf 'ddplaunchd-hello 1 0.1.0\\nFRAME'; exec cat >/dev/null");
  REQUIRE(outcome.has_value());
  CHECK(outcome->pushed == file.size);
  CHECK(std::string("FRAME").starts_with(outcome->first_bytes));
  outcome->channel.reset();
  let_children_end(loop);
}

TEST_CASE("hosts that ask wrongly are told of, and nothing is left") {
  Stock files;
  AgentStock stock = files.make();
  const auto text_of = [&](const std::string& line) {
    asio::io_context loop(1);
    const auto outcome = start(loop, stock, line);
    REQUIRE(outcome.has_error());
    let_children_end(loop);
    return outcome.error().text;
  };
  const std::string advice = "; install the same version there or name it with --agent PATH";
  const auto descriptors = open_descriptors();
  CHECK(text_of("echo ddplaunchd-need vax 127; exec cat") ==
        "box: it has no ddplaunchd that fits, and there is none here for a machine of kind vax" + advice);
  CHECK(text_of(kAsk + "echo ddplaunchd-send 1; exec cat") ==
        "box: the greeting of /opt/ddplaunchd cannot be read: \"ddplaunchd-send 1\"" + advice);
  CHECK(text_of("echo ddplaunchd-send 0; exec cat") ==
        "box: the greeting of /opt/ddplaunchd cannot be read: \"ddplaunchd-send 0\"" + advice);
  // Each of the next ends while the file is being sent.
  CHECK(text_of(kAsk +
                "echo ddplaunchd-send 0; head -c 1 >/dev/null; echo ddplaunchd-fail disk; exec sleep 1") ==
        "box: ddplaunchd is not there and cannot be put there: disk" + advice);
  CHECK(text_of(kAsk + "echo ddplaunchd-send 0; echo why >&2; exit 3") ==
        "box: /opt/ddplaunchd ended with exit status 3 before its greeting; its last lines:\n  why");
  CHECK(text_of(kAsk + "echo ddplaunchd-send 0; exec 0</dev/null; echo x; exit 4") ==
        "box: /opt/ddplaunchd ended with exit status 4 before its greeting; its last lines:\n  x");
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("a host that stops reading is given up at the deadline") {
  Stock files;
  AgentStock stock = files.make();
  if (!stock.set_for("x86_64")) return;
  asio::io_context loop(1);
  const auto outcome =
      start(loop, stock, kAsk + "echo ddplaunchd-send 0; exec sleep 3", std::chrono::seconds(1));
  REQUIRE(outcome.has_error());
  CHECK(outcome.error().code == ErrorCode::kTimeout);
  let_children_end(loop);
}

TEST_CASE("an installed agent of the same version runs where none can be pushed") {
  Stock files;
  AgentStock stock = files.make();
  asio::io_context loop(1);
  auto outcome =
      start(loop, stock,
            "echo ddplaunchd-need vax 3; read -r n; s=$(head -c $n); [ \"$s\" = 'exec \"$0\" --stdio' ] && "
            "printf 'ddplaunchd-hello 1 0.1.0\\n'; exec cat >/dev/null");
  REQUIRE(outcome.has_value());
  CHECK(outcome->pushed == 0);
  outcome->channel.reset();
  let_children_end(loop);
}
