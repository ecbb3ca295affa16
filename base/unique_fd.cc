#include "base/unique_fd.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace ddp {
namespace {

std::array<bool, STDERR_FILENO + 1> filled{};

}  // namespace

void fill_standard_descriptors() {
  // open returns the lowest free number. Like ordinary standard descriptors, it is not close-on-exec.
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
    if (fd >= 0 && fd <= STDERR_FILENO) filled[static_cast<std::size_t>(fd)] = true;
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

bool was_closed(int fd) {
  return fd >= 0 && fd <= STDERR_FILENO && filled[static_cast<std::size_t>(fd)];
}

Result<> print_result(const std::string& text) {
  if (was_closed(STDOUT_FILENO))
    return Error{ErrorCode::kSystem, "cannot write the result: standard output is closed"};
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // a process that shares the descriptor may have made it non-blocking
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (count <= 0) return system_error(errno, "cannot write the result to standard output");
    at += static_cast<std::size_t>(count);
  }
  return {};
}

namespace {

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

constexpr int kLongestBackOff = 1'000;                  // ms: the least that the kernel accepts
constexpr int kUserTimeout = 7 * 24 * 60 * 60 * 1'000;  // ms

bool set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

}  // namespace

bool set_link_options(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A peer that vanished without a word is noticed in the end, also where no heartbeats run.
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  // The limit of the whole link comes first: see the header.
  return set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeout) &&
         set(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, kLongestBackOff);
}

}  // namespace ddp
