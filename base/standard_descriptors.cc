#include "base/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace ddp {

void fill_standard_descriptors() {
  // open gives the lowest free number; not close-on-exec, as the usual ones are not.
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

}  // namespace ddp
