// A connection's life from top to bottom: accepted, read, served, bounded, dropped, written. Everything runs
// on one loop; each function that may end a connection makes its caller look it up again.
#include "rendezvous/store_tcp/tcp_store_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "rendezvous/link/tcp_listener.h"

namespace ddp::rendezvous {
namespace {

std::size_t half_of_descriptors() {
  rlimit limit{};
  // The other half serves the agent's workers and links, whoever connects here.
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur / 2) : 512;
}

using asio::posix::stream_descriptor;

constexpr std::size_t kReadSize = 64 * 1024;
// A peer with more bytes of untaken replies is not read. One reply may exceed this limit.
constexpr std::size_t kMaxBacklog = 1024 * 1024;
// A rank seldom holds so much.
constexpr std::size_t kLarge = 64 * 1024;
constexpr std::size_t kKeepCapacity = 64 * 1024;
// One turn of a connection. The next turn comes after those of all other ready connections.
constexpr int kTurnRequests = 256;
constexpr std::size_t kTurnBytes = 1024 * 1024;

bool asks_for(const std::string& token, const StoreRequest& request) {
  return !token.empty() && request.op == StoreOp::kCheck && request.keys.size() == 1 &&
         request.keys[0] == token;
}

}  // namespace

// Handlers hold the Loop and look up their connection by id, since it may have ended meanwhile.
class TcpStoreServer::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(asio::any_io_executor executor, TcpStoreOptions options, std::uint16_t port)
      : executor_(std::move(executor)),
        options_(std::move(options)),
        port_(port),
        store_(options_.max_bytes),
        read_buffer_(kReadSize, '\0') {}

  Result<> start(TcpListener listener);
  void stop();

  std::uint16_t port() const { return port_; }

 private:
  struct StoreConnection {
    StoreConnection(asio::any_io_executor executor, asio::ip::address peer)
        : fd(std::move(executor)), address(std::move(peer)) {}
    std::size_t backlog() const { return out.size() - sent; }
    std::size_t buffers() const { return decoder.buffered() + out.size() + waits; }

    stream_descriptor fd;
    asio::ip::address address;
    StoreDecoder decoder;
    std::unique_ptr<asio::steady_timer> silence;  // made once the decoder was undecided
    std::string out;                              // replies, of which `sent` bytes are sent
    std::size_t sent = 0;
    std::size_t waits = 0;          // bytes of the wait that its last request began
    std::size_t held = 0;           // bytes of buffers() in held_
    std::uint64_t large_since = 0;  // the moment since which `held` is large
    bool resuming = false;          // another turn is due
    bool silent = true;             // in silent_
    bool dirty = false;             // in dirty_
    bool reading = false;           // a read wait is pending
    bool writing = false;           // a write wait is pending
  };

  void connected(UniqueFd socket, const asio::ip::address& peer);
  StoreConnection* find(StoreConnectionId id);
  void await_read(StoreConnectionId id, StoreConnection& connection);
  void await_silence(StoreConnectionId id, StoreConnection& connection);
  void await_write(StoreConnectionId id, StoreConnection& connection);
  void read_some(StoreConnectionId id);
  void write_some(StoreConnectionId id);
  void serve(StoreConnectionId id);
  enum class ServeResult : std::uint8_t { kNeedsBytes, kBacklogged, kTurnOver, kGone };
  ServeResult serve_buffered(StoreConnectionId id, StoreConnection& connection);
  void resume_later(StoreConnectionId id, StoreConnection& connection);
  void note_held(StoreConnection& connection);
  void count_buffers(StoreConnection& connection);
  void bound_buffers();
  bool make_room();
  void break_off(StoreConnectionId id, StoreConnection& connection, const Error& error);
  void drop(StoreConnectionId id);
  void mark_dirty(StoreConnectionId id, StoreConnection& connection);
  void deliver_notices();
  void flush_all();
  void flush(StoreConnectionId id, StoreConnection& connection);

  asio::any_io_executor executor_;
  TcpStoreOptions options_;
  std::uint16_t port_;
  KeyStore store_;
  std::shared_ptr<AcceptLoop> acceptor_;
  std::unordered_map<StoreConnectionId, std::unique_ptr<StoreConnection>> connections_;
  std::set<StoreConnectionId> silent_;  // have sent no request yet; ids grow, so the oldest is the first
  std::size_t held_ = 0;                // bytes of all incomplete requests and replies, and of waits
  std::uint64_t moments_ = 0;           // counts connections that came to hold much
  bool stopped_ = false;
  const std::size_t max_connections_ = options_.max_connections > 0 ? options_.max_connections
                                                                    : half_of_descriptors();
  StoreConnectionId last_id_ = 0;
  // Buffers of one turn, kept to reuse their memory.
  std::string read_buffer_;
  StoreRequest request_;
  std::vector<StoreNotice> notices_;
  std::vector<StoreConnectionId> dirty_;
};

Result<> TcpStoreServer::Loop::start(TcpListener listener) {
  // A weak pointer, since acceptor and server would keep each other alive. The acceptor does not outlive the
  // server.
  acceptor_ =
      DDP_TRY(AcceptLoop::start(executor_, std::move(listener),
                                [weak = weak_from_this()](UniqueFd socket, const asio::ip::address& peer) {
                                  if (const auto self = weak.lock()) self->connected(std::move(socket), peer);
                                }));
  return {};
}

void TcpStoreServer::Loop::stop() {
  if (stopped_) return;
  stopped_ = true;
  acceptor_->stop();
  connections_.clear();
  dirty_.clear();
}

void TcpStoreServer::Loop::connected(UniqueFd socket, const asio::ip::address& peer) {
  if (!options_.filter.allows(peer)) {
    if (options_.filter.notes_refusal(peer) && options_.on_refused) options_.on_refused(peer);
    return;
  }
  if (connections_.size() >= max_connections_ && !make_room()) return;
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A node that vanished silently must not hold a connection forever.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  auto connection = std::make_unique<StoreConnection>(executor_, peer);
  error_code ec;
  connection->fd.assign(socket.get(), ec);
  if (ec) return;
  socket.release();
  const auto added = connections_.emplace(++last_id_, std::move(connection)).first;
  silent_.insert(last_id_);
  await_read(last_id_, *added->second);
}

// A client of the store sends a request at once. Connections without one, which need no knowledge to make,
// must not keep others out.
bool TcpStoreServer::Loop::make_room() {
  if (silent_.empty()) return false;
  drop(*silent_.begin());
  flush_all();
  return true;
}

TcpStoreServer::Loop::StoreConnection* TcpStoreServer::Loop::find(StoreConnectionId id) {
  const auto entry = connections_.find(id);
  return entry == connections_.end() ? nullptr : entry->second.get();
}

void TcpStoreServer::Loop::await_read(StoreConnectionId id, StoreConnection& connection) {
  if (connection.reading) return;
  connection.reading = true;
  connection.fd.async_wait(stream_descriptor::wait_read,
                           [self = shared_from_this(), id](const error_code& ec) {
                             if (!ec) self->read_some(id);
                           });
}

void TcpStoreServer::Loop::await_write(StoreConnectionId id, StoreConnection& connection) {
  if (connection.writing) return;
  connection.writing = true;
  connection.fd.async_wait(stream_descriptor::wait_write,
                           [self = shared_from_this(), id](const error_code& ec) {
                             if (!ec) self->write_some(id);
                           });
}

void TcpStoreServer::Loop::write_some(StoreConnectionId id) {
  StoreConnection* connection = find(id);
  if (connection == nullptr) return;
  connection->writing = false;
  flush(id, *connection);
  flush_all();
  serve(id);
}

void TcpStoreServer::Loop::await_silence(StoreConnectionId id, StoreConnection& connection) {
  if (!connection.silence) connection.silence = std::make_unique<asio::steady_timer>(executor_);
  connection.silence->expires_after(kStoreSettle);
  connection.silence->async_wait([self = shared_from_this(), id](const error_code& ec) {
    StoreConnection* found = ec ? nullptr : self->find(id);
    if (found == nullptr || !found->decoder.undecided()) return;
    found->decoder.decide();
    self->serve(id);
  });
}

void TcpStoreServer::Loop::read_some(StoreConnectionId id) {
  StoreConnection* connection = find(id);
  if (connection == nullptr) return;
  connection->reading = false;
  const ssize_t got = ::recv(connection->fd.native_handle(), read_buffer_.data(), read_buffer_.size(), 0);
  if (got > 0) {
    connection->decoder.feed(std::string_view(read_buffer_).substr(0, static_cast<std::size_t>(got)));
    serve(id);
  } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    await_read(id, *connection);
  } else {
    drop(id);
    flush_all();
  }
}

// Serves the received requests, then waits for more. While the peer does not take its replies, waits for that
// instead.
void TcpStoreServer::Loop::serve(StoreConnectionId id) {
  StoreConnection* served = find(id);
  if (served == nullptr || served->resuming) return;
  // A peer that sends and does not read gets nothing more done, so that its replies stay bounded.
  if (served->backlog() >= kMaxBacklog) return count_buffers(*served);
  const ServeResult progress = serve_buffered(id, *served);
  flush_all();
  if (StoreConnection* connection = progress == ServeResult::kGone ? nullptr : find(id)) {
    count_buffers(*connection);
    connection = find(id);  // it may have ended
    if (connection == nullptr) return;
    if (progress == ServeResult::kTurnOver ||
        (progress == ServeResult::kBacklogged && connection->backlog() < kMaxBacklog))
      return resume_later(id, *connection);
    if (progress == ServeResult::kBacklogged) return;
    if (connection->decoder.undecided()) await_silence(id, *connection);
    await_read(id, *connection);
  }
}

void TcpStoreServer::Loop::resume_later(StoreConnectionId id, StoreConnection& connection) {
  // A new turn by way of the loop: other connections are served in between.
  connection.resuming = true;
  asio::post(executor_, [self = shared_from_this(), id] {
    StoreConnection* found = self->find(id);
    if (found == nullptr) return;
    found->resuming = false;
    self->serve(id);
  });
}

void TcpStoreServer::Loop::note_held(StoreConnection& connection) {
  const std::size_t now = connection.buffers();
  if (now >= kLarge && connection.held < kLarge) connection.large_since = ++moments_;
  held_ += now - connection.held;
  connection.held = now;
}

void TcpStoreServer::Loop::count_buffers(StoreConnection& connection) {
  note_held(connection);
  if (held_ > options_.max_buffers) bound_buffers();
}

// Each connection may hold a legal request, reply and wait, but not all of them at once. Ends those that hold
// the most for the longest time, counted by the large requests that came later: a rank's large request is
// soon complete, what strangers leave unfinished stays. The caller must look its connection up again.
void TcpStoreServer::Loop::bound_buffers() {
  for (const auto& [id, connection] : connections_) {  // others got notices, or sent some of their replies
    note_held(*connection);
  }
  const auto weight = [this](const auto& entry) {
    const StoreConnection& connection = *entry.second;
    const std::uint64_t age = connection.held < kLarge ? 0 : moments_ - connection.large_since;
    return connection.held * (age + 1);
  };
  while (held_ > options_.max_buffers) {
    const auto heaviest = std::ranges::max_element(connections_, {}, weight);
    break_off(heaviest->first, *heaviest->second,
              Error{ErrorCode::kSystem,
                    "the unfinished requests, unread replies and waits of all connections exceed " +
                        format_bytes(options_.max_buffers) + ", and this one held much of it for long",
                    ENOMEM});
  }
  flush_all();
}

TcpStoreServer::Loop::ServeResult TcpStoreServer::Loop::serve_buffered(StoreConnectionId id,
                                                                       StoreConnection& connection) {
  const std::size_t before = connection.out.size();
  for (int requests = 0; connection.backlog() < kMaxBacklog; ++requests) {
    if (requests >= kTurnRequests || connection.out.size() - before >= kTurnBytes)
      return ServeResult::kTurnOver;
    const Result<bool> next = connection.decoder.next(request_);
    if (next && !*next) return ServeResult::kNeedsBytes;
    if (std::exchange(connection.silent, false)) silent_.erase(id);
    Result<> done = next ? Result<>() : Result<>(next.error());
    // By this name other nodes recognise the store of their job (Probe). It protects nothing
    // (docs/developers/store_protocol.md).
    if (next && asks_for(options_.token, request_)) {
      connection.out.push_back(static_cast<char>(kCheckReady));
      mark_dirty(id, connection);
    } else if (next) {
      done = store_.handle(id, request_, connection.out, notices_);
      // Any other request has ended the wait of this connection.
      connection.waits = request_.op == StoreOp::kWait ? store_.wait_bytes(id) : 0;
      deliver_notices();
      mark_dirty(id, connection);
    }
    if (!done) {
      break_off(id, connection, done.error());
      return ServeResult::kGone;
    }
  }
  return ServeResult::kBacklogged;
}

void TcpStoreServer::Loop::break_off(StoreConnectionId id, StoreConnection& connection, const Error& error) {
  const asio::ip::address address = connection.address;
  drop(id);
  if (options_.on_broken) options_.on_broken(address, error);
}

void TcpStoreServer::Loop::drop(StoreConnectionId id) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end()) return;
  held_ -= entry->second->held;
  connections_.erase(entry);
  silent_.erase(id);
  store_.close(id, notices_);
  deliver_notices();
  acceptor_->descriptor_freed();
}

void TcpStoreServer::Loop::mark_dirty(StoreConnectionId id, StoreConnection& connection) {
  if (connection.dirty || connection.backlog() == 0) return;
  connection.dirty = true;
  dirty_.push_back(id);
}

void TcpStoreServer::Loop::deliver_notices() {
  for (const StoreNotice& notice : notices_) {
    StoreConnection* connection = find(notice.to);
    if (connection == nullptr) continue;
    connection->out += notice.bytes;
    mark_dirty(notice.to, *connection);
  }
  notices_.clear();
}

// Sends once per connection and turn, however many replies it collected. A send that fails can add notices
// for other connections.
void TcpStoreServer::Loop::flush_all() {
  while (!dirty_.empty()) {
    const StoreConnectionId id = dirty_.back();
    dirty_.pop_back();
    StoreConnection* connection = find(id);
    if (connection == nullptr) continue;
    connection->dirty = false;
    flush(id, *connection);
  }
}

void TcpStoreServer::Loop::flush(StoreConnectionId id, StoreConnection& connection) {
  for (std::size_t gone_now = 0; connection.backlog() > 0;) {
    if (gone_now >= kTurnBytes) return await_write(id, connection);
    const ssize_t gone = ::send(connection.fd.native_handle(), connection.out.data() + connection.sent,
                                std::min(connection.backlog(), kTurnBytes), MSG_NOSIGNAL);
    if (gone >= 0) {
      connection.sent += static_cast<std::size_t>(gone);
      gone_now += static_cast<std::size_t>(gone);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      // Erased when the sent part is the larger one, so that each byte moves at most once on average.
      if (connection.sent >= connection.backlog()) connection.out.erase(0, std::exchange(connection.sent, 0));
      return await_write(id, connection);
    }
    return drop(id);
  }
  connection.sent = 0;
  connection.out.clear();
  if (connection.out.capacity() > kKeepCapacity) connection.out.shrink_to_fit();
}

Result<TcpStoreServer> TcpStoreServer::open(asio::any_io_executor executor, TcpStoreOptions options) {
  auto listener = DDP_TRY(within("store", options.port ? listen_tcp(options.scope, *options.port)
                                                       : listen_tcp_picked(options.scope, options.range)));
  auto loop = std::make_shared<Loop>(std::move(executor), std::move(options), listener.port);
  DDP_TRY(loop->start(std::move(listener)));
  return TcpStoreServer(std::move(loop));
}

TcpStoreServer::TcpStoreServer(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

TcpStoreServer& TcpStoreServer::operator=(TcpStoreServer&& other) noexcept {
  if (this != &other) {
    stop();
    loop_ = std::move(other.loop_);
  }
  return *this;
}

TcpStoreServer::~TcpStoreServer() {
  stop();
}

std::uint16_t TcpStoreServer::port() const {
  return loop_->port();
}

void TcpStoreServer::stop() {
  if (loop_) loop_->stop();
}

}  // namespace ddp::rendezvous
