#include "remote/ssh/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace ddp::remote {
namespace {

constexpr std::size_t kMost = std::size_t{16} << 20;

}  // namespace

std::optional<std::string> read_regular_file(const std::string& path) {
  // Without O_NONBLOCK the open of a pipe would wait for its writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  std::string text;
  char chunk[16384];
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk, sizeof chunk);
    if (count < 0) return std::nullopt;
    if (count == 0 || text.size() >= kMost) return text;
    text.append(chunk, static_cast<std::size_t>(count));
  }
}

}  // namespace ddp::remote
