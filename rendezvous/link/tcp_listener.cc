#include "rendezvous/link/tcp_listener.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace ddp::rendezvous {
namespace {

using asio::ip::tcp;

constexpr int kAcceptsAtOnce = 64;
constexpr auto kRest = std::chrono::milliseconds(100);

bool is_starvation(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/// Turns ::ffff:10.0.0.7 into 10.0.0.7. A socket that serves both families shows IPv4 peers in that form.
asio::ip::address without_mapping(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

std::string at_port(std::uint16_t port) {
  return "cannot listen on port " + std::to_string(port);
}

Result<UniqueFd> bound_socket(const asio::ip::address& address, std::uint16_t port,
                              bool both_families = false) {
  const tcp::endpoint place(address, port);
  UniqueFd fd(::socket(place.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return system_error(errno, at_port(port));
  // A port of the previous attempt may still have connections in TIME_WAIT.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int only = both_families ? 0 : 1;
  if (address.is_v6()) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  if (::bind(fd.get(), place.data(), static_cast<socklen_t>(place.size())) < 0)
    return system_error(errno, at_port(port));
  return fd;
}

// Hosts without IPv6 report different errors.
bool no_ipv6(const Error& error) {
  return error.sys == EAFNOSUPPORT || error.sys == EADDRNOTAVAIL || error.sys == EPROTONOSUPPORT;
}

Result<std::vector<UniqueFd>> bind_scope(ListenScope scope, std::uint16_t port) {
  std::vector<UniqueFd> fds;
  if (scope == ListenScope::kAllInterfaces) {
    Result<UniqueFd> both = bound_socket(asio::ip::address_v6::any(), port, true);
    if (!both && no_ipv6(both.error())) both = bound_socket(asio::ip::address_v4::any(), port);
    if (!both) return both.error();
    fds.push_back(std::move(*both));
    return fds;
  }
  Result<UniqueFd> v4 = bound_socket(asio::ip::address_v4::loopback(), port);
  if (!v4) return v4.error();
  fds.push_back(std::move(*v4));
  if (port == 0) return fds;  // a port that is free for one family need not be free for the other
  Result<UniqueFd> v6 = bound_socket(asio::ip::address_v6::loopback(), port);
  if (!v6 && !no_ipv6(v6.error())) return v6.error();
  if (v6) fds.push_back(std::move(*v6));
  return fds;
}

Result<TcpListener> listening(std::vector<UniqueFd> fds, std::uint16_t port) {
  for (const UniqueFd& fd : fds) {
    if (::listen(fd.get(), SOMAXCONN) < 0) return system_error(errno, at_port(port));
  }
  tcp::endpoint chosen;
  auto size = static_cast<socklen_t>(chosen.capacity());
  if (::getsockname(fds.front().get(), chosen.data(), &size) < 0) return system_error(errno, "getsockname");
  return TcpListener{std::move(fds), chosen.port()};
}

}  // namespace

Result<TcpListener> listen_tcp(ListenScope scope, std::uint16_t port) {
  Result<std::vector<UniqueFd>> fds = bind_scope(scope, port);
  if (!fds) return fds.error();
  return listening(std::move(*fds), port);
}

Result<TcpListener> listen_tcp_at(const std::string& address, std::uint16_t port) {
  error_code error;
  const auto place = asio::ip::make_address(address, error);
  if (error || address.find('%') != std::string::npos)
    return Error{ErrorCode::kUsage, "\"" + address + "\" is not a numeric address of this machine"};
  Result<UniqueFd> fd = bound_socket(place, port);
  if (!fd && fd.error().sys == EADDRNOTAVAIL)
    return system_error(EADDRNOTAVAIL, address + " is not an address of this machine");
  if (!fd) return fd.error();
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(*fd));
  return listening(std::move(fds), port);
}

bool is_port_free(ListenScope scope, std::uint16_t port) {
  return bind_scope(scope, port).has_value();
}

Result<std::shared_ptr<AcceptLoop>> AcceptLoop::start(asio::any_io_executor executor, TcpListener listener,
                                                      OnConnection on_connection) {
  std::shared_ptr<AcceptLoop> loop(new AcceptLoop(executor, std::move(on_connection)));
  for (UniqueFd& fd : listener.fds) {
    error_code ec;
    auto& added = loop->listeners_.emplace_back(executor);
    added.assign(fd.get(), ec);
    if (ec) return system_error(ec.value(), "watch port " + std::to_string(listener.port));
    fd.release();
  }
  for (std::size_t i = 0; i < loop->listeners_.size(); ++i)
    spawn(executor, accept_all(loop, i));
  return loop;
}

void AcceptLoop::resume() {
  if (std::exchange(paused_, false)) resumed_.cancel();
}

void AcceptLoop::stop() {
  stopped_ = true;
  retry_.cancel();
  resumed_.cancel();
  listeners_.clear();
}

Awaitable<> AcceptLoop::accept_all(std::shared_ptr<AcceptLoop> self, std::size_t index) {
  while (!self->stopped_) {
    if (self->paused_) {
      co_await self->resumed_.async_wait(kUseTuple);
      continue;
    }
    const auto [error] =
        co_await self->listeners_[index].async_wait(asio::posix::stream_descriptor::wait_read, kUseTuple);
    if (error || self->stopped_) co_return;
    if (self->accept_some(index)) continue;
    // A ready listener without a free descriptor would spin.
    self->retry_.expires_after(kRest);
    co_await self->retry_.async_wait(kUseTuple);
  }
}

/// Returns false if accepting must rest, since descriptors or memory are short.
bool AcceptLoop::accept_some(std::size_t index) {
  for (int i = 0; i < kAcceptsAtOnce && !stopped_ && !paused_; ++i) {
    tcp::endpoint peer;
    auto size = static_cast<socklen_t>(peer.capacity());
    UniqueFd socket(
        ::accept4(listeners_[index].native_handle(), peer.data(), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      on_connection_(std::move(socket), without_mapping(peer.address()));
    } else {
      if (errno == EAGAIN) return true;
      if (is_starvation(errno)) return false;
      // Otherwise an error of this one connection: the peer hung up, a firewall refused it, or a signal came.
    }
  }
  return true;
}

}  // namespace ddp::rendezvous
