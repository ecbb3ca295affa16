#include "launcher/agent/worker_stdin.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

namespace ddp::launcher {

void WorkerStdin::add(std::string_view bytes) {
  if (bytes.empty()) over_ = true;
  pending_ += bytes;
  resume();
}

void WorkerStdin::resume() {
  if (may_write_() && (over_ || !pending_.empty()) && !std::exchange(busy_, true))
    spawn(executor_, feed(this));
}

Awaitable<> WorkerStdin::feed(WorkerStdin* self) {
  while (!self->pending_.empty() && self->may_write_()) {
    const std::string bytes = std::exchange(self->pending_, {});
    self->given_ += bytes.size();
    co_await write(self, bytes);
    self->send_({static_cast<std::uint32_t>(bytes.size()), false, 0});
  }
  if (self->over_ && self->pending_.empty() && self->may_write_()) self->close_pipe();
  self->busy_ = false;
}

Awaitable<> WorkerStdin::write(WorkerStdin* self, std::string_view bytes) {
  while (!bytes.empty() && self->pipe_.is_open()) {
    const auto [error, count] = co_await self->pipe_.async_write_some(asio::buffer(bytes), kUseTuple);
    self->written_ += count;
    bytes.remove_prefix(count);
    if (!error) continue;
    // The worker has stopped reading, which is no error. After detach() the pipe may be the next worker's.
    if (error != asio::error::operation_aborted) self->close_pipe();
    co_return;
  }
}

void WorkerStdin::attach(UniqueFd pipe) {
  read_end_.reset();
  written_ = 0;
  start_ = given_;
  pipe_.assign(pipe.release());
}

/// The pipe's content can be counted through either end. The worker sees end of file when no writer is left.
void WorkerStdin::close_pipe() {
  if (!pipe_.is_open()) return;
  const std::string link = "/proc/self/fd/" + std::to_string(pipe_.native_handle());
  read_end_.reset(::open(link.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  error_code ignored;
  pipe_.close(ignored);
}

void WorkerStdin::detach() {
  const int pipe = pipe_.is_open() ? pipe_.native_handle() : read_end_.get();
  int unread = 0;
  if (::ioctl(pipe, FIONREAD, &unread) == 0)
    send_({0, true, start_ + written_ - std::min<std::uint64_t>(written_, static_cast<unsigned>(unread))});
  error_code ignored;
  pipe_.close(ignored);
  read_end_.reset();
}

}  // namespace ddp::launcher
