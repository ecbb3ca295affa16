#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ddp::rendezvous {

/// Returns the length field at the start of a frame; reads kFrameHeader bytes.
std::uint32_t frame_length(const char* bytes);

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

}  // namespace ddp::rendezvous
