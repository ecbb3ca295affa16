#include "launcher/agent/random_text.h"

#include <sys/random.h>

#include <cerrno>

namespace ddp::launcher {

Result<std::string> random_text(std::size_t bytes) {
  std::string random(bytes, '\0');
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return system_error(errno, "random bytes of the kernel");
  std::string text;
  for (const char byte : random) {
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

}  // namespace ddp::launcher
