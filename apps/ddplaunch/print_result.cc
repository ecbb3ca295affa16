#include "apps/ddplaunch/print_result.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "base/standard_descriptors.h"

namespace ddp {

Result<> print_result(const std::string& text) {
  if (was_closed(STDOUT_FILENO))
    return Error{ErrorCode::kSystem, "the result could not be written, for standard output is closed"};
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // who shares it may have made it so
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (count <= 0) return system_error(errno, "the result could not be written to standard output");
    at += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace ddp
