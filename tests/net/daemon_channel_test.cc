// The master's end of a daemon's link, with nodes that follow the protocol or break it.
#include "launcher/links/daemon.h"

#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "launcher/links/daemon_frame.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Socket = asio::local::stream_protocol::socket;

void connect_ends_of(Socket& one, Socket& other) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  one.assign(asio::local::stream_protocol(), ends[0]);
  other.assign(asio::local::stream_protocol(), ends[1]);
}

/// A channel, and the other end of its link.
struct Link {
  asio::io_context loop{1};
  Socket node{loop};
  std::unique_ptr<remote::Channel> channel;
  std::optional<remote::ChannelEnd> end;

  Link() {
    Socket master(loop);
    connect_ends_of(master, node);
    channel = make_daemon_channel(loop.get_executor(), std::make_unique<OneSocket>(std::move(master)),
                                  "gpu01", "gpu01:29499", "10.0.0.2", 29499)
                  .value();
    asio::co_spawn(loop, wait(*this), asio::detached);  // ends with the loop
  }

  class OneSocket final : public ByteStream {
   public:
    explicit OneSocket(Socket socket) : socket_(std::move(socket)) {}
    Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override {
      co_return co_await socket_.async_read_some(buffer, kUseTuple);
    }
    Awaitable<Transferred> write_some(asio::const_buffer buffer) override {
      co_return co_await socket_.async_write_some(buffer, kUseTuple);
    }
    void close() override {
      error_code ignored;
      socket_.close(ignored);
    }

   private:
    Socket socket_;
  };

  static Awaitable<> wait(Link& link) { link.end = co_await link.channel->end(); }

  void send(const std::string& bytes) { asio::write(node, asio::buffer(bytes)); }
  void turn() {
    loop.restart();
    loop.poll();
  }
  const remote::ChannelEnd& until_end() {
    loop.restart();
    loop.run_for(5s);
    REQUIRE(end.has_value());
    return *end;
  }
  static std::string all_of(Socket& socket) {
    std::string bytes(1 << 16, '\0');
    error_code error;
    socket.non_blocking(true, error);
    bytes.resize(socket.read_some(asio::buffer(bytes), error));
    return bytes;
  }
};

TEST_CASE("the channel carries three streams and the end of the agent") {
  Link link;
  CHECK(link.channel->address() == "10.0.0.2");
  link.send(daemon_frame(DaemonFrame::kOutput, "out") + daemon_frame(DaemonFrame::kErrors, "err") +
            daemon_ended(113));
  const remote::ChannelEnd& end = link.until_end();
  CHECK(end.status == 113);
  CHECK_FALSE(end.broken);
  CHECK(Link::all_of(link.channel->socket()) == "out");
  CHECK(Link::all_of(link.channel->errors()) == "err");
  char byte = 0;
  error_code error;
  link.channel->socket().read_some(asio::buffer(&byte, 1), error);
  CHECK(error == asio::error::eof);
}

TEST_CASE("the owner's output is the agent's input, and the owner's end closes it") {
  Link link;
  asio::write(link.channel->socket(), asio::buffer("hello", 5));
  link.turn();
  CHECK(Link::all_of(link.node) == daemon_frame(DaemonFrame::kInput, "hello"));
  error_code ignored;
  link.channel->socket().shutdown(Socket::shutdown_send, ignored);
  link.turn();
  CHECK(Link::all_of(link.node) == daemon_frame(DaemonFrame::kInputEnd, {}));
  link.send(daemon_ended(0));
  CHECK(link.until_end().status == 0);
}

std::string trouble(const std::string& bytes, ErrorCode code) {
  Link link;
  link.send(bytes);
  link.node.close();
  const remote::ChannelEnd& end = link.until_end();
  CHECK_FALSE(end.status);
  REQUIRE(end.broken);
  CHECK(end.broken->code == code);
  return end.broken->text;
}

TEST_CASE("a link that the node resets has the same remedy as one that it closes") {
  Link link;
  asio::write(link.channel->socket(), asio::buffer("hello", 5));
  link.turn();
  link.node.close();  // with unread bytes, which makes it a reset
  const remote::ChannelEnd& end = link.until_end();
  REQUIRE(end.broken);
  CHECK(end.broken->text ==
        "gpu01: the link to the daemon at gpu01:29499 broke: the node closed it (Connection reset by peer); "
        "check whether the daemon's session for this job was killed");
}

TEST_CASE("a broken link is reported with the remedy") {
  CHECK(trouble("", ErrorCode::kLinkLost) ==
        "gpu01: the link to the daemon at gpu01:29499 broke: the node closed it; check whether the daemon's "
        "session for this job was killed");
  CHECK(trouble(daemon_frame(DaemonFrame::kOutput, "x"), ErrorCode::kLinkLost) ==
        "gpu01: the link to the daemon at gpu01:29499 broke: the node closed it; check whether the daemon's "
        "session for this job was killed");
  CHECK(trouble("GARBAGE", ErrorCode::kProtocol) ==
        "gpu01: the daemon there sent an unexpected frame (kind 71, size 16978)");
}

TEST_CASE("an owner that closes first ends the agent's input, and leaves no task behind") {
  asio::io_context loop(1);
  Socket node(loop);
  Socket master(loop);
  connect_ends_of(master, node);
  auto channel =
      make_daemon_channel(loop.get_executor(), std::make_unique<Link::OneSocket>(std::move(master)), "gpu01",
                          "gpu01:29499", "10.0.0.2", 29499)
          .value();
  asio::write(channel->socket(), asio::buffer("last line!", 10));
  channel.reset();
  loop.poll();
  CHECK(Link::all_of(node) ==
        daemon_frame(DaemonFrame::kInput, "last line!") + daemon_frame(DaemonFrame::kInputEnd, {}));
  SECTION("the node answers") {
    asio::write(node, asio::buffer(daemon_ended(0)));
    loop.restart();
    CHECK(loop.run_for(10s) > 0);
  }
  SECTION("a silent node is abandoned after a timeout") {
    loop.restart();
    CHECK(loop.run_for(10s) > 0);
  }
  CHECK(loop.stopped());  // no operation is pending
}

}  // namespace
}  // namespace ddp::launcher
