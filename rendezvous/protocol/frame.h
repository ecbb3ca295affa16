#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ddp::rendezvous {

/// The length field at the start of a frame; reads kFrameHeader bytes.
std::uint32_t frame_length(const char* bytes);

/// Cuts a byte stream into frames (sans-IO). The driver's duties:
///   1. read bytes into `space()`, then tell `filled(n)`;
///   2. take frames by `next()` until it gives nothing, then read again.
/// A payload stays valid until the next call of `space()`, or as long as somebody has its memory by `keep()`.
/// Memory: at most one frame and 512 KiB, beside what is kept.
class FrameReader {
 public:
  /// Room for the next read: at least 16 KiB and what the frame begun still lacks; more on a stream that
  /// fills it.
  std::span<char> space();
  void filled(std::size_t bytes);

  /// The next whole frame's payload (type and fields); nothing when more bytes are needed. Error kProtocol:
  /// the length is zero or over kMaxFrame; the stream cannot be read any further.
  Result<std::optional<std::string_view>> next();
  /// The memory of the payloads given since the last `space()`, to share; any thread may be the last to let
  /// go.
  std::shared_ptr<const char[]> keep();

 private:
  static constexpr std::size_t kFirstRead = 16u << 10;
  void make_room(std::size_t wanted);

  std::shared_ptr<char[]> buffer_;
  bool kept_ = false;  ///< somebody may have a share of buffer_: what was read stays where it is
  std::size_t capacity_ = 0;
  std::size_t read_size_ = kFirstRead;  ///< doubles while reads fill it
  std::size_t begin_ = 0;               ///< first byte not yet handed out
  std::size_t end_ = 0;                 ///< one past the last byte read
};

}  // namespace ddp::rendezvous
