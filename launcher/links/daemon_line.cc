#include "launcher/links/daemon_line.h"

#include <string_view>
#include <utility>

namespace ddp::launcher {

Awaitable<error_code> DaemonLine::send(std::string frame) {
  while (busy_ && !broken_)
    co_await free_.async_wait(kUseTuple);
  if (broken_) co_return broken_;
  busy_ = true;
  std::string_view rest(frame);
  while (!rest.empty() && !broken_) {
    const auto [error, size] = co_await stream_->write_some(asio::buffer(rest));
    rest.remove_prefix(size);
    if (error && !broken_) broken_ = error;
  }
  busy_ = false;
  free_.cancel();
  co_return broken_;
}

void DaemonLine::close() {
  if (!broken_) broken_ = asio::error::operation_aborted;
  stream_->close();
  free_.cancel();
}

Awaitable<bool> DaemonLine::carry(DaemonFrame kind, LocalSocket& socket) {
  for (;;) {
    const auto [waited] = co_await socket.async_wait(LocalSocket::wait_read, kUseTuple);
    if (waited) co_return true;
    std::string frame(kDaemonFrameHead + kMaxDaemonPayload, '\0');
    const auto [error, size] = co_await socket.async_read_some(
        asio::buffer(frame.data() + kDaemonFrameHead, kMaxDaemonPayload), kUseTuple);
    if (error) co_return true;
    frame.resize(kDaemonFrameHead + size);
    write_daemon_head(kind, size, frame.data());
    const error_code failed = co_await send(std::move(frame));
    if (failed) co_return false;
  }
}

void end_both_directions(LocalSocket& socket) {
  error_code ignored;
  socket.shutdown(LocalSocket::shutdown_both, ignored);
}

}  // namespace ddp::launcher
