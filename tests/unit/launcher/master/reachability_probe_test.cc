#include "launcher/master/node_link.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/master/master_links.h"
#include "remote/shells/command_shell.h"
#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Socket = remote::Channel::Socket;

/// A port of 127.0.0.1.
struct Port {
  explicit Port(bool listens = true, int backlog = 16) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    number = ntohs(address.sin_port);
    if (listens) REQUIRE(::listen(fd.get(), backlog) == 0);
  }
  /// Returns the number of connections that were made since the last call.
  int connections() const {
    int count = 0;
    while (UniqueFd(::accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC)))
      ++count;
    return count;
  }

  UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  std::uint16_t number = 0;
};

int answers_within(ReachabilityProbe& probe, asio::io_context& loop, const std::string& address,
                   std::uint16_t port, std::chrono::milliseconds limit) {
  int answers = 0;
  probe.begin(address, port, [&answers] { ++answers; });
  loop.restart();
  loop.run_for(limit);
  probe.cancel();
  loop.restart();
  loop.poll();
  return answers;
}

TEST_CASE("an accepted connection and a refused one are answers of a kernel") {
  asio::io_context loop(1);
  ReachabilityProbe probe(loop.get_executor());
  const Port open;
  CHECK(answers_within(probe, loop, "127.0.0.1", open.number, 5s) == 1);
  CHECK(open.connections() == 1);
  const Port closed(false);
  CHECK(answers_within(probe, loop, "127.0.0.1", closed.number, 5s) == 1);
}

TEST_CASE("a probe whose packets are dropped has no answer, and keeps no descriptor") {
  asio::io_context loop(1);
  ReachabilityProbe probe(loop.get_executor());
  const Port full(true, 0);  // the kernel drops what exceeds the queue of a listener
  const auto next_descriptor = [] {
    return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)).get();
  };
  int answers = 0;
  for (int i = 0; i < 4; ++i)
    answers = answers_within(probe, loop, "127.0.0.1", full.number, 200ms);
  CHECK(answers == 0);
  CHECK(answers_within(probe, loop, "not an address", 1, 10ms) == 0);
  CHECK(next_descriptor() == next_descriptor());
}

/// A channel to an agent that says hello, and answers Pings only while `answers` is set.
class FakeChannel final : public remote::Channel {
 public:
  FakeChannel(asio::io_context& loop, std::uint16_t port)
      : node(loop), link_(loop), errors_(loop), port_(port) {
    auto pair = remote::make_socket_pair(SOCK_NONBLOCK);
    REQUIRE(pair.has_value());
    link_.assign(asio::local::stream_protocol(), pair->ours.release());
    node.assign(asio::local::stream_protocol(), pair->theirs.release());
    std::string hello = remote::hello_line({1, "1"});
    rendezvous::append_frame(rendezvous::Hello{}, hello);
    asio::write(node, asio::buffer(hello));
  }
  std::string address() const override { return "127.0.0.1"; }
  std::uint16_t port() const override { return port_; }
  Socket& link() override { return link_; }
  Socket& errors() override { return errors_; }
  Awaitable<remote::ChannelEnd> end() override { co_return remote::ChannelEnd{}; }

  Socket node;

 private:
  Socket link_;
  Socket errors_;
  std::uint16_t port_;
};

class FakeShell final : public remote::RemoteShell {
 public:
  FakeShell(asio::io_context& loop, std::uint16_t port) : loop_(loop), port_(port) {}
  Awaitable<Result<std::unique_ptr<remote::Channel>>> open(remote::Host, std::vector<std::string>,
                                                           remote::Deadline) override {
    auto made = std::make_unique<FakeChannel>(loop_, port_);
    channel = made.get();
    co_return std::unique_ptr<remote::Channel>(std::move(made));
  }
  FakeChannel* channel = nullptr;

 private:
  asio::io_context& loop_;
  std::uint16_t port_;
};

struct Events final : NodeEvents {
  void agent_started(NodeLink&, const remote::StartedAgent&) override {}
  void start_failed(std::size_t, Error why) override { FAIL(why.text); }
  Result<> take(NodeLink&, const rendezvous::Message&) override {
    ++hellos;
    return {};
  }
  void reachable(const NodeLink&) override { ++answers; }
  void agent_errors(const std::string&) override {}
  void link_gone(NodeLink&, NodeLink::LinkEnd) override {}
  int hellos = 0;
  int answers = 0;
};

/// Answers each Ping of the master, until it is told to be silent.
Awaitable<> answer_pings(Socket& node, const bool& silent) {
  std::array<char, 13> ping;  // u32 length, u8 type, u64 sequence
  for (;;) {
    const auto [error, count] = co_await asio::async_read(node, asio::buffer(ping), kUseTuple);
    if (error) co_return;
    if (silent) continue;
    const auto decoded = rendezvous::decode_payload(std::string_view(ping.data() + 4, ping.size() - 4));
    std::string pong;
    rendezvous::append_frame(
        rendezvous::Pong{.sequence = std::get<rendezvous::Ping>(*decoded).sequence, .clock_ns = 1}, pong);
    co_await asio::async_write(node, asio::buffer(pong), kUseTuple);
  }
}

TEST_CASE("a node is probed from its third missed Ping on, and a healthy one never") {
  asio::io_context loop(1);
  const Port port;
  FakeShell shell(loop, port.number);
  remote::Host host;
  host.name = "gpu01";
  Events events;
  const std::vector<remote::Host> hosts{host};
  MasterLinks links(loop, hosts, 1, shell, shell, {.argv = {"ddplaunchd"}}, events);
  links.start_all(10s);
  const auto run_until = [&loop](const auto& over) {
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (!over() && std::chrono::steady_clock::now() < limit)
      loop.run_one_for(10ms);
    return over();
  };
  REQUIRE(run_until([&] { return events.hellos == 1; }));
  bool silent = false;
  spawn(loop.get_executor(), answer_pings(shell.channel->node, silent));
  links.ping_every(20ms);
  loop.run_for(300ms);
  CHECK(port.connections() == 0);
  CHECK(links[0]->can_be_probed());
  silent = true;
  CHECK(run_until([&] { return events.answers >= 3; }));
  CHECK(port.connections() >= 3);
  links.close();
  loop.run_for(100ms);
}

}  // namespace
}  // namespace ddp::launcher
