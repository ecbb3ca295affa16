#include "rendezvous/store_tcp/tcp_store_connect.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

namespace ddp::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc == 0) return AddressList(found, &::freeaddrinfo);
  // A resolver that is not up may be up a moment later; a name that does not exist stays unknown.
  const bool passing = rc == EAI_AGAIN || rc == EAI_SYSTEM || rc == EAI_MEMORY;
  return Error{passing ? ErrorCode::kUnreachable : ErrorCode::kUsage,
               "cannot resolve the store's host '" + host +
                   "': " + (rc == EAI_SYSTEM ? system_error(errno, "resolver").text : ::gai_strerror(rc))};
}

Result<> finish_connect(int fd, Clock::time_point deadline, int interrupt) {
  const Result<bool> ready = poll_with_interrupt(fd, POLLOUT, deadline, interrupt);
  if (!ready) return ready.error();
  if (!*ready) return Error{ErrorCode::kUnreachable, "no answer", ETIMEDOUT};
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
  if (error != 0) return system_error(error, "connect", ErrorCode::kUnreachable);
  return {};
}

Result<UniqueFd> connect_address(const addrinfo& address, Clock::time_point deadline, int interrupt) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return system_error(errno, "socket", ErrorCode::kUnreachable);
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // After EINTR the connection also continues: wait for it, never start it twice.
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) < 0) {
    if (errno != EINPROGRESS && errno != EINTR)
      return system_error(errno, "connect", ErrorCode::kUnreachable);
    if (Result<> done = finish_connect(fd.get(), deadline, interrupt); !done) return done.error();
  }
  return fd;
}

}  // namespace

int poll_timeout(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, std::numeric_limits<int>::max()));
}

Result<bool> poll_with_interrupt(int fd, short events, Clock::time_point deadline, int interrupt) {
  for (;;) {
    pollfd entries[] = {{fd, events, 0}, {interrupt, POLLIN, 0}};
    const int ready = ::poll(entries, 2, poll_timeout(deadline));
    if (ready > 0 && entries[1].revents != 0) return Error{ErrorCode::kCancelled, "the attempt was revoked"};
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return system_error(errno, "poll");
  }
}

Result<UniqueFd> connect_tcp_once(const std::string& host, std::uint16_t port, Clock::time_point deadline,
                                  int interrupt) {
  Result<AddressList> addresses = resolve(host, port);
  if (!addresses) return addresses.error();
  Error last{ErrorCode::kUnreachable, "no address"};
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    // One dead address must not use up the time of the next.
    const auto share =
        address->ai_next == nullptr ? deadline : std::min(deadline, Clock::now() + std::chrono::seconds(3));
    Result<UniqueFd> fd = connect_address(*address, share, interrupt);
    if (fd) {
      // Linux can connect a socket to itself when the port is in the ephemeral range and has no listener.
      sockaddr_storage local{};
      sockaddr_storage remote{};
      socklen_t local_size = sizeof local;
      socklen_t remote_size = sizeof remote;
      ::getsockname(fd->get(), reinterpret_cast<sockaddr*>(&local), &local_size);
      ::getpeername(fd->get(), reinterpret_cast<sockaddr*>(&remote), &remote_size);
      const bool to_itself =
          local_size == remote_size && std::equal(reinterpret_cast<const char*>(&local),
                                                  reinterpret_cast<const char*>(&local) + local_size,
                                                  reinterpret_cast<const char*>(&remote));
      if (!to_itself) return fd;
      last = system_error(ECONNREFUSED, "connect", ErrorCode::kUnreachable);
      continue;
    }
    last = fd.error();
    if (last.code == ErrorCode::kCancelled) break;
  }
  return last;
}

}  // namespace ddp::rendezvous
