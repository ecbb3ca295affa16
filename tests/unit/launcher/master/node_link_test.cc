#include "launcher/master/node_link.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/keeper/keeper.h"
#include "launcher/master/master_links.h"
#include "remote/transports/command_transport.h"
#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"
#include "tests/support/run_until.h"

namespace ddp::launcher {
namespace {

/// A channel whose command has ended with `status`.
class EndedChannel final : public remote::Channel {
 public:
  EndedChannel(asio::io_context& loop, int status) : socket_(loop), status_(status) {}
  Socket& socket() override { return socket_; }
  Socket& errors() override { return socket_; }
  Awaitable<remote::ChannelEnd> end() override {
    remote::ChannelEnd end;
    end.status = status_;
    co_return end;
  }

 private:
  Socket socket_;
  int status_;
};

NodeLink::LinkEnd end_of_link(int status, const std::string& errors) {
  asio::io_context loop;
  NodeLink node(0, loop.get_executor(), "gpu07");
  remote::StartedAgent agent;
  agent.channel = std::make_unique<EndedChannel>(loop, status);
  node.open(std::move(agent));
  (void)node.error_lines(errors);
  NodeLink::LinkEnd end;
  asio::co_spawn(loop, node.explain_end(Error{ErrorCode::kLinkLost, "the link was closed", 0}),
                 [&end](const std::exception_ptr&, NodeLink::LinkEnd said) { end = std::move(said); });
  loop.run();
  return end;
}

TEST_CASE("a keeper's exit code proves that the workers are dead, unless it reports remaining processes") {
  for (const int status : {0, 110, 113, 117}) {
    CAPTURE(status);
    CHECK(end_of_link(status, "").workers_dead);
  }
  for (const int status : {1, 143, 255}) {
    CAPTURE(status);
    CHECK(!end_of_link(status, "").workers_dead);
  }
  const NodeLink::LinkEnd left =
      end_of_link(kExitProcessesLeft,
                  "ddplaunchd keeper: the agent was killed by SIGKILL; killed 2 leftover "
                  "processes\nother words\nddplaunchd keeper: could not kill process 7 "
                  "(python3, state D, uid 0)\n");
  CHECK(!left.workers_dead);
  CHECK(left.why.text ==
        "the agent was killed by SIGKILL; killed 2 leftover processes; could not kill process 7 (python3, "
        "state D, uid 0)");
}

TEST_CASE("an endless stderr is shown up to a limit, followed by one notice") {
  asio::io_context loop;
  NodeLink node(0, loop.get_executor(), "gpu07");
  const std::string piece = std::string(4095, 'x') + "\nunfinished";
  std::string shown;
  for (int i = 0; i < 1'000; ++i)
    shown += node.error_lines(piece);
  shown += node.error_lines("");
  CHECK(shown.size() < NodeLink::kMostErrors + 10'000);
  CHECK(shown.starts_with("gpu07: xxx"));
  CHECK(shown.ends_with(
      "\ngpu07: unfinished\nddplaunch: warning: gpu07: more than 64 KiB on the stderr of its agent "
      "(or of ssh); the rest is dropped\n"));
}

TEST_CASE("a short stderr is shown completely, including its last line") {
  asio::io_context loop;
  NodeLink node(0, loop.get_executor(), "gpu07");
  CHECK(node.error_lines("one\ntw") == "gpu07: one\n");
  CHECK(node.error_lines("o") == "");
  CHECK(node.error_lines("") == "gpu07: two\n");
}

using rendezvous::Output;

TEST_CASE("output credit is counted and returned per stream, for any amount") {
  NodeLimits limits;
  const std::string bytes(8u << 20, 'x');
  CHECK(limits.admit(Output{0, 0, 1, 0, bytes.substr(0, 100)}).has_value());
  CHECK(limits.admit(Output{0, 0, 2, 0, bytes.substr(0, 60)}).has_value());
  CHECK(limits.admit(Output{0, 0, 1, 0, ""}).has_value());  // end of the stream
  CHECK(limits.taken(1) == 100);
  CHECK(limits.give_back(1) == 100);
  CHECK(limits.taken(1) == 0);
  CHECK(limits.taken(2) == 60);
  // A window is 1 MiB at most; these bytes are more than one message can give back.
  for (int i = 0; i < 513; ++i)
    REQUIRE(limits.admit(Output{0, 0, 1, 0, bytes}).has_value());
  CHECK(limits.give_back(1) == 0xFFFFFFFFu);
  CHECK(limits.give_back(1) == 1u + (8u << 20));
  CHECK(limits.taken(1) == 0);
  for (const std::uint8_t stream : {std::uint8_t{0}, std::uint8_t{3}})
    CHECK(limits.admit(Output{0, 0, stream, 0, "x"}).error().text == "it sent output of an unknown stream");
}

TEST_CASE("hang diagnostics are limited per attempt") {
  NodeLimits limits;
  rendezvous::Inspection inspection;
  inspection.text.assign(NodeLimits::kInspected / 2, 'x');
  CHECK(limits.admit(inspection).has_value());
  CHECK_FALSE(limits.admit(inspection).has_value());
  inspection.attempt = 1;
  CHECK(limits.admit(inspection).has_value());
  // Attempts must not alternate, for then the sizes would have no bound.
  inspection.attempt = 0;
  inspection.text.clear();
  CHECK_FALSE(limits.admit(inspection).has_value());
}

TEST_CASE("each inspection has the whole room, and what the last one told is given back") {
  using Admission = NodeLimits::Admission;
  NodeLimits limits(500);
  rendezvous::Inspection inspection;
  inspection.text.assign(NodeLimits::kInspected / 2, 'x');
  rendezvous::WorkerCollectives dump;
  dump.log.assign(limits.kept_limit() / 2, 'x');
  for (int i = 0; i < 5; ++i) {
    limits.begin_inspection();
    CHECK(limits.admit(inspection).has_value());
    CHECK(*limits.admit(dump) == Admission::kTake);
  }
  CHECK_FALSE(limits.admit(inspection).has_value());
}

TEST_CASE("reports of workers are limited by their number and their texts") {
  NodeLimits limits;
  rendezvous::WorkerExited exited;
  exited.text.assign(1u << 20, 'x');
  std::size_t taken = 0;
  for (; limits.admit(exited).has_value(); ++exited.attempt)
    taken += exited.text.size();
  CHECK(taken <= NodeLimits::kWorkerUpdates);
  CHECK(taken > NodeLimits::kWorkerUpdates / 2);
  CHECK(limits.admit(rendezvous::WorkerStarted{}).error().text ==
        "it reported more starts and ends of workers than allowed");
}

TEST_CASE("evidence of an attempt beyond the node's share is cut, and dumps are dropped") {
  using Admission = NodeLimits::Admission;
  NodeLimits limits(500);
  CHECK(limits.kept_limit() == NodeLimits::kKeptOfAll / 500);
  CHECK(NodeLimits(100'000).kept_limit() == NodeLimits::kKeptAtLeast);
  CHECK(NodeLimits(1).kept_limit() == NodeLimits::kKeptAtMost);
  rendezvous::WorkerEvidence evidence;
  evidence.error_json.assign(60u << 10, 'x');
  rendezvous::WorkerCollectives dump;
  dump.log.assign(60u << 10, 'x');
  CHECK(*limits.admit(evidence) == Admission::kTake);
  CHECK(*limits.admit(dump) == Admission::kTake);
  CHECK(*limits.admit(dump) == Admission::kDropFirst);
  CHECK(*limits.admit(dump) == Admission::kDrop);
  CHECK(*limits.admit(evidence) == Admission::kCut);
  evidence.oom = "oom";
  rendezvous::Message cut_message = evidence;
  NodeLimits::cut(cut_message);
  const auto& cut = std::get<rendezvous::WorkerEvidence>(cut_message);
  CHECK(cut.oom == "oom");
  CHECK(cut.error_json == evidence.error_json.substr(0, 2u << 10));
  CHECK(*limits.admit(rendezvous::WorkerExited{}) == Admission::kTake);
  rendezvous::WorkerExited exited;
  exited.text.assign(60u << 10, 'x');
  CHECK(*limits.admit(exited) == Admission::kCut);  // an end is never dropped
  cut_message = exited;
  NodeLimits::cut(cut_message);
  CHECK(std::get<rendezvous::WorkerExited>(cut_message).text == std::string(256, 'x'));
  dump.attempt = 1;
  CHECK(*limits.admit(dump) == Admission::kTake);
  CHECK(*limits.admit(evidence) == Admission::kCut);  // of the attempt before
}

TEST_CASE("a hello names no more processors than a machine has") {
  NodeLimits limits;
  rendezvous::Hello hello;
  hello.workers = hello.gpus = NodeLimits::kWorkers;
  hello.cpus = NodeLimits::kCpus;
  CHECK(limits.admit(hello).has_value());
  ++hello.workers;
  CHECK_FALSE(limits.admit(hello).has_value());
  hello.workers = 0;
  ++hello.gpus;
  CHECK_FALSE(limits.admit(hello).has_value());
}

TEST_CASE("a node that rejoins repeatedly has one limit of notices and starts") {
  NodeLimits limits;
  for (std::size_t i = 0; i < NodeLimits::kNotices; ++i)
    REQUIRE(limits.notice() == NodeLimits::NoticeDecision::kYes);
  CHECK(limits.admit(Output{0, 0, 1, 0, "x"}).has_value());
  limits.begin_incarnation();
  CHECK(limits.taken(1) == 0);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kLast);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kNo);
}

TEST_CASE("a hello has a limit in bytes") {
  NodeLimits limits;
  rendezvous::Hello hello;
  hello.interfaces.resize(rendezvous::kMaxInterfaces);
  CHECK(limits.admit(hello).has_value());
  hello.interfaces[0].name.assign(NodeLimits::kKeptAtLeast, 'x');
  CHECK_FALSE(limits.admit(hello).has_value());
}

using namespace std::chrono_literals;

TEST_CASE("the shortest round trip gives the offset, with an error of half the round trip") {
  ClockOffset clock;
  CHECK(clock.error(0s) == 1s);
  clock.guess(10s, 12s);
  CHECK(clock.to_ours(13s) == 11s);
  CHECK(clock.error(10s) == 1s);
  // The node is 2 s ahead; this message was delayed for 9 ms on its way back.
  clock.sample(10s, 10s + 10ms, 12s + 1ms);
  CHECK(clock.error(10s + 10ms) == 5ms);
  CHECK(clock.to_ours(13s) == 11s + 4ms);
  clock.sample(11s, 11s + 200us, 13s + 100us);
  CHECK(clock.error(11s + 200us) == 100us);
  CHECK(clock.to_ours(14s) == 12s);
  // A longer round trip shortly afterwards adds nothing, and neither does a guess.
  clock.sample(12s, 12s + 10ms, 14s + 1ms);
  clock.guess(12s, 20s);
  CHECK(clock.to_ours(14s) == 12s);
}

TEST_CASE("a sample gets worse with age until a newer one is better") {
  ClockOffset clock;
  clock.sample(0s, 200us, 100us);
  CHECK(clock.error(200us) == 100us);
  CHECK(clock.error(10s + 200us) == 100us + 1ms);
  // 10 s later, a round trip of 2 ms is better than the old one, which may be off by 1.1 ms.
  clock.sample(10s, 10s + 2ms, 11s + 1ms);
  CHECK(clock.error(10s + 2ms) == 1ms);
  CHECK(clock.to_ours(11s) == 10s);
}

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
      : node(loop), socket_(loop), errors_(loop), port_(port) {
    auto pair = remote::make_socket_pair(SOCK_NONBLOCK);
    REQUIRE(pair.has_value());
    socket_.assign(asio::local::stream_protocol(), pair->ours.release());
    node.assign(asio::local::stream_protocol(), pair->theirs.release());
    std::string hello = remote::hello_line({1, "1"});
    rendezvous::append_frame(rendezvous::Hello{}, hello);
    asio::write(node, asio::buffer(hello));
  }
  std::string address() const override { return "127.0.0.1"; }
  std::uint16_t port() const override { return port_; }
  Socket& socket() override { return socket_; }
  Socket& errors() override { return errors_; }
  Awaitable<remote::ChannelEnd> end() override { co_return remote::ChannelEnd{}; }

  Socket node;

 private:
  Socket socket_;
  Socket errors_;
  std::uint16_t port_;
};

class FakeTransport final : public remote::Transport {
 public:
  FakeTransport(asio::io_context& loop, std::uint16_t port) : loop_(loop), port_(port) {}
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
  Result<> on_message(NodeLink&, const rendezvous::Message&) override {
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
  FakeTransport transport(loop, port.number);
  remote::Host host;
  host.name = "gpu01";
  Events events;
  const std::vector<remote::Host> hosts{host};
  MasterLinks links(loop, hosts, 1, transport, transport, {.argv = {"ddplaunchd"}}, events);
  links.start_all(10s);
  const auto run_until = [&loop](const auto& over) { return test::run_until(loop, over); };
  REQUIRE(run_until([&] { return events.hellos == 1; }));
  bool silent = false;
  spawn(loop.get_executor(), answer_pings(transport.channel->node, silent));
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
