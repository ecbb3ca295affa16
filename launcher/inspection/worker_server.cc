#include "launcher/inspection/worker_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes of other answers.
constexpr std::size_t kGroups = 256u << 10;
constexpr std::size_t kStacks = 64u << 10;
constexpr std::size_t kHead = 4u << 10;
constexpr std::chrono::milliseconds kGilTime{1'500};
constexpr std::chrono::milliseconds kPingTime{100};

UniqueFd connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // A server that accepts nothing would make a blocking connect wait without end.
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return fd;
}

/// Returns whether the descriptor is ready before the deadline.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd poll{fd, events, 0};
    const int ready = ::poll(&poll, 1, static_cast<int>(std::min<long long>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

/// One request; the server closes the connection after its answer.
std::string ask(const std::string& path, std::string_view handler, std::size_t limit,
                Clock::time_point deadline) {
  const UniqueFd fd = connect_to(path);
  const std::string request =
      "POST /handler/" + std::string(handler) +
      " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  // It fits into the socket's buffer, which is empty.
  if (!fd ||
      ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    return {};
  std::string answer;
  std::array<char, 65536> chunk;
  while (answer.size() <= limit + kHead && wait_for(fd.get(), POLLIN, deadline)) {
    const ssize_t size = ::recv(fd.get(), chunk.data(), chunk.size(), 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (size <= 0) break;
    answer.append(chunk.data(), static_cast<std::size_t>(size));
  }
  const auto body = rendezvous::http_body(answer);
  return body && body->size() <= limit ? std::string(*body) : std::string();
}

}  // namespace

rendezvous::TorchAnswers ask_worker_server(const std::string& path, ServerQuestion question,
                                           Clock::time_point deadline) {
  rendezvous::TorchAnswers answers;
  constexpr std::string_view kAnyEntry = "\"entries\":[{";
  if (question != ServerQuestion::kStacks) {
    answers.record = ask(path, "fr_trace_json", kRecordBytes, deadline);
    // PyTorch before 2.15, and its older NCCL back end.
    if (answers.record.find(kAnyEntry) == std::string::npos) {
      std::string older = ask(path, "dump_nccl_trace_json", kRecordBytes, deadline);
      if (older.find(kAnyEntry) != std::string::npos) answers.record = std::move(older);
    }
  }
  if (question == ServerQuestion::kRecord) return answers;
  // Both need the GIL, which a native call may hold for ever: then the second one would get no answer, too.
  const auto gil_due = Clock::now() + kGilTime;
  const bool in_time = gil_due <= deadline - kPingTime;
  const auto until = std::min(deadline - kPingTime, gil_due);
  answers.stacks = ask(path, "dump_traceback", kStacks, until);
  // A busy machine delays all answers, so less time than this tells nothing.
  if (answers.stacks.empty() && in_time && Clock::now() >= gil_due)
    answers.lacks_gil = !ask(path, "ping", kHead, Clock::now() + kPingTime).empty();
  if (question == ServerQuestion::kAll && !answers.stacks.empty())
    answers.groups = ask(path, "ddplaunch_groups", kGroups, until);
  return answers;
}

}  // namespace ddp::launcher
