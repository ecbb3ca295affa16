#include "rendezvous/secure/secure_connect.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <random>
#include <utility>

#include "base/format_text.h"
#include "base/link_socket.h"
#include "base/readable.h"
#include "base/unique_fd.h"
#include "rendezvous/secure/secure_stream.h"
#include "rendezvous/secure/secure_stream_key.h"

namespace ddp::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;
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
  do {  // base/readable.h explains why readiness is checked again
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
