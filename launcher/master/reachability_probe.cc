#include "launcher/master/reachability_probe.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/asio.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

using asio::ip::tcp;

struct ReachabilityProbe::Attempt {
  Attempt(const asio::any_io_executor& loop, UniqueFd fd, std::function<void()> handler)
      : socket(loop, fd.release()), answered(std::move(handler)) {}

  /// Sends a reset instead of a FIN, so that neither end keeps anything of the connection.
  void close() {
    if (!socket.is_open()) return;
    const linger no_wait{1, 0};
    ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_LINGER, &no_wait, sizeof no_wait);
    error_code ignored;
    socket.close(ignored);
  }

  asio::posix::stream_descriptor socket;
  std::function<void()> answered;
};

void ReachabilityProbe::begin(const std::string& address, std::uint16_t port,
                              std::function<void()> answered) {
  cancel();
  error_code unreadable;
  const tcp::endpoint there(asio::ip::make_address(address, unreadable), port);
  if (unreadable) return;
  UniqueFd fd(::socket(there.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Out of descriptors, or no route: no answer, as if the packets were lost.
  if (!fd || (::connect(fd.get(), there.data(), static_cast<socklen_t>(there.size())) != 0 &&
              errno != EINPROGRESS && errno != ECONNREFUSED))
    return;
  attempt_ = std::make_shared<Attempt>(loop_, std::move(fd), std::move(answered));
  await(attempt_);
}

void ReachabilityProbe::await(const std::shared_ptr<Attempt>& attempt) {
  attempt->socket.async_wait(asio::posix::stream_descriptor::wait_write, [attempt](const error_code& error) {
    if (error || !attempt->socket.is_open()) return;
    if (!is_writable(attempt->socket.native_handle())) return await(attempt);  // base/asio.h
    int result = 0;
    socklen_t size = sizeof result;
    ::getsockopt(attempt->socket.native_handle(), SOL_SOCKET, SO_ERROR, &result, &size);
    attempt->close();
    if (result == 0 || result == ECONNREFUSED) attempt->answered();
  });
}

void ReachabilityProbe::cancel() {
  if (attempt_) std::exchange(attempt_, nullptr)->close();
}

}  // namespace ddp::launcher
