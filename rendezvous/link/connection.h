#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/asio.h"
#include "base/result.h"
#include "rendezvous/protocol/codec.h"
#include "rendezvous/protocol/message.h"

namespace ddp::rendezvous {

/// One end of the control link: frames over a ByteStream. Loop thread only. The owner starts one reader and
/// one writer task and keeps the Connection alive until both have ended. Control messages overtake queued
/// output.
class Connection {
 public:
  using Clock = std::chrono::steady_clock;

  /// `early` holds bytes that were already read after the hello line.
  Connection(asio::any_io_executor executor, std::unique_ptr<ByteStream> stream, std::string_view early = {},
             FrameReader::Limits limits = FrameReader::default_limits());

  /// Returns the next message that has already arrived, without waiting. Its string_views are valid until the
  /// next `read_more`.
  Result<std::optional<Message>> next();
  /// Reads more bytes. Errors: kLinkLost, the far side closed or the stream broke; kCancelled, `close` was
  /// called on this end.
  Awaitable<Result<>> read_more();
  /// Returns the memory of the views from `next`, for a caller that needs one longer; see FrameReader.
  std::shared_ptr<const char[]> keep() { return frames_.keep(); }

  /// Queues a control message; never blocks.
  void send(const Message& message);
  /// Returns `size` bytes of memory (kMaxOutputData at most) for the data of the next Output.
  std::span<char> output_space(std::size_t size) { return output_.space(size); }
  /// Queues worker output behind all control messages. `output.data` is the beginning of the last
  /// output_space, or empty. The callers bound the queue (OutputQueue). A broken link takes nothing.
  void send_output(const Output& output);
  /// Sends queued bytes until the stream ends or `close` is called; start it once.
  Awaitable<> write_all();
  /// Waits until all bytes queued so far were handed to the stream, or the stream ended.
  Awaitable<> flushed();

  void close();
  bool closed() const { return closed_; }
  /// Returns when the last byte arrived. Any byte counts as a heartbeat.
  Clock::time_point last_heard() const { return last_heard_; }

 private:
  Awaitable<> write_whole(std::string_view bytes);

  std::unique_ptr<ByteStream> stream_;
  FrameReader frames_;
  std::string control_;
  OutputQueue output_;
  asio::steady_timer queued_;   ///< cancelled when there is something to write
  asio::steady_timer drained_;  ///< cancelled when the queues are empty
  bool writing_ = false;
  bool closed_ = false;  ///< by close()
  bool broken_ = false;  ///< a write failed
  Clock::time_point last_heard_ = Clock::now();
};

}  // namespace ddp::rendezvous
