#include "base/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace ddp {
namespace {

std::array<bool, STDERR_FILENO + 1> filled{};

}  // namespace

void fill_standard_descriptors() {
  // open gives the lowest free number; not close-on-exec, as the usual ones are not.
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
    if (fd >= 0 && fd <= STDERR_FILENO) filled[static_cast<std::size_t>(fd)] = true;
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

bool was_closed(int fd) {
  return fd >= 0 && fd <= STDERR_FILENO && filled[static_cast<std::size_t>(fd)];
}

}  // namespace ddp
