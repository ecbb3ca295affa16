#include "rendezvous/connection.h"

#include <cstring>
#include <string_view>
#include <utility>

namespace ddp::rendezvous {
namespace {

/// Output handed to the stream at a time: what control may have to wait for.
constexpr std::size_t kOutputChunk = 64u << 10;
/// Sent bytes that may stay in front of the queue before they are moved out.
constexpr std::size_t kCompactAt = 256u << 10;

}  // namespace

Connection::Connection(asio::any_io_executor executor, std::unique_ptr<ByteStream> stream,
                       std::string_view early)
    : stream_(std::move(stream)),
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
                                              ? "the link broke: " + error.message()
                                              : std::string("the link was closed by the far side")};
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
  append_frame(output, output_);
  queued_.cancel();
}

Awaitable<> Connection::write_all() {
  std::string batch;
  while (!closed_ && !broken_) {
    batch.clear();
    batch.swap(control_);
    // Whole frames only: an output frame that is half written must be finished before control may follow.
    if (output_sent_ < output_.size() && batch.size() < kOutputChunk) {
      std::size_t end = output_sent_;
      while (end < output_.size() && end - output_sent_ < kOutputChunk) {
        end += kFrameHeader + frame_length(output_.data() + end);
      }
      batch.append(output_, output_sent_, end - output_sent_);
      output_sent_ = end;
      if (output_sent_ == output_.size() || output_sent_ >= kCompactAt) {
        output_.erase(0, output_sent_);
        output_sent_ = 0;
      }
    }
    if (batch.empty()) {
      writing_ = false;
      drained_.cancel();
      co_await queued_.async_wait(kUseTuple);
      continue;
    }
    writing_ = true;
    std::size_t sent = 0;
    while (sent < batch.size()) {
      const auto [error, count] =
          co_await stream_->write_some(asio::buffer(batch.data() + sent, batch.size() - sent));
      if (error || closed_) {
        broken_ = true;  // the reader hears of it too, and says why
        break;
      }
      sent += count;
    }
  }
  writing_ = false;
  drained_.cancel();
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
