#include "rendezvous/link/connection.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace ddp::rendezvous {
namespace {

/// Maximum bytes of output per write; a control message may have to wait for so many.
constexpr std::size_t kOutputChunk = 128u << 10;

}  // namespace

Connection::Connection(asio::any_io_executor executor, std::unique_ptr<ByteStream> stream,
                       std::string_view early, FrameReader::Limits limits)
    : stream_(std::move(stream)),
      frames_(limits),
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
  auto frame = DDP_TRY(frames_.next());
  if (!frame) return std::optional<Message>{};
  auto message = DDP_TRY(decode_payload(*frame));
  return std::optional<Message>(std::move(message));
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

Awaitable<> Connection::write_all() {
  std::string control;
  while (!closed_ && !broken_) {
    writing_ = true;
    if (!control_.empty()) {
      control.clear();
      control.swap(control_);
      co_await write_whole(control);
    } else if (const std::string_view frames = output_.front(kOutputChunk); !frames.empty()) {
      co_await write_whole(frames);
      output_.pop(frames.size());
    } else {
      writing_ = false;
      drained_.cancel();
      co_await queued_.async_wait(kUseTuple);
    }
  }
  writing_ = false;
  drained_.cancel();
}

Awaitable<> Connection::write_whole(std::string_view bytes) {
  while (!bytes.empty() && !broken_) {
    const auto [error, count] = co_await stream_->write_some(asio::buffer(bytes.data(), bytes.size()));
    broken_ = error || closed_;  // the reader gets the error too and reports it
    bytes.remove_prefix(count);
  }
}

Awaitable<> Connection::flushed() {
  while (!closed_ && !broken_ && (writing_ || !control_.empty() || !output_.empty()))
    co_await drained_.async_wait(kUseTuple);
}

void Connection::close() {
  closed_ = true;
  stream_->close();
  queued_.cancel();
  drained_.cancel();
}

}  // namespace ddp::rendezvous
