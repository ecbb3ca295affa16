#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "rendezvous/protocol/codec.h"
#include "rendezvous/protocol/frame.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/protocol/output_queue.h"

namespace ddp::rendezvous {

/// One end of the control link: frames over a ByteStream. Loop thread only; one reader and one writer task,
/// both started by the owner, who keeps the Connection alive until they have ended. Control messages overtake
/// queued output.
class Connection {
 public:
  using Clock = std::chrono::steady_clock;

  /// `early` holds bytes that were already read behind the hello line.
  Connection(asio::any_io_executor executor, std::unique_ptr<ByteStream> stream, std::string_view early = {});

  /// The next message that has already arrived, without waiting. string_views in it live until the next
  /// `read_more`.
  Result<std::optional<Message>> next();
  /// Reads more bytes. Error kLinkLost: the far side closed, or the stream broke; kCancelled: `close` was
  /// called here.
  Awaitable<Result<>> read_more();
  /// The memory of those string_views, for who keeps one longer; see FrameReader.
  std::shared_ptr<const char[]> keep() { return frames_.keep(); }

  /// Queues a control message; never blocks.
  void send(const Message& message);
  /// Memory to read the data of the next Output into, `size` bytes (kMaxOutputData at most).
  std::span<char> output_space(std::size_t size) { return output_.space(size); }
  /// Queues worker output behind all control. `output.data` is the beginning of the last output_space, or
  /// empty. The queue is bounded by its callers (OutputQueue); of a broken link it takes nothing.
  void send_output(const Output& output);
  enum class Splice {
    kMoved,
    kCopy,   ///< this link or system cannot: read them into output_space
    kLater,  ///< the link is busy: `ready` tells when to try again
  };
  /// Sends `size` bytes (kMaxOutputData at most) that wait in `pipe`, which nobody else reads, as one Output
  /// without reading them; `output.data` is empty. Only while nothing is queued: output that waits is cheaper
  /// in its pipe.
  Splice splice_output(const Output& output, int pipe, std::size_t size);
  /// Called after kLater, from write_all, when the link takes more or has ended.
  void on_ready(std::function<void()> ready) { ready_ = std::move(ready); }
  /// Sends what is queued until the stream ends or `close`; start it once.
  Awaitable<> write_all();
  /// Waits until everything queued so far was handed to the stream, or the stream ended.
  Awaitable<> flushed();

  void close();
  bool closed() const { return closed_; }
  /// When the last byte came: any byte is a sign of life.
  Clock::time_point last_heard() const { return last_heard_; }

 private:
  Awaitable<> write_whole(std::string_view bytes);
  void notify_ready();
  void queue_rest(std::string_view header, int pipe, std::size_t size);

  std::unique_ptr<ByteStream> stream_;
  FrameReader frames_;
  int socket_;        ///< of stream_, that takes pages of pipes; -1: none
  std::string rest_;  ///< of a frame that was begun: goes before all else
  std::string control_;
  OutputQueue output_;
  asio::steady_timer queued_;   ///< cancelled when there is something to write
  asio::steady_timer drained_;  ///< cancelled when the queues are empty
  std::function<void()> ready_;
  bool ready_awaited_ = false;
  bool writing_ = false;
  bool closed_ = false;  ///< by close()
  bool broken_ = false;  ///< a write failed
  Clock::time_point last_heard_ = Clock::now();
};

}  // namespace ddp::rendezvous
