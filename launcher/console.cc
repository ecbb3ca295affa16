#include "launcher/console.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ddp::launcher {
namespace {

/// Segments of one stream are joined up to this size: one write for many lines.
constexpr std::size_t kJoin = 256u << 10;

}  // namespace

Console::Console(asio::any_io_executor loop, std::function<void()> drained, int out, int err)
    : loop_(std::move(loop)), drained_(std::move(drained)), fds_{out, err}, writer_([this] {
        write_loop();
      }) {}

Console::~Console() {
  close();
}

void Console::write(int stream, std::string_view bytes) {
  if (bytes.empty()) return;
  const std::lock_guard lock(mutex_);
  if (broken_[static_cast<std::size_t>(stream - 1)] != 0) return;
  if (!queue_.empty() && queue_.back().stream == stream && queue_.back().bytes.size() < kJoin) {
    queue_.back().bytes.append(bytes);
  } else {
    queue_.push_back({stream, std::string(bytes)});
  }
  backlog_ += bytes.size();
  if (backlog_ > kHigh) was_full_ = true;
  wake_.notify_one();
}

bool Console::full() const {
  const std::lock_guard lock(mutex_);
  return backlog_ > kHigh;
}

int Console::broken(int stream) const {
  const std::lock_guard lock(mutex_);
  return broken_[static_cast<std::size_t>(stream - 1)];
}

void Console::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wake_.notify_one();
  }
  if (writer_.joinable()) writer_.join();
}

void Console::write_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Segment segment = std::move(queue_.front());
    queue_.pop_front();
    const auto index = static_cast<std::size_t>(segment.stream - 1);
    if (broken_[index] == 0) {
      lock.unlock();
      const int error = write_out(fds_[index], segment.bytes);
      lock.lock();
      broken_[index] = error;
    }
    backlog_ -= segment.bytes.size();
    if (was_full_ && backlog_ < kLow) {
      was_full_ = false;
      asio::post(loop_, drained_);
    }
  }
}

int Console::write_out(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {  // somebody who shares the descriptor made it non-blocking
      pollfd wait{fd, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace ddp::launcher
