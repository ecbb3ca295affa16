#include "apps/train/collectives/cpu/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/format_text.h"

namespace ddp::train {

namespace {

struct FreeAddress {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};
using AddressInfo = std::unique_ptr<addrinfo, FreeAddress>;

Result<AddressInfo> parse_address(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* info = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &info);
  if (failed) {
    return Error{ErrorCode::kProtocol,
                 "\"" + host + ":" + port + "\" is not a numeric address: " + gai_strerror(failed)};
  }
  return AddressInfo(info);
}

Result<AddressInfo> parse_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return Error{ErrorCode::kProtocol, "\"" + address + "\" has no port"};
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return parse_address(host, address.substr(colon + 1));
}

Result<UniqueFd> new_socket(const addrinfo& info) {
  UniqueFd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return system_error(errno, "socket");
  return fd;
}

void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // speed only: a failure changes no result
}

Result<> wait_for(int fd, short events, Deadline deadline, int interrupt) {
  while (true) {
    pollfd slots[] = {{fd, events, 0}, {interrupt, POLLIN, 0}};
    const int ready = ::poll(slots, 2, milliseconds_left(deadline));
    if (ready < 0 && errno != EINTR) return system_error(errno, "poll");
    if (ready > 0 && slots[1].revents != 0) return Error{ErrorCode::kCancelled, "revoked"};
    if (ready > 0) return {};
    if (ready == 0 && milliseconds_left(deadline) == 0)
      return Error{ErrorCode::kTimeout, "no answer in time"};
  }
}

}  // namespace

int milliseconds_left(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

Error connection_error(int err) {
  if (err == ECONNRESET || err == EPIPE) return Error{ErrorCode::kLinkLost, "connection reset", err};
  return Error{ErrorCode::kLinkLost, system_error(err, "connection").text, err};
}

Error connection_closed() {
  return Error{ErrorCode::kLinkLost, "connection closed"};
}

Result<ListeningSocket> listen_at(const std::string& host) {
  const auto info = parse_address(host, "0");
  if (!info) return info.error();
  auto fd = new_socket(**info);
  if (!fd) return fd.error();
  if (::bind(fd->get(), (*info)->ai_addr, (*info)->ai_addrlen) != 0 || ::listen(fd->get(), 128) != 0) {
    return system_error(errno, "listen on " + host);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(fd->get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return system_error(errno, "getsockname");
  }
  const int port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                     : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return ListeningSocket{std::move(*fd), format_endpoint(host, port)};
}

Result<UniqueFd> connect_to(const std::string& address, Deadline deadline, int interrupt) {
  const auto info = parse_address(address);
  if (!info) return info.error();
  auto fd = new_socket(**info);
  if (!fd) return fd.error();
  if (::connect(fd->get(), (*info)->ai_addr, (*info)->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return system_error(errno, "connect", ErrorCode::kUnreachable);
    if (auto ready = wait_for(fd->get(), POLLOUT, deadline, interrupt); !ready) return ready.error();
    int err = 0;
    socklen_t size = sizeof err;
    ::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &err, &size);
    if (err != 0) return system_error(err, "connect", ErrorCode::kUnreachable);
  }
  set_no_delay(fd->get());
  return std::move(*fd);
}

Result<UniqueFd> accept_waiting(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    set_no_delay(fd.get());
    return fd;
  }
  // A peer that gave up between its connect and this accept is not a failure of this rank.
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return UniqueFd();
  return system_error(errno, "accept");
}

Result<std::size_t> wait_readable(std::span<const int> fds, Deadline deadline, int interrupt) {
  std::vector<pollfd> slots;
  for (const int fd : fds)
    slots.push_back({fd, POLLIN, 0});
  slots.push_back({interrupt, POLLIN, 0});
  while (true) {
    const int ready = ::poll(slots.data(), slots.size(), milliseconds_left(deadline));
    if (ready < 0 && errno != EINTR) return system_error(errno, "poll");
    if (ready > 0 && slots.back().revents != 0) return Error{ErrorCode::kCancelled, "revoked"};
    for (std::size_t i = 0; ready > 0 && i < fds.size(); ++i) {
      if (slots[i].revents != 0) return i;
    }
    if (ready == 0 && milliseconds_left(deadline) == 0)
      return Error{ErrorCode::kTimeout, "no answer in time"};
  }
}

Result<> write_all(int fd, std::span<const std::byte> data, Deadline deadline, int interrupt) {
  while (!data.empty()) {
    const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data = data.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (auto ready = wait_for(fd, POLLOUT, deadline, interrupt); !ready) return ready.error();
    } else if (errno != EINTR) {
      return connection_error(errno);
    }
  }
  return {};
}

Result<> read_all(int fd, std::span<std::byte> data, Deadline deadline, int interrupt) {
  while (!data.empty()) {
    const ssize_t got = ::recv(fd, data.data(), data.size(), 0);
    if (got == 0) return connection_closed();
    if (got > 0) {
      data = data.subspan(static_cast<std::size_t>(got));
    } else if (errno == EAGAIN) {
      if (auto ready = wait_for(fd, POLLIN, deadline, interrupt); !ready) return ready.error();
    } else if (errno != EINTR) {
      return connection_error(errno);
    }
  }
  return {};
}

}  // namespace ddp::train
