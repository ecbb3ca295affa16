#include "base/unique_fd.h"
#include "base/asio.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <utility>

#include "tests/support/catch.h"

namespace ddp {
namespace {

bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}
int some_fd() {
  return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

TEST_CASE("a descriptor is closed exactly once, by its last owner") {
  const int number = some_fd();
  {
    UniqueFd first(number);
    UniqueFd second(std::move(first));
    CHECK(!first);  // NOLINT(bugprone-use-after-move)
    CHECK(second.get() == number);
    UniqueFd& same = second;
    second = std::move(same);
    CHECK(is_open(number));
  }
  CHECK(!is_open(number));
}

TEST_CASE("an assignment closes the previous descriptor, a release does not") {
  const int old = some_fd();
  UniqueFd fd(old);
  fd = UniqueFd(some_fd());
  CHECK((fd.get() == old || !is_open(old)));
  const int kept = fd.release();
  CHECK(!fd);
  CHECK(is_open(kept));
  ::close(kept);
}

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
