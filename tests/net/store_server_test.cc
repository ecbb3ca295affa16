// The server over loopback, with peers that follow the protocol and peers that do not.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/store_tcp/tcp_store_client.h"
#include "tests/net/store_raw_client.h"
#include "tests/net/store_test_server.h"
#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using O = StoreOp;
using test::greeting;
using test::RawClient;
using test::RequestBytes;
using test::StoreServer;

TcpStoreClient client_of(const StoreServer& server) {
  return TcpStoreClient::connect("127.0.0.1", server.port(), 10s).value();
}

// Sends a request that has a reply. The reply proves that the server has handled all earlier bytes.
bool served(RawClient& client) {
  client.say(RequestBytes(O::kPing).u32(7));
  return client.hear(4) == RequestBytes().u32(7).str();
}

StoreServer::Options small_buffers() {
  StoreServer::Options options = StoreServer::loopback();
  options.max_buffers = 4 << 20;
  return options;
}

/// Returns a client that the server has read.
RawClient greeted(const StoreServer& server) {
  RawClient client(server.port());
  client.say(greeting());
  REQUIRE(served(client));
  return client;
}

template <class Condition>
bool soon(Condition condition) {
  const auto deadline = Clock::now() + 10s;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

std::ptrdiff_t open_descriptors() {
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return std::distance(begin(entries), end(entries));
}

TEST_CASE("a deletion of an old client is answered after a short pause") {
  StoreServer server;
  RawClient old(server.port());
  old.say(RequestBytes(0).text("/k").text("v"));
  old.say(RequestBytes(8).text("/k"));
  CHECK(old.hear(8) == RequestBytes().number(1).str());
  CHECK(test::holds_keys(server.port(), 0));
}

TEST_CASE("silent connections stay open") {
  StoreServer server;
  RawClient silent(server.port());
  RawClient talker = greeted(server);
  silent.say(greeting());
  CHECK(served(silent));
}

TEST_CASE("a connection with many requests does not keep others waiting") {
  StoreServer server;
  RawClient greedy = greeted(server);
  RawClient other = greeted(server);
  std::string many;
  for (int i = 0; i < 2000; ++i)
    many += RequestBytes(O::kAdd).text("n").number(1);
  server.on_loop([&] {  // both have arrived before the server reads either
    greedy.say(many);
    other.say(RequestBytes(O::kAdd).text("n").number(0));
  });
  std::int64_t seen = 0;
  const std::string reply = other.hear(8);
  REQUIRE(reply.size() == 8);
  std::memcpy(&seen, reply.data(), 8);
  CHECK(seen < 2000);
  CHECK(greedy.hear(2000 * 8).size() == 2000 * 8);
}

TEST_CASE("connections without a request do not keep others out") {
  StoreServer::Options options = StoreServer::loopback();
  options.max_connections = 8;
  StoreServer server(options);
  RawClient first = greeted(server);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 20; ++i)
    silent.push_back(std::make_unique<RawClient>(server.port()));
  CHECK(silent[0]->closed());
  RawClient late = greeted(server);
  CHECK(served(first));
}

TEST_CASE("connections cannot hold more memory than the store allows") {
  StoreServer server(small_buffers());
  RawClient good = greeted(server);
  RawClient small(server.port());
  small.say(greeting() + RequestBytes(O::kSet).text("s").number(3 << 20).str() + std::string(1 << 20, 's'));
  RawClient large(server.port());
  large.say(greeting() + RequestBytes(O::kSet).text("l").number(100 << 20).str());
  while (large.say(std::string(1 << 20, 'l'))) {
  }
  CHECK(large.closed());
  small.say(std::string(2 << 20, 's'));
  CHECK(served(small));
  CHECK(served(good));
  CHECK(server.notes() ==
        std::vector<std::string>{
            "broken 127.0.0.1: the unfinished requests, unread replies and waits of all connections "
            "exceed 4.0 MiB, and this one held much of it for long"});
}

TEST_CASE("what strangers leave unfinished ends before a larger request of a rank") {
  StoreServer server(small_buffers());
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 7; ++i) {
    strangers.push_back(std::make_unique<RawClient>(server.port()));
    strangers.back()->say(greeting() + RequestBytes(O::kSet).text("s").number(1 << 20).str() +
                          std::string(500'000, 's'));
    server.wait_until_read();
  }
  RawClient rank(server.port());
  rank.say(greeting() + RequestBytes(O::kSet).text("l").number(2 << 20).str() + std::string(2 << 20, 'l'));
  CHECK(served(rank));
  CHECK(strangers[0]->closed());
}

TEST_CASE("waits take part in the memory that connections may hold") {
  StoreServer server(small_buffers());
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (int i = 0; i < 8; ++i) {
    RequestBytes wait(O::kWait);
    wait.number(4'000);
    for (int key = 0; key < 4'000; ++key)
      wait.text(std::to_string(i) + '/' + std::to_string(key));
    waiting.push_back(std::make_unique<RawClient>(server.port()));
    waiting.back()->say(greeting() + wait.str());
    server.wait_until_read();
  }
  CHECK(waiting[0]->closed());
  RawClient good = greeted(server);
}

TEST_CASE("a client that does not speak the protocol is disconnected and named") {
  StoreServer server;
  RawClient browser(server.port());
  browser.say("GET / HTTP/1.1\r\n\r\n");
  CHECK(browser.closed());
  RawClient greedy(server.port());
  greedy.say(greeting() + RequestBytes(O::kSet).text("k").number(std::int64_t{1} << 40).str());
  CHECK(greedy.closed());
  RawClient wrong(server.port());
  wrong.say(greeting() + RequestBytes(O::kSet).text("k").text("word").str() +
            RequestBytes(O::kAdd).text("k").number(1).str());
  CHECK(wrong.closed());
  CHECK(server.notes() ==
        std::vector<std::string>{
            "broken 127.0.0.1: not a TCPStore request: byte 0x47 where an operation number belongs",
            "broken 127.0.0.1: SET: a value of 1099511627776 bytes is over the store's limit of 268435456",
            "broken 127.0.0.1: cannot add to 'k': its value is not a 64-bit number"});
  CHECK(client_of(server).get("k", 5s).value() == "word");
}

TEST_CASE("requests may arrive in pieces or many at once") {
  StoreServer server;
  RawClient client(server.port());
  const std::string one = RequestBytes(O::kAdd).text("n").number(1);
  const std::string heap = greeting() + one + one + one;
  for (const char byte : heap)
    client.say(std::string(1, byte));
  std::string many;
  for (int i = 0; i < 5000; ++i)
    many += one;
  client.say(many);
  const std::string replies = client.hear(8 * 5003);
  REQUIRE(replies.size() == 8 * 5003);
  CHECK(replies.substr(8 * 5002) == RequestBytes().number(5003).str());
}

TEST_CASE("a peer that does not read is not read either, and blocks no other peer") {
  StoreServer server;
  TcpStoreClient other = client_of(server);
  other.set("big", std::string(1024 * 1024, 'x')).value();
  other.add("n", 0, 5s).value();  // a set has no reply: the next reply shows that it was done
  RawClient lazy(server.port());
  constexpr int kGets = 64;
  std::string gets = greeting();
  for (int i = 0; i < kGets; ++i)
    gets += RequestBytes(O::kGet).text("big").str();
  lazy.say(gets);
  CHECK(other.add("n", 1, 5s).value() == 1);
  const std::size_t reply = 8 + 1024 * 1024;
  std::size_t heard = 0;
  for (int i = 0; i < kGets; ++i)
    heard += lazy.hear(reply).size();
  CHECK(heard == kGets * reply);
  CHECK(served(lazy));
}

TEST_CASE("hundreds of clients wait for one key") {
  StoreServer server;
  const auto before = open_descriptors();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 400; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    REQUIRE(clients.back()->connected());
    // The server reads both requests at once, so the reply to the first shows that it knows of the wait.
    clients.back()->say(greeting() + RequestBytes(O::kPing).u32(7).str() +
                        RequestBytes(O::kWait).list({"go"}).str());
    REQUIRE(clients.back()->hear(4).size() == 4);
  }
  CHECK(std::ranges::none_of(clients, [](const auto& client) { return client->readable(0); }));
  client_of(server).set("go", "").value();
  std::size_t woken = 0;
  for (const auto& client : clients)
    woken += client->hear(1) == std::string(1, '\0') ? 1 : 0;
  CHECK(woken == clients.size());
  clients.clear();
  CHECK(soon([&] { return open_descriptors() == before; }));
}

TEST_CASE("many clients at once lose no increment") {
  StoreServer server;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&server] {
      TcpStoreClient client = client_of(server);
      for (int n = 0; n < 250; ++n)
        client.add("n", 1, 10s).value();
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  CHECK(client_of(server).add("n", 0, 5s).value() == 2000);
}

double cpu_seconds(std::thread::native_handle_type thread) {
  clockid_t clock{};
  timespec time{};
  if (::pthread_getcpuclockid(thread, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 1e9;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

TEST_CASE("without free descriptors the server pauses accepting and continues later") {
  StoreServer server;
  RawClient before = greeted(server);

  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit small{128, limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &small);
  std::vector<UniqueFd> hoard;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0))
    hoard.emplace_back(fd);
  hoard.pop_back();  // for the client's end; none is left for the server's
  RawClient client(server.port());
  client.say(greeting());
  const double cpu = cpu_seconds(server.thread());
  // Assert only after the descriptors are free: the sanitizers' own checks need some.
  const bool early = client.readable(300);
  const bool others_served = served(before);
  const double used = cpu_seconds(server.thread()) - cpu;
  hoard.clear();
  ::setrlimit(RLIMIT_NOFILE, &limit);
  CHECK_FALSE(early);
  CHECK(others_served);
  CHECK(used < 0.1);
  CHECK(client.connected());
  CHECK(served(client));
}

TEST_CASE("stop closes all connections and frees the port") {
  std::uint16_t port = 0;
  {
    StoreServer server;
    port = server.port();
    RawClient client = greeted(server);
    server.on_loop([&] {
      server.server().stop();
      server.server().stop();
    });
    CHECK(client.closed());
    CHECK_FALSE(RawClient(port).connected());
  }
  StoreServer::Options options = StoreServer::loopback();
  options.port = port;
  StoreServer next(options);
  CHECK(test::holds_keys(port, 0));
}

TEST_CASE("descriptors of closed connections are released") {
  const auto before = open_descriptors();
  {
    StoreServer server;
    TcpStoreClient client = client_of(server);
    RawClient broken(server.port());
    broken.say("x");
    CHECK(broken.closed());
    client.add("n", 1, 5s).value();
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("IPv4 and IPv6 reach one store") {
  StoreServer::Options options;
  options.port = 0;
  REQUIRE(options.filter.allow_network("127.0.0.1").has_value());
  REQUIRE(options.filter.allow_network("127.0.0.9").has_value());
  REQUIRE(options.filter.allow_network("::1").has_value());
  StoreServer server(options);
  TcpStoreClient four = client_of(server);
  four.set("k", "v").value();
  CHECK(TcpStoreClient::connect("127.0.0.5", server.port(), 5s).value().get("k", 5s).value() == "v");
  Result<TcpStoreClient> six = TcpStoreClient::connect("::1", server.port(), 300ms);
  if (!six) WARN("no IPv6 here: " << six.error().text);
  if (six) CHECK(six->get("k", 5s).value() == "v");
  CHECK(server.notes().empty());
}

TEST_CASE("ports of the store") {
  SECTION("are chosen outside the ephemeral range, with neighbors") {
    const PortRange ephemeral = ephemeral_ports();
    for (int i = 0; i < 20; ++i) {
      const TcpListener listener = listen_tcp_picked(ListenScope::kLoopback, std::nullopt).value();
      CHECK((listener.port + 3 < ephemeral.first || listener.port > ephemeral.last));
      CHECK(listener.port >= 10000);
    }
  }
  SECTION("follow a given range") {
    const test::FreePorts reserved(2);
    const std::uint16_t base = reserved.first();
    const PortRange two{base, static_cast<std::uint16_t>(base + 1)};
    const TcpListener first = listen_tcp_picked(ListenScope::kLoopback, two).value();
    const TcpListener second = listen_tcp_picked(ListenScope::kLoopback, two).value();
    CHECK(first.port + second.port == 2 * base + 1);
    const Result<TcpListener> third = listen_tcp_picked(ListenScope::kLoopback, two);
    REQUIRE_FALSE(third.has_value());
    CHECK(third.error().sys == EADDRINUSE);
    CHECK(third.error().text.starts_with("no free port in the range " + std::to_string(base) + "-" +
                                         std::to_string(base + 1) + ": cannot listen on port "));
  }
  SECTION("in use are named in the error") {
    const TcpListener taken = listen_tcp(ListenScope::kAllInterfaces, 0).value();
    asio::io_context loop;
    TcpStoreOptions options;
    options.port = taken.port;
    const Result<TcpStoreServer> server = TcpStoreServer::open(loop.get_executor(), options);
    REQUIRE_FALSE(server.has_value());
    CHECK(server.error().sys == EADDRINUSE);
    CHECK(server.error().text ==
          "store: cannot listen on port " + std::to_string(taken.port) + ": Address already in use");
  }
  SECTION("outside a given range") {
    const auto text = [](PortRange ephemeral) {
      std::string out;
      for (const PortRange& range : ports_beside(ephemeral))
        out += std::to_string(range.first) + "-" + std::to_string(range.last) + " ";
      return out;
    };
    CHECK(text({32768, 60999}) == "10000-19996 28000-28024 28029-29396 29401-29495 29501-32764 61000-65532 ");
    CHECK(text({1024, 60999}) == "61000-65532 ");
    CHECK(text({1024, 65535}).empty());
    CHECK(text({10000, 65530}) == "65531-65532 ");
  }
}

}  // namespace
}  // namespace ddp::rendezvous
