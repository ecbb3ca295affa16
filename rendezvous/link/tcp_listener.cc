#include "rendezvous/link/tcp_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "base/text.h"

namespace ddp::rendezvous {
namespace {

std::array<std::uint8_t, 16> mapped_bytes(const asio::ip::address& address) {
  if (address.is_v6()) return address.to_v6().to_bytes();
  return asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4()).to_bytes();
}

bool same_prefix(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b,
                 unsigned bits) {
  const unsigned whole = bits / 8;
  if (!std::equal(a.begin(), a.begin() + whole, b.begin())) return false;
  const unsigned rest = bits % 8;
  return rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

/// Removes the zone, which names an interface of another machine and may not exist here.
std::string without_zone(std::string_view address) {
  const bool v6 = address.find(':') != std::string_view::npos;
  return std::string(address.substr(0, v6 ? address.find('%') : address.size()));
}

/// Turns ::ffff:10.0.0.7 into 10.0.0.7. A socket that serves both families shows IPv4 peers in that form.
asio::ip::address without_mapping(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

/// Returns the address that accept() or getpeername() gave, without mapping; unspecified for other families.
asio::ip::address address_of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET) {
    return asio::ip::address_v4(ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr));
  }
  asio::ip::address_v6::bytes_type bytes{};
  if (storage.ss_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, bytes.size());
  }
  return without_mapping(asio::ip::address_v6(bytes));
}

constexpr int kAcceptsAtOnce = 64;
constexpr std::size_t kMaxRemembered = 4096;  // addresses reported to on_refused
constexpr auto kRest = std::chrono::milliseconds(100);

bool is_starvation(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

void AddressFilter::allow(const asio::ip::address& address) {
  addresses_.insert(mapped_bytes(address));
}

Result<> AddressFilter::allow_network(std::string_view text) {
  const auto wrong = [text] {
    return Error{
        ErrorCode::kUsage,
        "'" + std::string(text) + "' is neither an address nor a network such as 10.1.0.0/16 or fd00::/8"};
  };
  const std::size_t slash = text.find('/');
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(without_zone(text.substr(0, slash)), ec);
  if (ec) return wrong();
  const unsigned width = address.is_v4() ? 32 : 128;
  unsigned prefix = width;
  if (slash != std::string_view::npos) {
    const auto given = parse_number<unsigned>(text.substr(slash + 1));
    if (!given || *given > width) return wrong();
    prefix = *given;
  }
  const asio::ip::address plain = without_mapping(address);
  if (plain != address && prefix < 96) {
    const std::string meant = prefix <= 32 ? plain.to_string() + "/" + std::to_string(prefix) : "10.1.0.0/16";
    return Error{
        ErrorCode::kUsage,
        "'" + std::string(text) + "' would admit every IPv4 address; write an IPv4 network as " + meant};
  }
  if (prefix == width)
    allow(address);
  else
    networks_.push_back({mapped_bytes(address), prefix + 128 - width});
  return {};
}

bool AddressFilter::allows(const asio::ip::address& address) const {
  if (empty()) return true;
  const auto bytes = mapped_bytes(address);
  return addresses_.contains(bytes) ||
         std::any_of(networks_.begin(), networks_.end(), [&bytes](const AddressRange& network) {
           return same_prefix(network.bytes, bytes, network.prefix);
         });
}

namespace {

constexpr std::uint16_t kFirstPort = 10000;  // well-known services of a cluster use lower ports
constexpr std::uint16_t kNeighbours = 3;
constexpr std::uint16_t kLastPort = 65535 - kNeighbours;
constexpr int kMaxTries = 256;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family = AF_UNSPEC;
};

SocketAddress address_v6(const in6_addr& host, std::uint16_t port) {
  SocketAddress out;
  auto* in = reinterpret_cast<sockaddr_in6*>(&out.storage);
  in->sin6_family = AF_INET6;
  in->sin6_addr = host;
  in->sin6_port = htons(port);
  out.size = sizeof *in;
  out.family = AF_INET6;
  return out;
}

SocketAddress address_v4(std::uint32_t host, std::uint16_t port) {
  SocketAddress out;
  auto* in = reinterpret_cast<sockaddr_in*>(&out.storage);
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(host);
  in->sin_port = htons(port);
  out.size = sizeof *in;
  out.family = AF_INET;
  return out;
}

std::string at_port(std::uint16_t port) {
  return "cannot listen on port " + std::to_string(port);
}

Result<UniqueFd> bound_socket(const SocketAddress& address, bool both_families, std::uint16_t port) {
  UniqueFd fd(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return system_error(errno, at_port(port));
  // A port of the previous attempt may still have connections in TIME_WAIT.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int only = both_families ? 0 : 1;
  if (address.family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) < 0) {
    return system_error(errno, at_port(port));
  }
  return fd;
}

// Hosts without IPv6 report different errors.
bool no_ipv6(const Error& error) {
  return error.sys == EAFNOSUPPORT || error.sys == EADDRNOTAVAIL || error.sys == EPROTONOSUPPORT;
}

Result<std::vector<UniqueFd>> bind_scope(ListenScope scope, std::uint16_t port) {
  std::vector<UniqueFd> fds;
  if (scope == ListenScope::kAllInterfaces) {
    Result<UniqueFd> both = bound_socket(address_v6(in6addr_any, port), true, port);
    if (!both && no_ipv6(both.error())) both = bound_socket(address_v4(INADDR_ANY, port), false, port);
    if (!both) return both.error();
    fds.push_back(std::move(*both));
    return fds;
  }
  Result<UniqueFd> v4 = bound_socket(address_v4(INADDR_LOOPBACK, port), false, port);
  if (!v4) return v4.error();
  fds.push_back(std::move(*v4));
  if (port == 0) return fds;  // a port that is free for one family need not be free for the other
  Result<UniqueFd> v6 = bound_socket(address_v6(in6addr_loopback, port), false, port);
  if (v6) {
    fds.push_back(std::move(*v6));
  } else if (!no_ipv6(v6.error())) {
    return v6.error();
  }
  return fds;
}

Result<std::uint16_t> port_of(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) < 0)
    return system_error(errno, "getsockname");
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

bool neighbours_free(ListenScope scope, std::uint16_t port) {
  for (std::uint16_t i = 1; i <= kNeighbours; ++i) {
    if (port + i > 65535 || !bind_scope(scope, static_cast<std::uint16_t>(port + i))) return false;
  }
  return true;
}

Result<TcpListener> listening(std::vector<UniqueFd> fds, std::uint16_t port) {
  for (const UniqueFd& fd : fds) {
    if (::listen(fd.get(), SOMAXCONN) < 0) return system_error(errno, at_port(port));
  }
  Result<std::uint16_t> chosen = port_of(fds.front().get());
  if (!chosen) return chosen.error();
  return TcpListener{std::move(fds), *chosen};
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
  const std::size_t tries = std::min<std::size_t>(all.size(), kMaxTries);
  for (std::size_t i = 0; i < tries; ++i)
    std::swap(all[i], all[std::uniform_int_distribution<std::size_t>(i, all.size() - 1)(random)]);
  all.resize(tries);
  return all;
}

}  // namespace

Result<TcpListener> listen_tcp(ListenScope scope, std::uint16_t port) {
  Result<std::vector<UniqueFd>> fds = bind_scope(scope, port);
  if (!fds) return fds.error();
  return listening(std::move(*fds), port);
}

Result<TcpListener> listen_tcp_at(const std::string& address, std::uint16_t port) {
  in_addr v4{};
  in6_addr v6{};
  SocketAddress place;
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    place = address_v4(ntohl(v4.s_addr), port);
  } else if (::inet_pton(AF_INET6, address.c_str(), &v6) == 1) {
    place = address_v6(v6, port);
  } else {
    return Error{ErrorCode::kUsage, "\"" + address + "\" is not a numeric address of this machine"};
  }
  Result<UniqueFd> fd = bound_socket(place, false, port);
  if (!fd && fd.error().sys == EADDRNOTAVAIL)
    return system_error(EADDRNOTAVAIL, address + " is not an address of this machine");
  if (!fd) return fd.error();
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(*fd));
  return listening(std::move(fds), port);
}

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
  unsigned first = 32768;
  unsigned last = 60999;
  if (std::FILE* file = std::fopen("/proc/sys/net/ipv4/ip_local_port_range", "re")) {
    if (std::fscanf(file, "%u %u", &first, &last) != 2 || first > last || last > 65535) {
      first = 32768;
      last = 60999;
    }
    std::fclose(file);
  }
  return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)};
}

std::vector<PortRange> ports_beside(PortRange ephemeral) {
  std::vector<PortRange> out;
  // The successors must be outside as well.
  if (ephemeral.first > kFirstPort + kNeighbours) {
    out.push_back({kFirstPort, static_cast<std::uint16_t>(ephemeral.first - kNeighbours - 1)});
  }
  const unsigned above = std::max<unsigned>(ephemeral.last + 1U, kFirstPort);
  if (above <= kLastPort) out.push_back({static_cast<std::uint16_t>(above), kLastPort});
  return out;
}

AcceptLoop::AcceptLoop(asio::any_io_executor executor, AddressFilter filter, Callbacks callbacks)
    : executor_(std::move(executor)),
      filter_(std::move(filter)),
      callbacks_(std::move(callbacks)),
      retry_(executor_) {}

Result<std::shared_ptr<AcceptLoop>> AcceptLoop::start(asio::any_io_executor executor, TcpListener listener,
                                                      AddressFilter filter, Callbacks callbacks) {
  std::shared_ptr<AcceptLoop> loop(
      new AcceptLoop(std::move(executor), std::move(filter), std::move(callbacks)));
  for (UniqueFd& fd : listener.fds) {
    error_code ec;
    auto& added = loop->listeners_.emplace_back(loop->executor_);
    added.assign(fd.get(), ec);
    if (ec) return system_error(ec.value(), "watch port " + std::to_string(listener.port));
    fd.release();
  }
  for (std::size_t i = 0; i < loop->listeners_.size(); ++i)
    loop->await(i);
  return loop;
}

void AcceptLoop::stop() {
  stopped_ = true;
  retry_.cancel();
  listeners_.clear();
}

void AcceptLoop::await(std::size_t index) {
  listeners_[index].async_wait(asio::posix::stream_descriptor::wait_read,
                               [self = shared_from_this(), index](const error_code& ec) {
                                 if (!ec && !self->stopped_) self->accept_some(index);
                               });
}

void AcceptLoop::accept_some(std::size_t index) {
  for (int i = 0; i < kAcceptsAtOnce && !stopped_ && !paused_; ++i) {
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    UniqueFd socket(::accept4(listeners_[index].native_handle(), reinterpret_cast<sockaddr*>(&storage), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EAGAIN) break;
      if (is_starvation(errno)) return rest();
      continue;  // an error of this one connection: the peer hung up, a firewall refused it, or a signal came
    }
    const asio::ip::address address = address_of(storage);
    if (filter_.allows(address)) {
      callbacks_.on_connection(std::move(socket), address);
    } else {
      refuse(address);
    }
  }
  if (!stopped_ && !paused_) await(index);
}

void AcceptLoop::refuse(const asio::ip::address& address) {
  if (refused_from_.size() >= kMaxRemembered || !refused_from_.insert(address).second) return;
  if (callbacks_.on_refused) callbacks_.on_refused(address);
}

// A ready listener without a free descriptor would spin, so accepting pauses until a descriptor may be free.
void AcceptLoop::rest() {
  if (resting_) return;
  resting_ = true;
  retry_.expires_after(kRest);
  retry_.async_wait([self = shared_from_this()](const error_code&) { self->resume(); });
}

void AcceptLoop::resume() {
  if (!resting_ || stopped_) return;
  resting_ = false;
  await_all();
}

void AcceptLoop::go_on() {
  if (!paused_ || stopped_) return;
  paused_ = false;
  // Posted, since the caller may be a callback of accept_some, which then waits again itself.
  asio::post(executor_, [self = shared_from_this()] {
    if (!self->stopped_ && !self->paused_) self->await_all();
  });
}

void AcceptLoop::await_all() {
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    listeners_[i].cancel();  // a listener that did not rest still has a wait
    await(i);
  }
}

}  // namespace ddp::rendezvous
