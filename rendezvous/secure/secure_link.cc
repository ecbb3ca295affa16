#include "rendezvous/secure/secure_link.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <utility>

#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;

/// Returns the address that the limiter counts: an IPv4 address, or the /64 of an IPv6 address, since one
/// peer can use all of a /64.
std::string limiter_key(const asio::ip::address& address) {
  if (!address.is_v6()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::address_v6(bytes).to_string() + "/64";
}

enum class ReceiveResult : std::uint8_t { kSome, kNothing, kEnd };

/// Appends the available bytes, up to one byte more than kMaxClientHello in total.
ReceiveResult receive(int fd, std::string& into) {
  std::array<char, kMaxClientHello + 1> buffer;
  const std::size_t room = buffer.size() - into.size();
  ssize_t count = 0;
  do {
    count = ::recv(fd, buffer.data(), room, MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    into.append(buffer.data(), static_cast<std::size_t>(count));
    return ReceiveResult::kSome;
  }
  return count < 0 && errno == EAGAIN ? ReceiveResult::kNothing : ReceiveResult::kEnd;
}

}  // namespace

/// One connection from accept to proof. It may be closed, and no longer counted, while its task still runs.
struct SecureAcceptor::Guest {
  Guest(Id number, asio::any_io_executor executor, asio::ip::address address)
      : id(number), socket(std::move(executor)), peer(std::move(address)), key(limiter_key(peer)) {}

  void close() {
    if (stream) stream->close();
    error_code ignored;
    socket.close(ignored);
  }

  Id id;
  Descriptor socket;  ///< until `stream` has it
  asio::ip::address peer;
  std::string key;  ///< for the limiter
  std::string received;
  std::optional<LinkIdentity> claim;
  std::unique_ptr<SecureStream> stream;
  bool gone = false;  ///< refused or joined: its task has nothing left to do
};

SecureAcceptor::SecureAcceptor(asio::any_io_executor executor, std::shared_ptr<const SecureContext> context,
                               SecureAcceptorOptions options, SecureAcceptorCallbacks callbacks)
    : executor_(executor),
      context_(std::move(context)),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      side_{options_.where, options_.token.origin, token_check(options_.token.secret)},
      limiter_(options_.limits),
      timer_(executor) {}

Result<std::shared_ptr<SecureAcceptor>> SecureAcceptor::start(asio::any_io_executor executor,
                                                              std::shared_ptr<const SecureContext> context,
                                                              TcpListener listener,
                                                              SecureAcceptorOptions options,
                                                              SecureAcceptorCallbacks callbacks) {
  if (options.token.secret.size() < LinkToken::kMinSize)
    return Error{ErrorCode::kInternal, "internal error: a TLS port without a token (please report)"};
  std::shared_ptr<SecureAcceptor> made(
      new SecureAcceptor(executor, std::move(context), std::move(options), std::move(callbacks)));
  AcceptLoop::Callbacks accepted;
  accepted.on_connection = [weak = made->weak_from_this()](UniqueFd socket, const asio::ip::address& peer) {
    if (const auto self = weak.lock()) self->connected(std::move(socket), peer);
  };
  auto accepts = AcceptLoop::start(std::move(executor), std::move(listener), {}, std::move(accepted));
  if (!accepts) return accepts.error();
  made->accepts_ = std::move(*accepts);
  return made;
}

void SecureAcceptor::stop() {
  if (std::exchange(stopped_, true)) return;
  accepts_->stop();
  timer_.cancel();
  for (auto& [id, guest] : std::exchange(guests_, {})) {
    guest->gone = true;
    guest->close();
  }
}

void SecureAcceptor::connected(UniqueFd socket, const asio::ip::address& peer) {
  auto guest = std::make_shared<Guest>(++last_id_, executor_, peer);
  if (const auto why = limiter_.admit(guest->id, guest->key, Clock::now()))
    return note(*why, guest->key, {peer.to_string(), {}, {}});
  const auto turn = limiter_.next_turn();
  if (turn && *turn <= Clock::now()) close_overdue();  // another connection was evicted for this one
  if (stopped_) return;
  set_link_options(socket.get());
  error_code error;
  guest->socket.assign(socket.get(), error);
  if (error) return limiter_.ended(guest->id);
  socket.release();
  guests_.emplace(guest->id, guest);
  if (limiter_.full()) accepts_->pause();
  spawn(executor_, greet(shared_from_this(), guest));
  if (!stopped_) watch();
}

Awaitable<> SecureAcceptor::greet(std::shared_ptr<SecureAcceptor> self, std::shared_ptr<Guest> guest) {
  const bool hello = co_await self->read_hello(guest);
  if (guest->gone || !hello || !self->identify(*guest) || !self->begin_tls(*guest)) co_return;
  const HandshakeEnd end = co_await guest->stream->handshake();
  if (!guest->gone) self->finish(*guest, end);
}

/// Returns true when `received` contains a whole ddplaunch hello.
Awaitable<bool> SecureAcceptor::read_hello(std::shared_ptr<Guest> guest) {
  while (!guest->gone) {
    const ReceiveResult got = receive(guest->socket.native_handle(), guest->received);
    if (got == ReceiveResult::kEnd) {
      refuse(*guest, LinkRefusal::kBroken, guest->received.empty() ? "it sent nothing" : "in its hello");
      break;
    }
    if (got == ReceiveResult::kNothing) {
      (void)co_await guest->socket.async_wait(Descriptor::wait_read, kUseTuple);
      continue;
    }
    const ParsedClientHello parsed = parse_client_hello(guest->received);
    switch (parsed.kind) {
      case ParsedClientHello::Kind::kOffer:
        co_return true;
      case ParsedClientHello::Kind::kNeedsMore:
        continue;
      case ParsedClientHello::Kind::kHttp:
        refuse(*guest, LinkRefusal::kHttp, printable_start(guest->received));
        break;
      case ParsedClientHello::Kind::kPlain:
        refuse(*guest, LinkRefusal::kPlain, printable_start(guest->received));
        break;
      case ParsedClientHello::Kind::kOtherTls:
        refuse(*guest, LinkRefusal::kOtherTls, std::string(parsed.why));
        break;
    }
  }
  co_return false;
}

/// Reads the identity in the hello and returns whether it is admitted.
bool SecureAcceptor::identify(Guest& guest) {
  auto identity = parse_identity(parse_client_hello(guest.received).identity);
  if (!identity) {
    const bool other_version = identity.error() == IdentityFlaw::kOtherVersion;
    refuse(guest, other_version ? LinkRefusal::kOtherVersion : LinkRefusal::kOtherTls,
           other_version ? "" : "its identity is not one of ddplaunch");
    return false;
  }
  guest.claim = std::move(*identity);
  const auto why = options_.admits ? options_.admits(*guest.claim) : std::nullopt;
  if (!guest.gone && why) refuse(guest, *why);
  if (!guest.gone) limiter_.greeted(guest.id);
  return !guest.gone;
}

bool SecureAcceptor::begin_tls(Guest& guest) {
  const auto link = link_key(options_.token.secret, guest.claim->role, guest.claim->job, guest.claim->node);
  auto key = link ? session_key(*link, *guest.claim) : Result<Secret>(link.error());
  if (!key) {
    refuse(guest, LinkRefusal::kBroken, key.error().text);
    return false;
  }
  auto stream = SecureStream::make(
      context_, SecureStream::TlsRole::kServer,
      {std::move(guest.socket), *guest.claim, std::move(*key), std::exchange(guest.received, {})});
  if (!stream) {
    refuse(guest, LinkRefusal::kBroken, stream.error().text);
    return false;
  }
  guest.stream = std::move(*stream);
  return true;
}

void SecureAcceptor::finish(Guest& guest, const HandshakeEnd& end) {
  switch (end.kind) {
    case HandshakeEnd::Kind::kDone:
      leave(guest);
      return callbacks_.on_joined(std::move(guest.stream), *guest.claim, guest.peer);
    case HandshakeEnd::Kind::kKeyDiffers:
      return refuse(guest, LinkRefusal::kTokenDiffers);
    case HandshakeEnd::Kind::kAlert:
    case HandshakeEnd::Kind::kForeign:
    case HandshakeEnd::Kind::kBroken:
      return refuse(guest, LinkRefusal::kOtherTls, end.detail);
    case HandshakeEnd::Kind::kClosed:
    case HandshakeEnd::Kind::kCancelled:
      return refuse(guest, LinkRefusal::kBroken, end.error ? end.error.message() : "");
  }
}

/// Removes the guest from the count, sends the alert if the guest can receive it, closes, and writes the log
/// line.
void SecureAcceptor::refuse(Guest& guest, LinkRefusal why, std::string detail) {
  const std::string claim = guest.claim ? std::string(role_name(guest.claim->role)) + " " +
                                              guest.claim->node + " of job " + guest.claim->job
                                        : "";
  const RefusedPeer peer{
      guest.peer.to_string(), claim, std::move(detail),
      guest.claim ? "node " + guest.claim->node + ", job " + guest.claim->job : std::string()};
  // Only a ddplaunch hello with a wrong proof counts as failed. Slow or closed connections and other
  // protocols do not.
  const bool failed = guest.stream && (why == LinkRefusal::kTokenDiffers || why == LinkRefusal::kOtherTls);
  leave(guest);
  if (failed) limiter_.failed(guest.key, Clock::now());
  // OpenSSL has sent its own alert if it found the error.
  const auto alert = alert_of(why);
  if (alert && !guest.stream && guest.socket.is_open()) {
    const std::string record = alert_record(*alert);
    (void)::send(guest.socket.native_handle(), record.data(), record.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  guest.close();
  note(why, guest.key, peer);
}

void SecureAcceptor::note(LinkRefusal why, const std::string& key, const RefusedPeer& peer) {
  if (stopped_ || !callbacks_.on_note) return;
  const auto line = log_.pass(why, key, refusal_line(why, peer, side_), Clock::now());
  if (line) callbacks_.on_note(*line);
}

/// Ends the guest's wait.
void SecureAcceptor::leave(Guest& guest) {
  guest.gone = true;
  limiter_.ended(guest.id);
  guests_.erase(guest.id);
  if (!limiter_.full()) accepts_->go_on();
}

void SecureAcceptor::watch() {
  const auto turn = limiter_.next_turn();
  if (!turn || (watched_ && *watched_ <= *turn)) return;
  watched_ = turn;
  timer_.expires_at(*turn);
  timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    if (const auto self = weak.lock(); self && !error) self->close_overdue();
  });
}

void SecureAcceptor::close_overdue() {
  watched_.reset();
  for (const AdmissionLimiter::Overdue& overdue : limiter_.take_overdue(Clock::now())) {
    const auto entry = guests_.find(overdue.id);
    if (entry == guests_.end()) continue;
    const std::shared_ptr<Guest> guest = entry->second;
    refuse(*guest, overdue.why);
    if (stopped_) return;
  }
  watch();
}

namespace {

using asio::ip::tcp;
constexpr auto kFirstPause = std::chrono::milliseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(2000);

/// The object that the deadline closes: whichever is open at that moment.
struct Attempt {
  std::function<void()> close;
  bool late = false;
};

/// Ends an attempt at its deadline. Must not outlive the attempt.
class ConnectDeadline {
 public:
  ConnectDeadline(asio::any_io_executor executor, Clock::time_point at, Attempt& attempt)
      : timer_(executor, at) {
    timer_.async_wait([&attempt, alive = std::weak_ptr<int>(alive_)](const error_code& error) {
      if (error || alive.expired()) return;
      attempt.late = true;
      if (attempt.close) attempt.close();
    });
  }

 private:
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  asio::steady_timer timer_;
};

JoinOutcome failed(ErrorCode code, std::string text, bool try_again, int sys = 0) {
  return {nullptr, Error{code, std::move(text), sys}, try_again};
}

Result<LinkIdentity> fresh_identity(const JoinAs& as) {
  LinkIdentity identity{as.role, as.job, as.node, {}};
  if (::getrandom(identity.nonce.data(), identity.nonce.size(), 0) !=
      static_cast<ssize_t>(identity.nonce.size()))
    return system_error(errno, "random bytes for a link");
  return identity;
}

/// Returns no error when connected, else the errno. `attempt` can close the socket meanwhile.
Awaitable<error_code> connect_one(Descriptor& socket, tcp::endpoint endpoint, Attempt& attempt) {
  UniqueFd fd(
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) co_return error_code(errno, boost::system::system_category());
  error_code error;
  socket.assign(fd.get(), error);
  if (error) co_return error;
  fd.release();
  attempt.close = [&socket] {
    error_code ignored;
    socket.close(ignored);
  };
  if (::connect(socket.native_handle(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0)
    co_return error_code();
  if (errno != EINPROGRESS) co_return error_code(errno, boost::system::system_category());
  do {  // base/asio.h explains why readiness is checked again
    const auto [waited] = co_await socket.async_wait(Descriptor::wait_write, kUseTuple);
    if (waited) co_return waited;
  } while (!is_writable(socket.native_handle()));
  int result = 0;
  socklen_t size = sizeof result;
  ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_ERROR, &result, &size);
  co_return error_code(result, boost::system::system_category());
}

JoinOutcome refused(LinkRefusal refusal, const JoinSide& here, const std::string& detail = {}) {
  const bool mismatch = refusal == LinkRefusal::kOtherVersion || refusal == LinkRefusal::kOtherTls ||
                        refusal == LinkRefusal::kPlain || refusal == LinkRefusal::kHttp;
  const bool again = refusal == LinkRefusal::kBroken || refusal == LinkRefusal::kTooMany;
  std::string text = join_refusal_text(refusal, here);
  if (!detail.empty()) text += " (" + detail + ")";
  return failed(mismatch ? ErrorCode::kAgentMismatch : ErrorCode::kUnreachable, std::move(text), again);
}

JoinOutcome handshake_failure(const HandshakeEnd& end, const JoinSide& here) {
  using Kind = HandshakeEnd::Kind;
  switch (end.kind) {
    case Kind::kAlert:
      if (const auto refusal = refusal_of(end.alert)) return refused(*refusal, here);
      return refused(LinkRefusal::kOtherTls, here, end.detail);
    case Kind::kForeign:
      return refused(LinkRefusal::kPlain, here, "it sent " + end.detail);
    case Kind::kBroken:
    case Kind::kKeyDiffers:
      return refused(LinkRefusal::kOtherTls, here, end.detail);
    case Kind::kDone:
    case Kind::kClosed:
    case Kind::kCancelled:
      break;
  }
  return refused(LinkRefusal::kBroken, here);
}

JoinOutcome too_late(const JoinSide& here) {
  JoinOutcome outcome = refused(LinkRefusal::kSilent, here);
  outcome.error.code = ErrorCode::kTimeout;
  return outcome;
}

std::string named(const std::string& where, const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return where.find(address) == std::string::npos ? where + " (" + address + ")" : where;
}

}  // namespace

Awaitable<JoinOutcome> secure_connect(std::shared_ptr<const SecureContext> context,
                                      std::vector<tcp::endpoint> endpoints, std::string where,
                                      const JoinAs& as, Clock::time_point deadline) {
  const auto executor = co_await asio::this_coro::executor;
  JoinSide here{where, as.job, as.token_origin, as.token_check, as.role};
  const auto identity = fresh_identity(as);
  if (!identity) co_return JoinOutcome{nullptr, identity.error(), false};
  auto key = session_key(as.key, *identity);
  if (!key) co_return JoinOutcome{nullptr, key.error(), false};

  Descriptor socket(executor);
  error_code error = asio::error::host_not_found;
  for (std::size_t i = 0; i < endpoints.size() && error; ++i) {
    error_code ignored;
    socket.close(ignored);
    Attempt attempt;
    // If one address drops packets, the others still get their share of the time.
    const auto share = (deadline - Clock::now()) / static_cast<long>(endpoints.size() - i);
    const ConnectDeadline watch(executor, Clock::now() + share, attempt);
    error = co_await connect_one(socket, endpoints[i], attempt);
    if (attempt.late) error = asio::error::timed_out;
    here.where = named(where, endpoints[i]);
  }
  if (error) {
    const bool late = error == asio::error::timed_out;
    co_return failed(late ? ErrorCode::kTimeout : ErrorCode::kUnreachable,
                     "no answer at " + here.where + ": " + error.message(), true, error.value());
  }
  set_link_options(socket.native_handle());
  auto stream = SecureStream::make(std::move(context), SecureStream::TlsRole::kClient,
                                   {std::move(socket), *identity, std::move(*key)});
  if (!stream) co_return JoinOutcome{nullptr, stream.error(), false};
  Attempt attempt;
  attempt.close = [raw = stream->get()] { raw->close(); };
  const ConnectDeadline watch(executor, deadline, attempt);
  const HandshakeEnd end = co_await (*stream)->handshake();
  attempt.close = nullptr;
  if (attempt.late) co_return too_late(here);
  if (end.kind != HandshakeEnd::Kind::kDone) co_return handshake_failure(end, here);
  co_return JoinOutcome{std::move(*stream), {}, false};
}

Awaitable<Result<std::unique_ptr<ByteStream>>> secure_join(std::shared_ptr<const SecureContext> context,
                                                           const Resolve& resolve, std::string host,
                                                           std::uint16_t port, const JoinAs& as,
                                                           Clock::time_point deadline) {
  std::minstd_rand random(std::random_device{}());
  asio::steady_timer timer(co_await asio::this_coro::executor);
  const std::string where = format_endpoint(host, port);
  std::chrono::milliseconds pause = kFirstPause;
  for (;;) {
    auto endpoints = co_await resolve(host, port, deadline);
    JoinOutcome outcome;
    if (endpoints)
      outcome = co_await secure_connect(context, std::move(*endpoints), where, as, deadline);
    else
      outcome = JoinOutcome{nullptr, endpoints.error(), true};
    if (outcome.stream) co_return std::move(outcome.stream);
    if (!outcome.try_again) co_return outcome.error;
    // Waits between half and all of the pause, so that nodes refused together do not retry together.
    const auto wait = pause / 2 + std::chrono::milliseconds(random() % (pause.count() / 2 + 1));
    if (Clock::now() + wait >= deadline) {
      outcome.error.code = ErrorCode::kTimeout;
      outcome.error = within("no master answered in time", std::move(outcome.error));
      if (endpoints)
        outcome.error.text += "; check that ddplaunch runs on node 0 and that this port is open there";
      co_return std::move(outcome.error);
    }
    timer.expires_after(wait);
    co_await timer.async_wait(kUseTuple);
    pause = std::min(2 * pause, kLongestPause);
  }
}

Awaitable<Result<std::vector<tcp::endpoint>>> address_only(std::string host, std::uint16_t port,
                                                           Clock::time_point) {
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error) co_return Error{ErrorCode::kUsage, host + " is not an address"};
  co_return std::vector<tcp::endpoint>{{address, port}};
}

}  // namespace ddp::rendezvous
