#include "launcher/agent/node_store.h"

#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/crypto.h"
#include "base/program.h"
#include "launcher/job/job_spec.h"
#include "rendezvous/store/tcp_store_codec.h"

namespace ddp::launcher {
namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

/// The number of addresses that are reported for invalid data to the store.
constexpr std::size_t kBrokenPeers = 16;

/// VALIDATE with its magic number, then PING with a nonce (TCPStore protocol,
/// docs/developers/store_protocol.md); the answer is the nonce.
constexpr std::array<char, 10> kGreeting{0, '\xCE', '\xF7', '\x85', '\x3C', 13, 'd', 'd', 'p', '?'};
constexpr std::size_t kEcho = 4;

void append_u64(std::string& bytes, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8)
    bytes.push_back(static_cast<char>(value >> shift));
}

/// The greeting, followed, if there is a token, by a CHECK for the key of that name, which only this job's
/// store has.
std::string question(const std::string& token) {
  std::string bytes(kGreeting.begin(), kGreeting.end());
  if (token.empty()) return bytes;
  bytes.push_back(static_cast<char>(rendezvous::StoreOp::kCheck));
  append_u64(bytes, 1);
  append_u64(bytes, token.size());
  return bytes + token;
}

/// The state that all routes share. Closing a socket ends its task, with the outcome "no answer".
struct Race {
  Race(const asio::any_io_executor& executor, std::size_t count) : outcomes(count), changed(executor) {
    for (std::size_t i = 0; i < count; ++i)
      sockets.emplace_back(executor);
  }

  bool any_reached() const {
    for (const auto& outcome : outcomes) {
      if (outcome && *outcome) return true;
    }
    return false;
  }
  /// Decided when an address was reached and all before it have failed, or when all have failed.
  bool decided() const {
    for (const auto& outcome : outcomes) {
      if (!outcome) return false;
      if (*outcome) return true;
    }
    return true;
  }
  bool all_ended() const {
    for (const auto& outcome : outcomes) {
      if (!outcome) return false;
    }
    return true;
  }
  void end(std::size_t route, Result<std::string> outcome) {
    outcomes[route] = std::move(outcome);
    changed.cancel();
  }

  std::deque<tcp::socket> sockets;
  std::vector<std::optional<Result<std::string>>> outcomes;  ///< our own address, or why not
  asio::steady_timer changed;                                ///< cancelled at each end
};

/// Returns our own address on the route.
Awaitable<Result<std::string>> ask(tcp::socket& socket, tcp::endpoint there, const std::string& token) {
  auto [error] = co_await socket.async_connect(there, kUseTuple);
  if (error == asio::error::operation_aborted) co_return Error{ErrorCode::kTimeout, "no answer"};
  if (error) co_return Error{ErrorCode::kUnreachable, error.message()};
  const std::string local = socket.local_endpoint(error).address().to_string();
  const std::string bytes = question(token);
  std::size_t count = 0;
  if (!error) std::tie(error, count) = co_await asio::async_write(socket, asio::buffer(bytes), kUseTuple);
  std::array<char, kEcho + 1> reply{};
  const std::size_t size = token.empty() ? kEcho : kEcho + 1;
  if (!error)
    std::tie(error, count) = co_await asio::async_read(socket, asio::buffer(reply.data(), size), kUseTuple);
  if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor)
    co_return Error{ErrorCode::kTimeout, "it accepts connections but does not answer"};
  if (error) {
    co_return Error{ErrorCode::kUnreachable, "it closed the connection, which came from " + local};
  }
  const bool echoed = std::equal(reply.begin(), reply.begin() + kEcho, kGreeting.end() - kEcho);
  if (!echoed || (!token.empty() && reply[kEcho] != static_cast<char>(rendezvous::kCheckReady)))
    co_return Error{ErrorCode::kUnreachable, "another service answers there, not this job's store"};
  co_return local;
}

Awaitable<> try_route(std::shared_ptr<Race> race, std::size_t route, tcp::endpoint there, std::string token) {
  race->end(route, co_await ask(race->sockets[route], there, token));
}

}  // namespace

/// A store, and the thread that serves it. The destructor closes the port and ends the thread.
class NodeStore::StoreThread {
 public:
  static Result<std::unique_ptr<StoreThread>> start(rendezvous::TcpStoreOptions options) {
    auto store = std::unique_ptr<StoreThread>(new StoreThread());
    store->server_.emplace(
        DDP_TRY(rendezvous::TcpStoreServer::open(store->loop_.get_executor(), std::move(options))));
    store->thread_ =
        DDP_TRY(start_thread([loop = &store->loop_] { loop->run(); }, "start a thread for the store"));
    return store;
  }
  ~StoreThread() {
    if (!thread_.joinable()) return;
    loop_.stop();  // at the next handler: the agent's loop does not wait for what clients have asked
    thread_.join();
    server_->stop();
    loop_.restart();
    loop_.run();
  }
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;
  std::uint16_t port() const { return server_->port(); }

 private:
  StoreThread() = default;

  asio::io_context loop_{1};
  std::optional<rendezvous::TcpStoreServer> server_;  ///< used by the thread only, once it runs
  std::thread thread_;
};

NodeStore::NodeStore(asio::any_io_executor executor, Notify notify)
    : executor_(std::move(executor)), notify_(std::move(notify)) {}

NodeStore::~NodeStore() = default;

Result<rendezvous::StoreOpened> NodeStore::open(const rendezvous::OpenStore& message) {
  store_.reset();  // of the previous attempt; the new store may need its port
  of_worker_ = message.mode == rendezvous::StoreMode::kWorker;
  rendezvous::TcpStoreOptions options;
  options.scope =
      message.loopback_only ? rendezvous::ListenScope::kLoopback : rendezvous::ListenScope::kAllInterfaces;
  if (message.port != 0) options.port = message.port;
  if (message.first_port != 0) options.range = rendezvous::PortRange{message.first_port, message.last_port};
  for (const std::string& text : message.allow) {
    // An entry that is skipped could leave an empty filter, which admits everyone.
    DDP_TRY(within("who may connect to the store", options.filter.allow_network(text)));
  }
  auto token = DDP_TRY(random_text(16));
  options.token = "ddplaunch/" + token;
  // Both callbacks run on the store's thread.
  const auto notify = [this](std::string text) {
    asio::post(executor_, [this, text = std::move(text)]() mutable { notify_(std::move(text)); });
  };
  options.on_refused = [notify, told = std::size_t{0}](const asio::ip::address& address) mutable {
    if (++told > kBrokenPeers) return;
    notify("the store refused a connection from " + address.to_string() +
           ", which is not an address of this job's nodes");
  };
  options.on_broken = [notify, peers = std::set<asio::ip::address>()](const asio::ip::address& address,
                                                                      const Error& error) mutable {
    // Report each address once: a peer that repeats must flood neither the user nor the link.
    if (peers.size() >= kBrokenPeers || !peers.insert(address).second) return;
    notify("the store closed a connection from " + address.to_string() + ": " + error.text);
  };
  rendezvous::StoreOpened opened;
  opened.attempt = message.attempt;
  opened.token = options.token;
  auto store = StoreThread::start(std::move(options));
  if (!store) {
    Error error = store.error();
    if (error.sys == EADDRINUSE && message.port != 0)
      error.text += "; choose another --master-port, or omit it to use a free port";
    return error;
  }
  store_ = std::move(*store);
  opened.port = store_->port();
  return opened;
}

void NodeStore::workers_start() {
  if (of_worker_) store_.reset();
}

void NodeStore::stop() {
  store_.reset();
}

Awaitable<StoreRoute> find_store(asio::any_io_executor executor, std::vector<std::string> addresses,
                                 std::uint16_t port, std::string token, std::chrono::milliseconds timeout) {
  const auto race = std::make_shared<Race>(executor, addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    error_code error;
    const auto ip = asio::ip::make_address(addresses[i], error);
    if (error) {
      race->end(i, Error{ErrorCode::kUnreachable, "not an address"});
      continue;
    }
    spawn(executor, try_route(race, i, {ip, port}, token));
  }
  const auto began = Clock::now();
  while (!race->decided()) {
    const auto deadline = began + (race->any_reached() ? timeout / 2 : timeout);
    if (Clock::now() >= deadline) break;
    race->changed.expires_at(deadline);
    co_await race->changed.async_wait(kUseTuple);
  }
  for (tcp::socket& socket : race->sockets) {
    error_code ignored;
    socket.close(ignored);
  }
  while (!race->all_ended()) {
    race->changed.expires_at(Clock::time_point::max());
    co_await race->changed.async_wait(kUseTuple);
  }
  StoreRoute found;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const Result<std::string>& outcome = *race->outcomes[i];
    if (outcome) {
      found.address = addresses[i];
      found.local = *outcome;
      break;
    }
    if (!found.failures.empty()) found.failures += "; ";
    found.failures += addresses[i] + ":" + std::to_string(port) + ": " + outcome.error().text;
  }
  co_return found;
}

}  // namespace ddp::launcher
