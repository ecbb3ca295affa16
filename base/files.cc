#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

#include "base/unique_fd.h"

namespace ddp {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string read_start(const std::string& path, std::size_t limit, int flags) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  std::string text;
  std::array<char, 16 * 1024> buffer;
  while (file && text.size() < limit) {
    const ssize_t count = ::read(file.get(), buffer.data(), std::min(buffer.size(), limit - text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

Result<> write_bytes(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, "write " + path);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace ddp
