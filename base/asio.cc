// Compiles Asio once for all (BOOST_ASIO_SEPARATE_COMPILATION).
#include "base/asio.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/impl/src.hpp>

namespace ddp {

Awaitable<> pause_for(asio::any_io_executor executor, std::chrono::nanoseconds time) {
  asio::steady_timer timer(executor, time);
  co_await timer.async_wait(kUseTuple);
}

Awaitable<error_code> until_readable(asio::posix::stream_descriptor& descriptor) {
  for (;;) {
    const auto [error] = co_await descriptor.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
    if (error || is_readable(descriptor.native_handle())) co_return error;
  }
}

namespace {

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

constexpr int kLongestBackOff = 1'000;                  // ms: the least that the kernel accepts
constexpr int kUserTimeout = 7 * 24 * 60 * 60 * 1'000;  // ms

bool set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

}  // namespace

bool set_link_options(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer that vanished without a word is noticed in the end, also where no heartbeats run.
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  // The limit of the whole link comes first: see the header.
  return set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeout) &&
         set(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, kLongestBackOff);
}

}  // namespace ddp
