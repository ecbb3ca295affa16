#include "launcher/output/pipe_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/list_directory.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

/// `pipe`: what the link of its descriptor says, "pipe:[4711]" or the path of a FIFO. The files behind the
/// other links are not touched: they may lie on a network disk that hangs.
bool has_read_end(const fs::path& process, const fs::path& pipe) {
  for (const fs::path& entry : list_directory(process / "fd")) {
    std::error_code gone;
    struct stat link {};
    // The link's own permissions tell how it was opened.
    if (fs::read_symlink(entry, gone) == pipe && ::lstat(entry.c_str(), &link) == 0 &&
        (link.st_mode & S_IRUSR) != 0)
      return true;
  }
  return false;
}

}  // namespace

std::string pipe_reader(int fd) {
  struct stat kind {};
  if (::fstat(fd, &kind) != 0 || !S_ISFIFO(kind.st_mode)) return {};
  std::error_code error;
  const fs::path pipe = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  if (error) return {};
  for (const fs::path& entry : list_directory("/proc")) {
    const std::string pid = entry.filename().string();
    if (!std::all_of(pid.begin(), pid.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (pid == std::to_string(::getpid()) || !has_read_end(entry, pipe)) continue;
    std::string name;
    std::getline(std::ifstream(entry / "comm"), name);
    return name + " (pid " + pid + ")";
  }
  return {};
}

}  // namespace ddp::launcher
