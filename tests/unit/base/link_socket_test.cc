#include "base/unique_fd.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "tests/support/catch.h"

namespace ddp {
namespace {

constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, which older headers lack

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  ::getsockopt(fd, level, name, &value, &size);
  return value;
}

TEST_CASE("TCP repeats what a link has lost each second, and does not end the link") {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool limited = set_link_options(socket.get());
  CHECK(option(socket.get(), IPPROTO_TCP, TCP_NODELAY) == 1);
  CHECK(option(socket.get(), SOL_SOCKET, SO_KEEPALIVE) == 1);
  // A limit of the back-off makes the 15 repetitions of the kernel last 14.4 s, unless a longer time is set.
  CHECK(option(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 7 * 24 * 3600 * 1000);
  if (limited)
    CHECK(option(socket.get(), IPPROTO_TCP, kRtoMaxMs) == 1000);
  else
    CHECK(option(socket.get(), IPPROTO_TCP, kRtoMaxMs) == -1);
}

}  // namespace
}  // namespace ddp
