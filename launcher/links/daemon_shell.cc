#include "launcher/links/daemon_shell.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "launcher/links/daemon_channel.h"
#include "rendezvous/identity/link_identity.h"
#include "rendezvous/secure/secure_stream_key.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using asio::ip::tcp;
using rendezvous::JoinOutcome;

/// A daemon that is being restarted is back by then; where nobody listens the user is not kept waiting.
constexpr std::chrono::seconds kRestartTime{5};
constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{1000};

tcp::endpoint as_endpoint(const remote::Endpoint& endpoint) {
  tcp::endpoint address;
  std::memcpy(address.data(), &endpoint.address, endpoint.size);
  address.resize(endpoint.size);
  return address;
}

Error cancelled(const std::string& host) {
  return Error{ErrorCode::kCancelled, host + ": cancelled", 0};
}

/// What nobody listening means for a daemon.
Error in_words_of_daemons(const std::string& host, std::uint16_t port, Error error) {
  const std::string at_port = std::to_string(port);
  if (error.sys == ECONNREFUSED) {
    error.text = host + ": nobody listens at port " + at_port +
                 "; is ddplaunchd --listen running there? systemctl --user start ddplaunchd (docs/daemon.md)";
    return error;
  }
  if (error.sys == ETIMEDOUT) {
    error.text += "; is the machine up, and does a firewall let port " + at_port + " through?";
  }
  return within(host, std::move(error));
}

}  // namespace

/// To one host.
struct DaemonShell::Way {
  std::vector<remote::Endpoint> endpoints;
  std::string where;  ///< with the port
  rendezvous::JoinAs as;
  remote::Deadline deadline;
  std::string address;  ///< of the last endpoint that was tried
};

DaemonShell::DaemonShell(const asio::any_io_executor& loop,
                         std::shared_ptr<const rendezvous::SecureContext> context, Options options)
    : loop_(loop),
      context_(std::move(context)),
      options_(std::move(options)),
      token_check_(rendezvous::token_check(options_.token.secret)),
      resolver_(loop) {}

Result<std::unique_ptr<DaemonShell>> DaemonShell::make(const asio::any_io_executor& loop, Options options) {
  auto context = rendezvous::SecureContext::make();
  if (!context) return context.error();
  return std::unique_ptr<DaemonShell>(new DaemonShell(loop, std::move(*context), std::move(options)));
}

Result<rendezvous::JoinAs> DaemonShell::join_as(const std::string& host) const {
  rendezvous::JoinAs as;
  as.role = rendezvous::LinkRole::kMaster;
  as.job = options_.job;
  as.node = rendezvous::link_name_of(host);
  auto key = rendezvous::link_key(options_.token.secret, as.role, as.job, as.node);
  if (!key) return key.error();
  as.key = std::move(*key);
  as.token_origin = options_.token.origin;
  as.token_check = token_check_;
  return as;
}

/// Each address once, with its share of the time, so that a cancelled start ends with the one under way.
Awaitable<JoinOutcome> DaemonShell::try_all(std::shared_ptr<Way> way) {
  JoinOutcome outcome;
  const std::size_t count = way->endpoints.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto now = Clock::now();
    const auto share = now + (way->deadline - now) / static_cast<long>(count - i);
    way->address = way->endpoints[i].host;
    std::vector<tcp::endpoint> one{as_endpoint(way->endpoints[i])};
    outcome = co_await rendezvous::secure_connect(context_, std::move(one), way->where, way->as, share);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (outcome.stream || !outcome.try_again || state.cancelled() != asio::cancellation_type::none) break;
  }
  co_return outcome;
}

Awaitable<Result<std::unique_ptr<remote::Channel>>> DaemonShell::open(remote::Host host,
                                                                      std::vector<std::string>,
                                                                      remote::Deadline deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (!host.wrapper.empty()) {
    co_return Error{ErrorCode::kUsage, host.name +
                                           ": a daemon starts its own ddplaunchd and no wrapper; run "
                                           "the daemon inside the container, or use --launcher ssh"};
  }
  const std::string target = host.address.empty() ? host.name : host.address;
  const std::uint16_t port = host.port != 0 ? host.port : options_.port;
  auto as = join_as(host.name);
  if (!as) co_return within(host.name, as.error());
  auto found = co_await resolver_.resolve(target, port, AF_UNSPEC, deadline);
  if (!found) co_return within(host.name, found.error());
  auto way = std::make_shared<Way>();
  way->endpoints = std::move(*found);
  way->where =
      (target.find(':') == std::string::npos ? target : "[" + target + "]") + ":" + std::to_string(port);
  way->as = std::move(*as);
  way->deadline = deadline;

  asio::steady_timer timer(loop_);
  std::minstd_rand random(std::random_device{}());
  const auto patient_until = std::min(deadline, Clock::now() + kRestartTime);
  std::chrono::milliseconds pause = kFirstPause;
  for (;;) {
    JoinOutcome outcome = co_await try_all(way);
    asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) co_return cancelled(host.name);
    if (outcome.stream) {
      co_return make_daemon_channel(loop_, std::move(outcome.stream), host.name, way->where, way->address);
    }
    const auto wait = pause / 2 + std::chrono::milliseconds(random() % (pause.count() / 2 + 1));
    if (!outcome.try_again || Clock::now() + wait >= patient_until)
      co_return in_words_of_daemons(host.name, port, std::move(outcome.error));
    timer.expires_after(wait);
    co_await timer.async_wait(kUseTuple);
    state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) co_return cancelled(host.name);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace ddp::launcher
