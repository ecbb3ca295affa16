#include "rendezvous/link/tcp_listener.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <utility>

#include "base/files.h"

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
    fds.push_back(DDP_TRY(std::move(both)));
    return fds;
  }
  fds.push_back(DDP_TRY(bound_socket(asio::ip::address_v4::loopback(), port)));
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
  return listening(DDP_TRY(bind_scope(scope, port)), port);
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

// ---- which port

namespace {

constexpr std::uint16_t kFirstPort = 10000;  // well-known services of a cluster use lower ports
/// Ports that others find by their number: steps of Slurm (per_node.md), NCCL's RAS, torchrun's endpoint, and
/// ddplaunchd beside the MASTER_PORT of most scripts.
constexpr PortRange kKnownPorts[] = {{20000, 27999}, {28028, 28028}, {29400, 29400}, {29499, 29500}};
constexpr std::uint16_t kNeighbours = 3;
constexpr std::uint16_t kLastPort = 65535 - kNeighbours;
constexpr std::size_t kMaxTries = 256;

bool neighbours_free(ListenScope scope, std::uint16_t port) {
  for (std::uint16_t i = 1; i <= kNeighbours; ++i) {
    if (port + i > 65535 || !is_port_free(scope, static_cast<std::uint16_t>(port + i))) return false;
  }
  return true;
}

// Random order, so that jobs that start together on one host do not try the same ports in turn.
std::vector<std::uint16_t> candidates(const std::vector<PortRange>& ranges) {
  std::vector<std::uint16_t> all;
  for (const PortRange& range : ranges) {
    for (unsigned port = range.first; port <= range.last; ++port)
      all.push_back(static_cast<std::uint16_t>(port));
  }
  // Not std::random_device: train contains this code, and must run on an older glibc (checkpoint.cc).
  std::uint32_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) < 0) seed = static_cast<std::uint32_t>(::getpid());
  std::minstd_rand random(seed);
  std::ranges::shuffle(all, random);
  all.resize(std::min(all.size(), kMaxTries));
  return all;
}

}  // namespace

Result<TcpListener> listen_tcp_picked(ListenScope scope, std::optional<PortRange> range) {
  const std::vector<PortRange> ranges = range ? std::vector{*range} : ports_beside(ephemeral_ports());
  if (!range && ranges.empty()) return listen_tcp(scope, 0);
  std::optional<TcpListener> alone;  // free, but with a successor in use
  Error last{ErrorCode::kUsage, "the range is empty"};
  for (const std::uint16_t port : candidates(ranges)) {
    Result<TcpListener> listener = listen_tcp(scope, port);
    if (!listener) {
      last = listener.error();
      if (last.sys != EADDRINUSE && last.sys != EACCES) return last;  // no other port would be better
      continue;
    }
    if (neighbours_free(scope, port)) return listener;
    if (!alone) alone = std::move(*listener);
  }
  if (alone) return std::move(*alone);
  const std::string where =
      range ? "in the range " + std::to_string(range->first) + "-" + std::to_string(range->last)
            : std::string("outside the ephemeral range");
  return Error{last.code, "no free port " + where + ": " + last.text, last.sys};
}

PortRange ephemeral_ports() {
  unsigned first = 0;
  unsigned last = 0;
  const std::string range = first_line("/proc/sys/net/ipv4/ip_local_port_range");
  if (std::sscanf(range.c_str(), "%u %u", &first, &last) != 2 || first > last || last > 65535)
    return {32768, 60999};
  return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)};
}

std::vector<PortRange> ports_beside(PortRange ephemeral) {
  std::vector<PortRange> taken(std::begin(kKnownPorts), std::end(kKnownPorts));
  taken.push_back(ephemeral);
  std::ranges::sort(taken, {}, &PortRange::first);
  std::vector<PortRange> out;
  unsigned from = kFirstPort;
  for (const PortRange& range : taken) {
    // The successors must be outside as well.
    if (range.first > from + kNeighbours)
      out.push_back(
          {static_cast<std::uint16_t>(from), static_cast<std::uint16_t>(range.first - kNeighbours - 1)});
    from = std::max(from, range.last + 1U);
  }
  if (from <= kLastPort) out.push_back({static_cast<std::uint16_t>(from), kLastPort});
  return out;
}

// ---- which peers

namespace {

constexpr std::size_t kMaxRemembered = 4096;  // addresses that were refused

IpAddress value_of(const asio::ip::address& address) {
  return parse_ip_address(address.to_string()).value_or(IpAddress{});
}

}  // namespace

Result<> AddressFilter::allow_network(std::string_view text) {
  const IpNetwork network = DDP_TRY(parse_ip_network(text));
  if (network.prefix == network.base.bits())
    addresses_.insert(network.base);
  else
    networks_.push_back(network);
  // These networks contain ::ffff:0:0/96, in which a socket for both families shows IPv4 peers.
  if (network.base == IpAddress{true, {}} && network.prefix <= 80) networks_.emplace_back();
  return {};
}

bool AddressFilter::allows(const asio::ip::address& address) const {
  if (empty()) return true;
  const IpAddress value = value_of(address);
  return addresses_.contains(value) || std::ranges::any_of(networks_, [&value](const IpNetwork& network) {
           return network.contains(value);
         });
}

bool AddressFilter::notes_refusal(const asio::ip::address& address) {
  return refused_.size() < kMaxRemembered && refused_.insert(address).second;
}

// ---- accepting

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
  retry_.cancel();
  resumed_.cancel();
  listeners_.clear();
}

Awaitable<> AcceptLoop::accept_all(std::shared_ptr<AcceptLoop> self, std::size_t index) {
  while (!self->listeners_.empty()) {
    if (self->paused_) {
      co_await self->resumed_.async_wait(kUseTuple);
      continue;
    }
    const auto [error] =
        co_await self->listeners_[index].async_wait(asio::posix::stream_descriptor::wait_read, kUseTuple);
    if (error) co_return;
    if (self->accept_some(index)) continue;
    // A ready listener without a free descriptor would spin.
    self->retry_.expires_after(kRest);
    co_await self->retry_.async_wait(kUseTuple);
  }
}

/// Returns false if accepting must rest, since descriptors or memory are short.
bool AcceptLoop::accept_some(std::size_t index) {
  for (int i = 0; i < kAcceptsAtOnce && !listeners_.empty() && !paused_; ++i) {
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
