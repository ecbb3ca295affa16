#include "rendezvous/link/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace ddp::rendezvous {
namespace {

/// Maximum bytes of output per write; a control message may have to wait for so many.
constexpr std::size_t kOutputChunk = 128u << 10;

/// When POLLOUT is set, at most a quarter of the socket's buffer is used, so a whole frame fits.
bool has_room(int socket) {
  pollfd look{socket, POLLOUT, 0};
  return ::poll(&look, 1, 0) == 1 && (look.revents & POLLOUT) != 0;
}

/// Returns how many of `size` bytes moved from `pipe` to `socket`. Pages move; nothing is copied before the
/// far side reads.
std::size_t move_pages(int pipe, int socket, std::size_t size) {
  std::size_t moved = 0;
  while (moved < size) {
    const ssize_t count =
        ::splice(pipe, nullptr, socket, nullptr, size - moved, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (count > 0)
      moved += static_cast<std::size_t>(count);
    else if (count == 0 || errno != EINTR)
      break;
  }
  return moved;
}

}  // namespace

Connection::Connection(asio::any_io_executor executor, std::unique_ptr<ByteStream> stream,
                       std::string_view early)
    : stream_(std::move(stream)),
      socket_(stream_->socket()),
      queued_(executor, Clock::time_point::max()),
      drained_(executor, Clock::time_point::max()) {
  while (!early.empty()) {
    const std::span<char> space = frames_.space();
    const std::size_t count = std::min(space.size(), early.size());
    std::memcpy(space.data(), early.data(), count);
    frames_.filled(count);
    early.remove_prefix(count);
  }
}

Result<std::optional<Message>> Connection::next() {
  auto frame = frames_.next();
  if (!frame) return frame.error();
  if (!*frame) return std::optional<Message>{};
  auto message = decode_payload(**frame);
  if (!message) return message.error();
  return std::optional<Message>(std::move(*message));
}

Awaitable<Result<>> Connection::read_more() {
  const std::span<char> space = frames_.space();
  const auto [error, count] = co_await stream_->read_some(asio::buffer(space.data(), space.size()));
  if (closed_) co_return Error{ErrorCode::kCancelled, "the link was closed"};
  if (error || count == 0) {
    co_return Error{ErrorCode::kLinkLost, error && error != asio::error::eof
                                              ? "the link failed: " + error.message()
                                              : std::string("the node closed the connection")};
  }
  last_heard_ = Clock::now();
  frames_.filled(count);
  co_return Result<>{};
}

void Connection::send(const Message& message) {
  if (closed_ || broken_) return;
  append_frame(message, control_);
  queued_.cancel();
}

void Connection::send_output(const Output& output) {
  if (closed_ || broken_) return;
  output_.commit(output);
  queued_.cancel();
}

Connection::Splice Connection::splice_output(const Output& output, int pipe, std::size_t size) {
  if (socket_ < 0 || closed_ || broken_) return Splice::kCopy;
  if (writing_ || !rest_.empty() || !control_.empty() || !output_.empty() || !has_room(socket_)) {
    ready_awaited_ = true;
    queued_.cancel();
    return Splice::kLater;
  }
  std::array<char, kOutputHeader> header;
  write_output_header(output, size, header.data());
  const ssize_t sent = ::send(socket_, header.data(), header.size(), MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
  if (sent <= 0) return Splice::kCopy;  // the writer will see the error
  const auto begun = static_cast<std::size_t>(sent);
  const std::size_t moved = begun == header.size() ? move_pages(pipe, socket_, size) : 0;
  if (moved < size) queue_rest({header.data() + begun, header.size() - begun}, pipe, size - moved);
  return Splice::kMoved;
}

/// Queues the part of a frame that the socket did not take. All of its data is in the pipe.
void Connection::queue_rest(std::string_view header, int pipe, std::size_t size) {
  rest_ = header;
  rest_.resize(header.size() + size);
  for (std::size_t at = header.size(); at < rest_.size();) {
    const ssize_t count = ::read(pipe, rest_.data() + at, rest_.size() - at);
    if (count > 0) {
      at += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      rest_.clear();
      broken_ = true;  // a frame is incomplete, so the link is unusable
      stream_->close();
      break;
    }
  }
  queued_.cancel();
}

void Connection::notify_ready() {
  if (std::exchange(ready_awaited_, false) && ready_) ready_();
}

Awaitable<> Connection::write_all() {
  std::string control;
  while (!closed_ && !broken_) {
    writing_ = true;
    if (!rest_.empty()) {
      const std::string rest = std::exchange(rest_, {});
      co_await write_whole(rest);
    } else if (!control_.empty()) {
      control.clear();
      control.swap(control_);
      co_await write_whole(control);
    } else if (const std::string_view frames = output_.front(kOutputChunk); !frames.empty()) {
      co_await write_whole(frames);
      output_.pop(frames.size());
    } else if (ready_awaited_) {
      writing_ = false;
      drained_.cancel();
      const error_code failed = co_await stream_->writable();
      if (failed) broken_ = true;
      notify_ready();
    } else {
      writing_ = false;
      drained_.cancel();
      co_await queued_.async_wait(kUseTuple);
    }
  }
  writing_ = false;
  drained_.cancel();
  notify_ready();
}

Awaitable<> Connection::write_whole(std::string_view bytes) {
  while (!bytes.empty() && !broken_) {
    const auto [error, count] = co_await stream_->write_some(asio::buffer(bytes.data(), bytes.size()));
    if (error || closed_)
      broken_ = true;  // the reader gets the error too and reports it
    else
      bytes.remove_prefix(count);
  }
}

Awaitable<> Connection::flushed() {
  while (!closed_ && !broken_ && (writing_ || !rest_.empty() || !control_.empty() || !output_.empty()))
    co_await drained_.async_wait(kUseTuple);
}

void Connection::close() {
  closed_ = true;
  stream_->close();
  queued_.cancel();
  drained_.cancel();
}

}  // namespace ddp::rendezvous
