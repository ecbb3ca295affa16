#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::rendezvous {

/// The length field at the start of a frame; reads kFrameHeader bytes.
std::uint32_t frame_length(const char* bytes);

/// Cuts a byte stream into frames (sans-IO). The driver's duties:
///   1. read bytes into `space()`, then tell `filled(n)`;
///   2. take frames by `next()` until it gives nothing, then read again.
/// A payload stays valid until the next call of `space()`. Memory: one frame at most beyond the read buffer.
class FrameReader {
 public:
  /// Room for the next read: at least 64 KiB, or what the frame begun still lacks.
  std::span<char> space();
  void filled(std::size_t bytes) { end_ += bytes; }

  /// The next whole frame's payload (type and fields); nothing when more bytes are needed. Error kProtocol:
  /// the length is zero or over kMaxFrame; the stream cannot be read any further.
  Result<std::optional<std::string_view>> next();

 private:
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  ///< first byte not yet handed out
  std::size_t end_ = 0;    ///< one past the last byte read
};

}  // namespace ddp::rendezvous
