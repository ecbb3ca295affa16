// The route to a store, with stores, other services and silence at the other end.
#include "launcher/agent/node_store.h"

#include <optional>
#include <string>
#include <vector>

#include "tests/net/store_raw_client.h"
#include "tests/net/store_test_server.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using test::StoreServer;

Awaitable<> into(StoreRoute* route, Awaitable<StoreRoute> search) {
  *route = co_await std::move(search);
}

StoreRoute find(const std::vector<std::string>& addresses, std::uint16_t port, const std::string& token,
                std::chrono::milliseconds timeout = 5s) {
  asio::io_context loop{1};
  StoreRoute route;
  asio::co_spawn(loop, into(&route, find_store(loop.get_executor(), addresses, port, token, timeout)),
                 [](const std::exception_ptr& broken) { CHECK_FALSE(broken); });
  loop.run();
  return route;
}

StoreServer::Options with_token(const std::string& token) {
  StoreServer::Options options = StoreServer::loopback();
  options.token = token;
  return options;
}

std::string at(const std::string& address, std::uint16_t port, const std::string& why) {
  return address + ":" + std::to_string(port) + ": " + why;
}

}  // namespace

TEST_CASE("the store serves while its agent's loop is busy, and its messages come to the loop") {
  asio::io_context loop{1};
  std::vector<std::string> notes;
  NodeStore store(loop.get_executor(), [&notes](std::string text) { notes.push_back(std::move(text)); });
  rendezvous::OpenStore order;
  order.loopback_only = true;
  const auto opened = store.open(order);
  REQUIRE(opened.has_value());
  test::RawClient client(opened->port);
  client.say(test::greeting() + test::RequestBytes(rendezvous::StoreOp::kPing).u32(77).str());
  CHECK(client.hear(4).size() == 4);  // nobody runs the loop
  for (int i = 0; i < 3; ++i) {
    test::RawClient stranger(opened->port);
    stranger.say("GET / HTTP/1.1\r\n\r\n");
    CHECK(stranger.closed());
  }
  CHECK(notes.empty());
  // A new attempt has a new store, and the old one is gone.
  const auto again = store.open(order);
  REQUIRE(again.has_value());
  CHECK(client.closed());
  loop.run_for(1s);
  CHECK(notes.size() == 1);
  store.stop();
  CHECK_FALSE(test::RawClient(again->port).connected());
}

namespace {

/// Another service that listens on `address`. It answers each connection with `reply`, or accepts none.
class Stranger {
 public:
  Stranger(const std::string& address, std::uint16_t port, std::string reply)
      : acceptor_(loop_, tcp::endpoint(asio::ip::make_address(address), port)), reply_(std::move(reply)) {
    if (!reply_.empty()) accept();
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Stranger() {
    loop_.stop();
    thread_.join();
  }
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (error) return;
      error_code ignored;
      asio::write(socket, asio::buffer(reply_), ignored);
      std::array<char, 256> rest;
      while (!ignored)
        socket.read_some(asio::buffer(rest), ignored);
      accept();
    });
  }

  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.get_executor()};
  tcp::acceptor acceptor_;
  std::string reply_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("the probe finds the route to the store that has the token") {
  StoreServer server(with_token("ddplaunch/1234"));
  const StoreRoute route = find({"127.0.0.1"}, server.port(), "ddplaunch/1234");
  CHECK(route.address == "127.0.0.1");
  CHECK(route.local == "127.0.0.1");
  CHECK(route.failures.empty());
  CHECK(test::holds_keys(server.port(), 0));
}

TEST_CASE("another job's store is refused, and does not learn the token from the probe") {
  StoreServer server(with_token("ddplaunch/1234"));
  StoreServer foreign;
  for (StoreServer* other : {&server, &foreign}) {
    const StoreRoute route = find({"127.0.0.1"}, other->port(), "ddplaunch/5678");
    CHECK(route.address.empty());
    CHECK(route.failures ==
          at("127.0.0.1", other->port(), "another service answers there, not this job's store"));
  }
  CHECK(find({"127.0.0.1"}, foreign.port(), "").address == "127.0.0.1");  // an empty token accepts any
}

TEST_CASE("the store confirms the token only when it is the only key asked for") {
  StoreServer server(with_token("ddplaunch/1234"));
  test::RawClient client(server.port());
  client.say(test::greeting());
  const auto has = [&client](const std::vector<std::string>& keys) {
    client.say(test::RequestBytes(rendezvous::StoreOp::kCheck).list(keys));
    const std::string reply = client.hear(1);
    REQUIRE(reply.size() == 1);
    return static_cast<std::uint8_t>(reply[0]) == rendezvous::kCheckReady;
  };
  CHECK(has({"ddplaunch/1234"}));
  CHECK_FALSE(has({"ddplaunch/1234", "x"}));
  CHECK_FALSE(has({"x"}));
  CHECK(test::holds_keys(server.port(), 0));
}

TEST_CASE("the first address that reaches the store is taken, with the reasons against earlier ones") {
  StoreServer server(with_token("t"));
  const Stranger web("127.0.0.5", server.port(), "HTTP/1.0 400 Bad Request\r\n\r\n");
  const StoreRoute route =
      find({"nonsense", "127.0.0.5", "127.0.0.6", "127.0.0.1", "127.0.0.7"}, server.port(), "t");
  CHECK(route.address == "127.0.0.1");
  CHECK(route.failures ==
        at("nonsense", server.port(), "not an address") + "; " +
            at("127.0.0.5", server.port(), "another service answers there, not this job's store") + "; " +
            at("127.0.0.6", server.port(), "Connection refused"));
}

TEST_CASE("a better address without an answer is given half of the time") {
  StoreServer server(with_token("t"));
  const Stranger silent("127.0.0.5", server.port(), "");
  const auto began = std::chrono::steady_clock::now();
  const StoreRoute route = find({"127.0.0.5", "127.0.0.1"}, server.port(), "t", 4s);
  CHECK(std::chrono::steady_clock::now() - began >= 2s);
  CHECK(route.address == "127.0.0.1");
  CHECK(route.failures == at("127.0.0.5", server.port(), "it accepts connections but does not answer"));
}

TEST_CASE("a worse address without an answer is not waited for") {
  StoreServer server(with_token("t"));
  const Stranger silent("127.0.0.5", server.port(), "");
  const auto began = std::chrono::steady_clock::now();
  CHECK(find({"127.0.0.1", "127.0.0.5"}, server.port(), "t", 60s).address == "127.0.0.1");
  CHECK(std::chrono::steady_clock::now() - began < 30s);
}

TEST_CASE("a store that refuses this node reports the address it saw") {
  StoreServer::Options options = with_token("t");
  REQUIRE(options.filter.allow_network("127.0.0.9").has_value());
  StoreServer server(std::move(options));
  CHECK(find({"127.0.0.1"}, server.port(), "t").failures ==
        at("127.0.0.1", server.port(), "it closed the connection, which came from 127.0.0.1"));
  CHECK(find({}, 1, "t").address.empty());
}

}  // namespace ddp::launcher
