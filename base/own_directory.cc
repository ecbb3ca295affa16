#include "base/own_directory.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

namespace ddp {

Result<std::string> own_directory() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size < 0) return system_error(errno, "/proc/self/exe");
  const std::string_view text(path, static_cast<std::size_t>(size));
  return std::string(text.substr(0, text.rfind('/')));
}

}  // namespace ddp
