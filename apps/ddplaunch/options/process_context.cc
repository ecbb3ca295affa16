#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <ctime>

#include "apps/ddplaunch/options/options.h"
#include "base/child_process.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/control/history_files.h"
#include "launcher/job/worker_env.h"

namespace ddp {

namespace {

constexpr std::size_t kMaxFile = std::size_t{16} << 20;  ///< a longer file was not written by a person

Result<std::string> read_all(int fd, const std::string& name) {
  std::string text;
  std::array<char, 64 * 1024> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, name);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMaxFile) return system_error(EFBIG, name);
  }
}

Result<std::string> read_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file) return system_error(errno, path);
  return read_all(file.get(), path);
}

Result<std::string> read_own_file(const std::string& path) {
  struct stat found {};
  // A user who may not search a directory, such as another user's home below su, has no file there.
  if (::lstat(path.c_str(), &found) != 0) return system_error(errno == EACCES ? ENOENT : errno, path);
  const auto target = DDP_TRY(follow_trusted_links(path));
  if (const std::string reason = distrust_parent(target.substr(0, target.rfind('/'))); !reason.empty())
    return Error{ErrorCode::kSystem, path + ": " + reason, EPERM};
  const UniqueFd file(::open(target.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return system_error(errno, path);
  if (const std::string reason = distrust_file(file.get()); !reason.empty())
    return Error{ErrorCode::kSystem, path + ": it " + reason, EPERM};
  return read_all(file.get(), path);
}

Result<std::string> read_stdin() {
  return read_all(STDIN_FILENO, "standard input");
}

Result<> can_write(const std::string& path) {
  DDP_TRY(follow_trusted_links(path));
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return system_error(EISDIR, path);
    if (::access(path.c_str(), W_OK) != 0) return system_error(errno, path);
    return {};
  }
  const std::string directory = path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
  if (::stat(directory.c_str(), &status) != 0) return system_error(errno, directory);
  if (!S_ISDIR(status.st_mode)) return system_error(ENOTDIR, directory);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) return system_error(errno, directory);
  return {};
}

// 20261121-034500-ab12cd: the local time for people, and six digits for two starts within one second.
std::string new_job_id() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char time_text[32];
  std::strftime(time_text, sizeof time_text, "%Y%m%d-%H%M%S", &parts);
  std::uint32_t random = static_cast<std::uint32_t>(::getpid());
  if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random))
    random ^= 0x5bd1e995U;
  return format_text("%s-%06x", time_text, static_cast<unsigned>(random & 0xffffffU));
}

std::string current_directory() {
  char path[PATH_MAX];
  return ::getcwd(path, sizeof path) != nullptr && path[0] == '/' ? path : "";
}

bool is_pipe_or_file(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 &&
         (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode));
}

}  // namespace

ProcessContext read_process_context() {
  ProcessContext result;
  result.env = launcher::split_env(own_environment());
  result.cwd = current_directory();
  result.new_job_id = new_job_id();
  result.host_name = host_name();
  result.user_id = ::geteuid();
  result.stdin_has_data = is_pipe_or_file(STDIN_FILENO);
  result.read_file = read_file;
  result.read_own_file = read_own_file;
  result.read_stdin = read_stdin;
  result.can_write = can_write;
  result.read_host_history = [](const std::string& directory) {
    return launcher::read_host_history(
        directory, std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
  };
  return result;
}

}  // namespace ddp
