// The server of control socket, metrics and pages, with real connections on loopback.
#include "launcher/control/http_server.h"

#include <chrono>
#include <list>
#include <string>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using asio::ip::tcp;
namespace http = boost::beast::http;
using namespace std::chrono_literals;

/// A server whose replies are the targets, and its clients.
struct World {
  asio::io_context loop;
  int handled = 0;
  tcp::endpoint place;
  std::optional<HttpServer> server;
  std::list<tcp::socket> clients;

  explicit World(HttpServer::Limits limits) {
    auto found = listen_http("127.0.0.1", 0);
    REQUIRE(found.has_value());
    CHECK(found->address.is_loopback());
    place = {found->address, found->listener.port};
    const HttpServer::Handler handler = [this](HttpClient& client) { return answer(this, client); };
    auto made = HttpServer::start(loop.get_executor(), std::move(found->listener), limits, handler);
    REQUIRE(made.has_value());
    server.emplace(std::move(*made));
  }

  static Awaitable<std::optional<HttpReply>> answer(World* self, HttpClient& client) {
    ++self->handled;
    if (client.request.target() == "/stay") {
      client.let_stay();
      char byte = 0;
      (void)co_await client.socket.async_read_some(asio::buffer(&byte, 1), kUseTuple);
      co_return std::nullopt;
    }
    co_return http_reply(
        client.request, http::status::ok,
        std::string(client.request.target().data(), client.request.target().size()) + client.request.body(),
        "text/plain");
  }

  tcp::socket& connect(const std::string& bytes) {
    tcp::socket& client = clients.emplace_back(loop);
    client.connect(place);
    asio::write(client, asio::buffer(bytes));
    return client;
  }
  /// Returns what the server sends until it closes the connection; "open": it does not within `time`.
  std::string read(tcp::socket& client, std::chrono::milliseconds time = 10s) {
    std::string text;
    bool over = false;
    asio::async_read(client, asio::dynamic_buffer(text), [&over](error_code, std::size_t) { over = true; });
    const auto end = std::chrono::steady_clock::now() + time;
    while (!over && std::chrono::steady_clock::now() < end)
      loop.run_one_for(10ms);
    if (over) return text;
    client.cancel();
    while (!over)
      loop.run_one_for(10ms);
    return "open";
  }
};

const std::string kGet = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_CASE("each request gets its reply, and the connection ends") {
  World world({16, 10s, 8});
  const std::string reply = world.read(world.connect(kGet));
  CHECK(reply.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(reply.ends_with("\r\n\r\n/a"));
  CHECK(world.read(world.connect("POST /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyz"))
            .ends_with("\r\n\r\n/bxyz"));
}

TEST_CASE("requests that are too long, or none, reach no handler") {
  World world({16, 10s, 8});
  CHECK(world.read(world.connect("POST /b HTTP/1.1\r\nContent-Length: 9\r\n\r\n123456789")).empty());
  CHECK(world.read(world.connect("GET /" + std::string(20'000, 'a'))).empty());
  CHECK(world.read(world.connect("\x16\x03\x01 hello\r\n\r\n")).empty());
  CHECK(world.handled == 0);
  CHECK(world.read(world.connect(kGet)).ends_with("/a"));
}

TEST_CASE("a silent client is closed in time, and others wait for its place") {
  World world({1, 1s, 0});
  tcp::socket& silent = world.connect("GET /");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(world.read(world.connect(kGet)).ends_with("/a"));
  CHECK(std::chrono::steady_clock::now() - begin >= 900ms);
  CHECK(world.read(silent).empty());
}

TEST_CASE("a client that may stay takes no place, and close ends it") {
  World world({1, 1s, 0});
  tcp::socket& stays = world.connect("GET /stay HTTP/1.1\r\n\r\n");
  CHECK(world.read(world.connect(kGet)).ends_with("/a"));
  CHECK(world.read(stays, 1500ms) == "open");
  world.server->close();
  CHECK(world.read(stays).empty());
  tcp::socket late(world.loop);
  error_code refused;
  late.connect(world.place, refused);
  CHECK(refused == asio::error::connection_refused);
  world.clients.clear();
  world.loop.restart();
  CHECK(world.loop.run_for(10s) < 100);  // nothing is left
  CHECK(world.loop.stopped());
}

TEST_CASE("names are resolved, and what is no address of this machine is said") {
  auto named = listen_http("localhost", 0);
  REQUIRE(named.has_value());
  CHECK(named->address.is_loopback());
  CHECK(named->listener.port != 0);
  const auto error = [](const char* address) {
    const auto made = listen_http(address, 0);
    REQUIRE_FALSE(made.has_value());
    return made.error();
  };
  CHECK(error("192.0.2.1").text.starts_with("192.0.2.1 is not an address of this machine"));
  CHECK(error("no-such-host.invalid").code == ErrorCode::kUsage);
  CHECK(error("no-such-host.invalid").text.starts_with("no-such-host.invalid: "));
}

}  // namespace
}  // namespace ddp::launcher
