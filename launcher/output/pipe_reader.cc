#include "launcher/pipe_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

bool has_read_end(const fs::path& process, const struct stat& pipe) {
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat file {};
    struct stat link {};
    // The link's own permissions tell how it was opened.
    if (::stat(entry->path().c_str(), &file) == 0 && file.st_dev == pipe.st_dev &&
        file.st_ino == pipe.st_ino && ::lstat(entry->path().c_str(), &link) == 0 &&
        (link.st_mode & S_IRUSR) != 0)
      return true;
  }
  return false;
}

}  // namespace

std::string pipe_reader(int fd) {
  struct stat pipe {};
  if (::fstat(fd, &pipe) != 0 || !S_ISFIFO(pipe.st_mode)) return {};
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string pid = entry->path().filename().string();
    if (!std::all_of(pid.begin(), pid.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (pid == std::to_string(::getpid()) || !has_read_end(entry->path(), pipe)) continue;
    std::string name;
    std::getline(std::ifstream(entry->path() / "comm"), name);
    return name + " (pid " + pid + ")";
  }
  return {};
}

}  // namespace ddp::launcher
