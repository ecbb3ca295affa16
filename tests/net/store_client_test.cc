// The blocking client and ddplaunch's server, over loopback.
#include <sys/eventfd.h>
#include <sys/time.h>

#include <chrono>
#include <csignal>
#include <optional>
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
using test::RawClient;
using test::RequestBytes;
using test::StoreServer;

TcpStoreClient client_of(const StoreServer& server) {
  return TcpStoreClient::connect("127.0.0.1", server.port(), 5s).value();
}

std::string at(const StoreServer& server) {
  return "127.0.0.1:" + std::to_string(server.port());
}

/// Plays a store: accepts a client, greets it, and returns its connection once it waits for `key`.
RawClient accept_waiter(const TcpListener& listener, const std::string& key) {
  pollfd entry{listener.fds.front().get(), POLLIN, 0};
  ::poll(&entry, 1, 10'000);
  RawClient waiter(UniqueFd(::accept4(entry.fd, nullptr, nullptr, SOCK_CLOEXEC)));
  CHECK(waiter.hear(6) == test::greeting() + RequestBytes(O::kNumKeys).str());
  waiter.say(RequestBytes().number(0));
  const std::string wait = RequestBytes(O::kWait).list({key});
  CHECK(waiter.hear(wait.size()) == wait);
  return waiter;
}

TEST_CASE("every call of the client works") {
  StoreServer server;
  TcpStoreClient client = client_of(server);
  REQUIRE(client.set("k", "value").has_value());
  CHECK(client.get("k", 5s).value() == "value");
  CHECK(client.add("n", 5, 5s).value() == 5);
  CHECK(client.add("n", -7, 5s).value() == -2);
  CHECK(client.get("n", 5s).value() == "-2");
  CHECK(client.local_address().value() == "127.0.0.1");
  const std::string big(20 * 1024 * 1024, 'x');
  REQUIRE(client.set("big", big).has_value());
  CHECK(client.get("big", 20s).value() == big);
}

TEST_CASE("a readable interrupt ends every wait at once") {
  StoreServer server;
  const UniqueFd interrupt(::eventfd(0, EFD_CLOEXEC));
  TcpStoreClient client = TcpStoreClient::connect("127.0.0.1", server.port(), 5s, interrupt.get()).value();
  REQUIRE(client.set("k", "value").has_value());
  CHECK(client.get("k", 5s).value() == "value");
  const TcpListener listener = listen_tcp(ListenScope::kLoopback, 0).value();
  std::optional<RawClient> store;  // open until the client has ended its wait
  std::thread revoking([&] {
    store.emplace(accept_waiter(listener, "missing"));
    const std::uint64_t one = 1;
    CHECK(::write(interrupt.get(), &one, sizeof one) == sizeof one);
  });
  TcpStoreClient waiter = TcpStoreClient::connect("127.0.0.1", listener.port, 5s, interrupt.get()).value();
  const Result<std::string> got = waiter.get("missing", 60s);
  revoking.join();
  REQUIRE_FALSE(got.has_value());
  CHECK(got.error().code == ErrorCode::kCancelled);
  CHECK(got.error().text == "get of 'missing': the attempt was revoked");
  // The store still owes a reply, so no other request is possible.
  CHECK(waiter.get("k", 5s).error().code == ErrorCode::kLinkLost);
  // No process listens there: the retries end as well.
  const auto connected = TcpStoreClient::connect("127.0.0.1", 1, 60s, interrupt.get());
  REQUIRE_FALSE(connected.has_value());
  CHECK(connected.error().code == ErrorCode::kCancelled);
}

TEST_CASE("a wait that times out leaves the client usable") {
  StoreServer server;
  TcpStoreClient client = client_of(server);
  const auto start = Clock::now();
  const Result<std::string> got = client.get("a", 50ms);
  CHECK(Clock::now() - start >= 50ms);
  REQUIRE_FALSE(got.has_value());
  CHECK(got.error().code == ErrorCode::kTimeout);
  CHECK(got.error().text == "get of 'a': not in the store at " + at(server) + " in time");
  REQUIRE(client_of(server).set("a", "now").has_value());
  CHECK(client.get("a", 5s).value() == "now");
  CHECK(client.add("n", 1, 5s).value() == 1);
}

TEST_CASE("a wait ends when the store reports the key") {
  const TcpListener listener = listen_tcp(ListenScope::kLoopback, 0).value();
  std::thread store([&listener] {
    RawClient waiter = accept_waiter(listener, "k");
    waiter.say(RequestBytes().u8(kStopWaiting));
    const std::string get = RequestBytes(O::kGet).text("k");
    CHECK(waiter.hear(get.size()) == get);
    waiter.say(RequestBytes().text("v"));
  });
  TcpStoreClient client = TcpStoreClient::connect("127.0.0.1", listener.port, 5s).value();
  const Result<std::string> got = client.get("k", 10s);
  store.join();
  CHECK(got.value() == "v");
}

void ignore_signal(int) {}

TEST_CASE("signals do not end a call early") {
  StoreServer server;
  TcpStoreClient client = client_of(server);
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = ignore_signal;  // no SA_RESTART: every system call is interrupted
  ::sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 5000}, {0, 5000}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  const auto start = Clock::now();
  const Result<std::string> waited = client.get("never", 200ms);
  const auto took = Clock::now() - start;
  const std::string big(8 * 1024 * 1024, 'x');
  const bool stored = client.set("big", big).has_value() && client.get("big", 10s).value() == big;
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  CHECK(waited.error().code == ErrorCode::kTimeout);
  CHECK(took >= 200ms);
  CHECK(stored);
}

TEST_CASE("connect waits for a server that is not up yet") {
  const test::FreePorts reserved(1);
  const std::uint16_t port = reserved.first();
  Result<std::int64_t> sum = Error{};
  std::thread early([&] {
    Result<TcpStoreClient> client = TcpStoreClient::connect("127.0.0.1", port, 20s);
    if (client) sum = client->add("n", 1, 5s);
  });
  {
    // The early client must be refused at least once. The server opens only after this attempt, which is
    // refused too.
    const Result<TcpStoreClient> nobody = TcpStoreClient::connect("127.0.0.1", port, 30ms);
    REQUIRE_FALSE(nobody.has_value());
    CHECK(nobody.error().code == ErrorCode::kUnreachable);
    CHECK(nobody.error().text ==
          "no store at 127.0.0.1:" + std::to_string(port) + " within 30 ms: connect: Connection refused");
  }
  StoreServer::Options options = StoreServer::loopback();
  options.port = port;
  StoreServer server(options);
  early.join();
  CHECK(sum.value() == 1);
}

TEST_CASE("connect reports the reason of a failure") {
  SECTION("the name is unknown") {
    const Result<TcpStoreClient> client = TcpStoreClient::connect("no-such-host.invalid", 1, 100ms);
    REQUIRE_FALSE(client.has_value());
    CHECK(client.error().text.find("cannot resolve the store's host 'no-such-host.invalid': ") !=
          std::string::npos);
  }
  SECTION("the store refuses this client") {
    StoreServer::Options options = StoreServer::loopback();
    REQUIRE(options.filter.allow_network("192.0.2.1").has_value());
    StoreServer server(options);
    CHECK(RawClient(server.port()).closed());
    const Result<TcpStoreClient> client = TcpStoreClient::connect("127.0.0.1", server.port(), 300ms);
    REQUIRE_FALSE(client.has_value());
    CHECK(client.error().code == ErrorCode::kUnreachable);
    CHECK(client.error().text.starts_with("no store at " + at(server) + " within 300 ms: connect: "));
    CHECK(client.error().text.ends_with("; it does not accept this host's address, or is another service"));
    CHECK(server.notes() == std::vector<std::string>{"refused 127.0.0.1"});  // once, for many attempts
  }
}

TEST_CASE("the end of the server is an error, also for later calls") {
  StoreServer server;
  TcpStoreClient client = client_of(server);
  server.on_loop([&] { server.server().stop(); });
  const Result<std::int64_t> sum = client.add("n", 1, 5s);
  REQUIRE_FALSE(sum.has_value());
  CHECK(sum.error().code == ErrorCode::kLinkLost);
  const Result<> again = client.set("k", "v");
  REQUIRE_FALSE(again.has_value());
  CHECK(again.error().code == ErrorCode::kLinkLost);
  CHECK(again.error().text == "set of 'k': the store connection is closed: " + sum.error().text);
}

TEST_CASE("a server that does not reply is given up") {
  // This server listens and never answers: the greeting's number of keys does not come.
  const TcpListener mute = listen_tcp(ListenScope::kLoopback, 0).value();
  const Result<TcpStoreClient> client = TcpStoreClient::connect("127.0.0.1", mute.port, 100ms);
  REQUIRE_FALSE(client.has_value());
  CHECK(client.error().text == "no store at 127.0.0.1:" + std::to_string(mute.port) +
                                   " within 100 ms: connect: no answer from the store at 127.0.0.1:" +
                                   std::to_string(mute.port) + " in time");
}

}  // namespace
}  // namespace ddp::rendezvous
