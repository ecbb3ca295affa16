#include "base/unique_fd.h"

#include <fcntl.h>

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

}  // namespace

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

}  // namespace ddp
