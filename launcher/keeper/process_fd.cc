#include "launcher/keeper/process_fd.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "base/child_setup.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// Reads the state from `directory`, which is a /proc/PID, as in proc(5). 0: the process was reaped.
char state_of(int directory) {
  const UniqueFd file(openat(directory, "status", O_RDONLY | O_CLOEXEC));
  if (!file) {
    // Without a free descriptor the state is not known, but whether the process is there.
    struct stat unused {};
    return fstatat(directory, "status", &unused, 0) != 0 && (errno == ENOENT || errno == ESRCH) ? '\0' : '?';
  }
  char buffer[256];  // the state is the third line, behind a name of at most 64 bytes
  const ssize_t size = read(file.get(), buffer, sizeof buffer);
  if (size < 0) return errno == ESRCH ? '\0' : '?';
  constexpr std::string_view kKey = "\nState:\t";
  const std::string_view text(buffer, static_cast<std::size_t>(size));
  const std::size_t at = text.find(kKey);
  return at < text.size() - kKey.size() ? text[at + kKey.size()] : '?';
}

/// Returns whether a thread group whose leader is a zombie has further threads.
bool has_other_threads(int directory) {
  struct stat tasks {};
  return fstatat(directory, "task", &tasks, 0) == 0 && tasks.st_nlink > 3;  // ".", ".." and the leader
}

}  // namespace

UniqueFd open_process(pid_t pid) {
  if (has_pidfds()) return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0U)));
  char path[32] = "/proc/";
  *std::to_chars(path + 6, path + sizeof path - 1, pid).ptr = '\0';
  UniqueFd directory(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory && errno == ENOENT) errno = ESRCH;
  return directory;
}

bool has_ended(int fd) {
  if (has_pidfds()) {
    pollfd end{fd, POLLIN, 0};
    return poll(&end, 1, 0) == 1 && (end.revents & POLLIN) != 0;
  }
  const char state = state_of(fd);
  return state == '\0' ||
         (std::string_view("ZX").find(state) != std::string_view::npos && !has_other_threads(fd));
}

void wait_for_end(int fd, std::chrono::milliseconds limit) {
  if (has_pidfds()) {
    pollfd end{fd, POLLIN, 0};
    poll(&end, 1, static_cast<int>(limit.count()));
    return;
  }
  const auto until = Clock::now() + limit;
  while (!has_ended(fd) && Clock::now() < until)
    poll(nullptr, 0, 1);
}

int signal_process(int fd, pid_t pid, int number) {
  if (has_pidfds()) return syscall(SYS_pidfd_send_signal, fd, number, nullptr, 0U) == 0 ? 0 : errno;
  if (has_ended(fd)) return ESRCH;
  return kill(pid, number) == 0 ? 0 : errno;
}

}  // namespace ddp::launcher
