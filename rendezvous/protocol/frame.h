#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::rendezvous {

/// Splits a byte stream into frames (sans-IO). The driver's duties:
///   1. read bytes into `space()`, then call `filled(n)`;
///   2. take frames with `next()` until it returns nothing, then read again.
/// A payload is valid until the next call of `space()`, or as long as a `keep()` of its memory exists.
/// Memory: at most one frame and twice the largest read, beside kept memory.
class FrameReader {
 public:
  struct Limits {
    std::size_t frame;  ///< a longer frame is an error
    std::size_t read;   ///< the largest read of a busy stream; at least 16 KiB
  };
  static Limits default_limits();

  explicit FrameReader(Limits limits = default_limits()) : limits_(limits) {}

  /// Returns room for the next read: at least 16 KiB and the missing bytes of the current frame; more on a
  /// stream that fills it.
  std::span<char> space();
  void filled(std::size_t bytes);

  /// Returns the next whole frame's payload (type and fields), or nothing when more bytes are needed. Error:
  /// kProtocol, the length is zero or over the limit; the stream cannot be read further.
  Result<std::optional<std::string_view>> next();
  /// Shares the memory of the payloads returned since the last `space()`. Any thread may release the last
  /// share.
  std::shared_ptr<const char[]> keep();

 private:
  static constexpr std::size_t kFirstRead = 16u << 10;
  void make_room(std::size_t wanted);

  const Limits limits_;
  std::shared_ptr<char[]> buffer_;
  bool kept_ = false;  ///< buffer_ may be shared, so bytes that were read must not move
  std::size_t capacity_ = 0;
  std::size_t read_size_ = kFirstRead;  ///< doubles while reads fill it
  std::size_t begin_ = 0;               ///< first byte not yet handed out
  std::size_t end_ = 0;                 ///< one past the last byte read
};

/// Frames of worker output that wait to be sent (sans-IO). They are built in place: bytes are read from the
/// worker directly into the frame. The owner's duties:
///   1. read into `space()`, then `commit()` the bytes before the next call of space;
///   2. send `front()`, then `pop()` it. Send each piece whole before sending anything else.
/// The queue is not bounded: the callers keep to their credit, and at a stop to the contents of the workers'
/// pipes. It keeps little memory once it is empty.
class OutputQueue {
 public:
  /// Returns room for the data of the next frame, `size` bytes (kMaxOutputData at most).
  std::span<char> space(std::size_t size);
  /// Completes that frame; `output.data` is the beginning of the space, or empty.
  void commit(const Output& output);

  /// Returns whole frames to send next: as many as fit into `limit` bytes, but at least one; empty: the queue
  /// is empty. They stay in place until pop(), even if more is committed.
  std::string_view front(std::size_t limit);
  void pop(std::size_t bytes);
  bool empty() const { return sending_.empty() && filling_.empty(); }

 private:
  struct Buffer {
    std::unique_ptr<char[]> bytes;
    std::size_t capacity = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
    bool empty() const { return begin == end; }
    void reserve(std::size_t more);
  };
  Buffer filling_;
  Buffer sending_;
};

}  // namespace ddp::rendezvous
