#include "launcher/console.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace ddp::launcher {
namespace {

/// Segments of one stream are joined up to this size: one write for many lines.
constexpr std::size_t kJoin = 256u << 10;

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

int write_out(int fd, std::string_view bytes) {
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

}  // namespace

struct Console::Lane {
  Lane(asio::any_io_executor executor, std::function<void()> callback, int out, int err)
      : loop(std::move(executor)), drained(std::move(callback)), fds{out, err} {}
  asio::any_io_executor loop;
  const std::function<void()> drained;
  const std::array<int, 2> fds;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable empty;
  std::deque<Segment> queue;
  std::array<std::size_t, 2> waiting{};  ///< bytes of each stream, those being written included
  std::array<int, 2> broken{};           ///< errno of the first failed write
  bool was_full = false;
  bool closing = false;
  bool abandoned = false;
  std::thread writer;
  std::size_t backlog() const { return waiting[0] + waiting[1]; }
};

Console::Console(asio::any_io_executor loop, std::function<void()> drained, int out, int err) {
  for (int i = 0; i < (same_file(out, err) ? 1 : 2); ++i) {
    lanes_.push_back(std::make_shared<Lane>(loop, drained, out, err));
    lanes_.back()->writer = std::thread([lane = lanes_.back()] { write_loop(lane); });
  }
}

Console::~Console() {
  close();
}

void Console::write(int stream, std::string_view bytes) {
  if (bytes.empty()) return;
  Lane& lane = lane_of(stream);
  const auto index = static_cast<std::size_t>(stream - 1);
  const std::lock_guard lock(lane.mutex);
  if (lane.broken[index] != 0 || lane.abandoned) return;
  if (!lane.queue.empty() && lane.queue.back().stream == stream && lane.queue.back().bytes.size() < kJoin) {
    lane.queue.back().bytes.append(bytes);
  } else {
    lane.queue.push_back({stream, std::string(bytes)});
  }
  lane.waiting[index] += bytes.size();
  if (lane.backlog() > kHigh) lane.was_full = true;
  lane.wake.notify_one();
}

bool Console::full() const {
  for (const auto& lane : lanes_) {
    const std::lock_guard lock(lane->mutex);
    if (lane->backlog() > kHigh) return true;
  }
  return false;
}

bool Console::flush(int stream, std::chrono::milliseconds limit) {
  Lane& lane = lane_of(stream);
  const auto index = static_cast<std::size_t>(stream - 1);
  std::unique_lock lock(lane.mutex);
  return lane.empty.wait_for(lock, limit, [&] { return lane.waiting[index] == 0; });
}

int Console::broken(int stream) const {
  Lane& lane = lane_of(stream);
  const std::lock_guard lock(lane.mutex);
  return lane.broken[static_cast<std::size_t>(stream - 1)];
}

void Console::close() {
  for (const auto& lane : lanes_) {
    {
      const std::lock_guard lock(lane->mutex);
      lane->closing = true;
      lane->wake.notify_one();
    }
    if (lane->writer.joinable()) lane->writer.join();
  }
}

void Console::abandon() {
  for (const auto& lane : lanes_) {
    const std::lock_guard lock(lane->mutex);
    lane->closing = lane->abandoned = true;
    lane->queue.clear();
    lane->wake.notify_one();
    if (lane->writer.joinable()) lane->writer.detach();
  }
}

void Console::write_loop(const std::shared_ptr<Lane>& lane) {
  std::unique_lock lock(lane->mutex);
  for (;;) {
    lane->wake.wait(lock, [&] { return lane->closing || !lane->queue.empty(); });
    if (lane->queue.empty()) return;
    const Segment segment = std::move(lane->queue.front());
    lane->queue.pop_front();
    const auto index = static_cast<std::size_t>(segment.stream - 1);
    if (lane->broken[index] == 0) {
      lock.unlock();
      const int error = write_out(lane->fds[index], segment.bytes);
      lock.lock();
      if (lane->abandoned) return;
      lane->broken[index] = error;
    }
    lane->waiting[index] -= segment.bytes.size();
    if (lane->waiting[index] == 0) lane->empty.notify_all();
    if (lane->was_full && lane->backlog() < kLow) {
      lane->was_full = false;
      asio::post(lane->loop, lane->drained);
    }
  }
}

}  // namespace ddp::launcher
