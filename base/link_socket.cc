#include "base/link_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace ddp {
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
