#include "rendezvous/link/secure_link.h"

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

/// Appends the available bytes, up to one byte more than kMaxClientHello in total. Returns their number as
/// recv().
ssize_t receive(int fd, std::string& into) {
  std::array<char, kMaxClientHello + 1> buffer;
  const ssize_t count = ::recv(fd, buffer.data(), buffer.size() - into.size(), MSG_DONTWAIT);
  into.append(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return count;
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
  bool proven = false;  ///< its hello comes next
  bool gone = false;    ///< refused or joined: its task has nothing left to do
};

SecureAcceptor::SecureAcceptor(asio::any_io_executor executor, SecureAcceptorOptions options)
    : executor_(executor),
      options_(std::move(options)),
      side_{options_.where, options_.token.origin, token_check(options_.token.secret)},
      limiter_(options_.limits),
      timer_(executor) {}

Result<std::shared_ptr<SecureAcceptor>> SecureAcceptor::start(asio::any_io_executor executor,
                                                              SecureAcceptorOptions options) {
  if (options.token.secret.size() < LinkToken::kMinSize)
    return Error{ErrorCode::kInternal, "internal error: a TLS port without a token (please report)"};
  DDP_TRY(secure_context());
  std::shared_ptr<SecureAcceptor> made(new SecureAcceptor(executor, std::move(options)));
  AcceptLoop::OnConnection accepted = [weak = made->weak_from_this()](UniqueFd socket,
                                                                      const asio::ip::address& peer) {
    if (const auto self = weak.lock()) self->connected(std::move(socket), peer);
  };
  made->accepts_ = DDP_TRY(
      AcceptLoop::start(std::move(executor), std::move(made->options_.listener), std::move(accepted)));
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
    return note(*why, guest->key, refusal_line(*why, peer.to_string(), {}, {}, side_));
  guests_.emplace(guest->id, guest);
  close_overdue();  // another connection may have been evicted for this one
  if (stopped_) return;
  set_link_options(socket.get());
  error_code error;
  guest->socket.assign(socket.get(), error);
  if (error) return leave(*guest);
  socket.release();
  if (limiter_.full()) accepts_->pause();
  spawn(executor_, greet(shared_from_this(), guest));
}

Awaitable<> SecureAcceptor::greet(std::shared_ptr<SecureAcceptor> self, std::shared_ptr<Guest> guest) {
  co_await self->identify(guest);
  if (guest->gone) co_return;
  if (const auto begun = self->begin_tls(*guest); !begun)
    co_return self->refuse(*guest, LinkRefusal::kBroken, begun.error().text);
  const HandshakeEnd end = co_await guest->stream->handshake();
  if (guest->gone) co_return;
  if (end.refusal) co_return self->refuse(*guest, *end.refusal, end.detail);
  guest->proven = true;
  const auto line = co_await read_line(*guest->stream);
  const auto hello = line ? parse_hello(*line) : Result<LinkHello>(line.error());
  if (guest->gone) co_return;
  if (!hello) co_return self->refuse(*guest, LinkRefusal::kBadHello, hello.error().text);
  self->leave(*guest);
  self->options_.on_joined({std::move(guest->stream), *guest->claim, guest->peer, *hello});
}

/// Reads the ClientHello and the identity in it, which is not proven yet. Returns when the identity is
/// admitted or the guest is gone.
Awaitable<> SecureAcceptor::identify(std::shared_ptr<Guest> guest) {
  ParsedClientHello parsed;
  while (!guest->gone && parsed.identity.empty()) {
    const ssize_t got = receive(guest->socket.native_handle(), guest->received);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      (void)co_await guest->socket.async_wait(Descriptor::wait_read, kUseTuple);
      continue;
    }
    if (got <= 0) {
      refuse(*guest, LinkRefusal::kBroken, guest->received.empty() ? "it sent nothing" : "in its hello");
      break;
    }
    parsed = parse_client_hello(guest->received);
    if (parsed.refusal)
      refuse(*guest, *parsed.refusal,
             parsed.why.empty() ? printable_start(guest->received) : std::string(parsed.why));
  }
  if (guest->gone) co_return;
  auto identity = parse_identity(parsed.identity);
  if (!identity) {
    const bool other_link = identity.error() == LinkRefusal::kOtherLink;
    co_return refuse(*guest, identity.error(), other_link ? "" : "its identity is not one of ddplaunch");
  }
  guest->claim = std::move(*identity);
  if (guest->claim->role != options_.awaited)
    refuse(*guest, LinkRefusal::kOtherRole);
  else if (!options_.job.empty() && guest->claim->job != options_.job)
    refuse(*guest, LinkRefusal::kOtherJob);
  else
    limiter_.greeted(guest->id);
}

Result<> SecureAcceptor::begin_tls(Guest& guest) {
  const auto link = link_key(options_.token.secret, guest.claim->role, guest.claim->job, guest.claim->node);
  auto key = DDP_TRY(link ? session_key(*link, *guest.claim) : Result<Secret>(link.error()));
  guest.stream = DDP_TRY(SecureStream::make(
      SecureStream::TlsRole::kServer,
      {std::move(guest.socket), *guest.claim, std::move(key), std::exchange(guest.received, {})}));
  return {};
}

/// Removes the guest from the count, sends the alert if the guest can receive it, closes, and writes the log
/// line.
void SecureAcceptor::refuse(Guest& guest, LinkRefusal why, std::string detail) {
  if (guest.proven && std::exchange(why, LinkRefusal::kBadHello) != LinkRefusal::kBadHello)
    detail = "none came in time";
  // Only a ddplaunch hello with a wrong proof counts as failed. Slow or closed connections and other
  // protocols do not.
  const bool failed = guest.stream && (why == LinkRefusal::kTokenDiffers || why == LinkRefusal::kOtherTls);
  leave(guest);
  if (failed) limiter_.failed(guest.key, Clock::now());
  // OpenSSL has sent its own alert if it found the error.
  if (!guest.stream && guest.socket.is_open()) {
    const std::string record = alert_record(why);
    (void)::send(guest.socket.native_handle(), record.data(), record.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  guest.close();
  note(why, guest.key, refusal_line(why, guest.peer.to_string(), guest.claim, detail, side_));
}

void SecureAcceptor::note(LinkRefusal why, const std::string& address, std::string line) {
  if (stopped_ || !options_.on_note) return;
  const auto passed = log_.pass(why, address, std::move(line), Clock::now());
  if (passed) options_.on_note(*passed);
}

/// Ends the guest's wait.
void SecureAcceptor::leave(Guest& guest) {
  guest.gone = true;
  limiter_.ended(guest.id);
  guests_.erase(guest.id);
  if (!limiter_.full()) accepts_->resume();
}

/// Closes the connections whose time is over, and sets the timer for the next one.
void SecureAcceptor::close_overdue() {
  for (const AdmissionLimiter::Overdue& overdue : limiter_.take_overdue(Clock::now())) {
    const std::shared_ptr<Guest> guest = guests_.at(overdue.id);
    refuse(*guest, overdue.why);
    if (stopped_) return;
  }
  const auto turn = limiter_.next_turn();
  if (!turn) return;
  timer_.expires_at(*turn);
  timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    if (const auto self = weak.lock(); self && !error) self->close_overdue();
  });
}

namespace {

using asio::ip::tcp;
constexpr std::chrono::milliseconds kFirstPause{50};
/// The time for the answer of an end that has accepted the link.
constexpr std::chrono::seconds kAnswerTime{10};
/// The time until a master misses the process that this one replaces; it relies on heartbeats.
constexpr std::chrono::seconds kReplaceTime{6};
constexpr std::chrono::milliseconds kReplacePause{500};
/// A restarting daemon listens again within this time.
constexpr std::chrono::seconds kRestartTime{5};

/// Closes what is under way at a deadline. Destroying the object cancels the deadline.
class CloseAt {
 public:
  CloseAt(const asio::any_io_executor& executor, Clock::time_point at, std::function<void()> close)
      : timer_(executor, at) {
    timer_.async_wait(
        [late = std::weak_ptr<bool>(late_), close = std::move(close)](const error_code& cancelled) {
          const auto alive = late.lock();
          if (cancelled || !alive) return;
          *alive = true;
          close();
        });
  }
  bool late() const { return *late_; }

 private:
  std::shared_ptr<bool> late_ = std::make_shared<bool>(false);
  asio::steady_timer timer_;
};

/// Returns whether the calling task was cancelled.
Awaitable<bool> is_cancelled() {
  const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
  co_return state.cancelled() != asio::cancellation_type::none;
}

JoinOutcome failed(ErrorCode code, std::string text, bool try_again, int sys = 0) {
  JoinOutcome outcome;
  outcome.error = Error{code, std::move(text), sys};
  outcome.try_again = try_again;
  return outcome;
}

/// Returns no error when connected, else the errno.
Awaitable<error_code> connect_socket(Descriptor& socket, const tcp::endpoint& endpoint) {
  UniqueFd fd(
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) co_return error_code(errno, boost::system::system_category());
  error_code error;
  socket.assign(fd.get(), error);
  if (error) co_return error;
  fd.release();
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

ErrorCode code_of(LinkRefusal refusal) {
  switch (refusal) {
    case LinkRefusal::kOtherLink:
    case LinkRefusal::kOtherTls:
    case LinkRefusal::kPlain:
    case LinkRefusal::kHttp:
    case LinkRefusal::kOtherVersion: return ErrorCode::kAgentMismatch;
    case LinkRefusal::kTaken:
    case LinkRefusal::kOutOfRange:
    case LinkRefusal::kFull:
    case LinkRefusal::kOtherSize: return ErrorCode::kUsage;
    case LinkRefusal::kNoAgent: return ErrorCode::kAgentMissing;
    case LinkRefusal::kBadHello: return ErrorCode::kLinkLost;
    case LinkRefusal::kSilent: return ErrorCode::kTimeout;
    default: return ErrorCode::kUnreachable;
  }
}

/// `detail` is what the other side sent.
JoinOutcome refused(LinkRefusal refusal, const LinkSide& here, const std::string& detail) {
  const bool again = refusal == LinkRefusal::kBroken || refusal == LinkRefusal::kTooMany;
  return failed(code_of(refusal),
                join_refusal_text(refusal, here) + (detail.empty() ? "" : " (" + detail + ")"), again);
}

/// Sends the hello on a proven link and reads the answer. The listening end may still drop the connection
/// before it has read the last bytes of the handshake; so without an answer the caller tries again.
Awaitable<JoinOutcome> exchange_hello(std::unique_ptr<SecureStream> stream, const LinkHello& hello,
                                      const LinkSide& here, Clock::time_point deadline) {
  const auto executor = co_await asio::this_coro::executor;
  const CloseAt watch(executor, std::min(deadline, Clock::now() + kAnswerTime),
                      [raw = stream.get()] { raw->close(); });
  const error_code unsaid = co_await write_line(*stream, hello_line(hello));
  const auto line = co_await read_line(*stream);
  auto answer = line ? parse_answer(*line) : Result<LinkAnswer>(line.error());
  if (!answer) {
    JoinOutcome outcome =
        refused(LinkRefusal::kBadHello, here, watch.late() ? "it was silent" : answer.error().text);
    outcome.try_again = unsaid || watch.late() || answer.error().code == ErrorCode::kLinkLost;
    if (!outcome.try_again) outcome.error.code = answer.error().code;
    co_return outcome;
  }
  JoinOutcome outcome;
  if (answer->rank) {
    outcome.stream = std::move(stream);
  } else {
    outcome = refused(answer->refusal, here, {});
    outcome.error.text += ": " + answer->text;
  }
  outcome.answer = std::move(*answer);
  co_return outcome;
}

Awaitable<JoinOutcome> connect_one(tcp::endpoint endpoint, const LinkGoal& goal, const LinkSide& here,
                                   Clock::time_point deadline) {
  const auto executor = co_await asio::this_coro::executor;
  LinkIdentity identity = goal.as;
  if (::getrandom(identity.nonce.data(), identity.nonce.size(), 0) !=
      static_cast<ssize_t>(identity.nonce.size()))
    co_return failed(ErrorCode::kSystem, "no random bytes for a link", false, errno);
  auto key = session_key(goal.key, identity);
  if (!key) co_return failed(key.error().code, key.error().text, false);
  Descriptor socket(executor);
  {
    const CloseAt watch(executor, deadline, [&socket] {
      error_code ignored;
      socket.close(ignored);
    });
    const error_code error = co_await connect_socket(socket, endpoint);
    if (error || watch.late()) {
      const error_code why = watch.late() ? asio::error::timed_out : error;
      const bool late = why == asio::error::timed_out;
      co_return failed(late ? ErrorCode::kTimeout : ErrorCode::kUnreachable,
                       "no answer at " + here.where + ": " + why.message(), true, why.value());
    }
  }
  set_link_options(socket.native_handle());
  auto stream =
      SecureStream::make(SecureStream::TlsRole::kClient, {std::move(socket), identity, std::move(*key)});
  if (!stream) co_return failed(stream.error().code, stream.error().text, false);
  {
    const CloseAt watch(executor, deadline, [raw = stream->get()] { raw->close(); });
    const HandshakeEnd end = co_await (*stream)->handshake();
    if (watch.late()) co_return refused(LinkRefusal::kSilent, here, {});
    if (end.refusal) co_return refused(*end.refusal, here, end.detail);
  }
  co_return co_await exchange_hello(std::move(*stream), goal.hello, here, deadline);
}

}  // namespace

Result<LinkGoal> link_goal(std::string host, std::uint16_t port, LinkIdentity as, const LinkToken& token,
                           LinkHello hello) {
  auto key = DDP_TRY(link_key(token.secret, as.role, as.job, as.node));
  return LinkGoal{std::move(host), port,         std::move(as),
                  std::move(key),  token.origin, token_check(token.secret),
                  std::move(hello)};
}

Awaitable<JoinOutcome> secure_connect(std::vector<tcp::endpoint> endpoints, const LinkGoal& goal,
                                      Clock::time_point deadline) {
  LinkSide here{format_endpoint(goal.host, goal.port), goal.token_origin, goal.token_check, goal.as.job,
                goal.as.role};
  const std::string where = here.where;
  JoinOutcome outcome = failed(ErrorCode::kUnreachable, where + " has no address", true);
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    const std::string address = endpoints[i].address().to_string();
    here.where = where.find(address) == std::string::npos ? where + " (" + address + ")" : where;
    // If one address drops packets, the others still get their share of the time.
    const auto now = Clock::now();
    const auto share = now + (deadline - now) / static_cast<long>(endpoints.size() - i);
    outcome = co_await connect_one(endpoints[i], goal, here, share);
    outcome.address = address;
    const bool cancelled = co_await is_cancelled();
    if (cancelled && !outcome.stream) co_return failed(ErrorCode::kCancelled, "cancelled", false);
    if (outcome.stream || !outcome.try_again) break;
  }
  co_return outcome;
}

Awaitable<JoinOutcome> secure_join(const Resolve& resolve, const LinkGoal& goal, Clock::time_point deadline) {
  std::minstd_rand random(std::random_device{}());
  const auto executor = co_await asio::this_coro::executor;
  const bool to_daemon = goal.as.role == LinkRole::kMaster;
  const auto patient_until = to_daemon ? std::min(deadline, Clock::now() + kRestartTime) : deadline;
  const std::chrono::milliseconds longest_pause(to_daemon ? 1000 : 2000);
  std::optional<Clock::time_point> replaced_by;
  std::chrono::milliseconds pause = kFirstPause;
  for (;;) {
    auto endpoints = co_await resolve(goal.host, goal.port, deadline);
    JoinOutcome outcome;
    if (endpoints)
      outcome = co_await secure_connect(std::move(*endpoints), goal, deadline);
    else
      outcome = failed(endpoints.error().code, endpoints.error().text, !to_daemon);
    const bool occupied =
        outcome.answer.refusal == LinkRefusal::kTaken || outcome.answer.refusal == LinkRefusal::kFull;
    if (occupied) {
      if (!replaced_by) replaced_by = Clock::now() + kReplaceTime;
      outcome.try_again = Clock::now() < *replaced_by;
      pause = kReplacePause;
    }
    if (outcome.stream || !outcome.try_again) co_return outcome;
    // Waits between half and all of the pause, so that nodes refused together do not retry together.
    const auto wait = pause / 2 + std::chrono::milliseconds(random() % (pause.count() / 2 + 1));
    if (Clock::now() + wait >= patient_until) {
      if (to_daemon || occupied) co_return outcome;
      outcome.error.code = ErrorCode::kTimeout;
      outcome.error = within("no master answered in time", std::move(outcome.error));
      if (endpoints)
        outcome.error.text += "; check that ddplaunch runs on node 0 and that this port is open there";
      co_return outcome;
    }
    co_await pause_for(executor, wait);
    const bool cancelled = co_await is_cancelled();
    if (cancelled) co_return failed(ErrorCode::kCancelled, "cancelled", false);
    pause = std::min(2 * pause, longest_pause);
  }
}

Awaitable<error_code> write_line(ByteStream& stream, std::string bytes) {
  std::string_view rest(bytes);
  error_code error;
  while (!error && !rest.empty()) {
    const auto [failed, count] = co_await stream.write_some(asio::buffer(rest));
    rest.remove_prefix(count);
    error = failed;
  }
  co_return error;
}

Awaitable<Result<std::string>> read_line(ByteStream& stream) {
  std::string line;
  while (line.size() < kMaxHelloLine) {
    char next = 0;
    const auto [error, count] = co_await stream.read_some(asio::buffer(&next, 1));
    if (count == 1 && next == '\n') co_return line;
    if (error) {
      co_return Error{line.empty() ? ErrorCode::kLinkLost : ErrorCode::kProtocol,
                      error == asio::error::eof ? "the other side closed the connection" : error.message(),
                      0};
    }
    line.append(&next, count);
  }
  co_return Error{ErrorCode::kProtocol, "its first line is too long", 0};
}

}  // namespace ddp::rendezvous
