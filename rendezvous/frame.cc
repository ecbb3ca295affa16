#include "rendezvous/frame.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "rendezvous/codec.h"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kReadSize = 64u << 10;

}  // namespace

std::uint32_t frame_length(const char* bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kFrameHeader; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

std::span<char> FrameReader::space() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  std::size_t wanted = kReadSize;
  // next() has refused lengths over the limit, so a peer cannot make this grow beyond one frame.
  if (end_ >= kFrameHeader) {
    const std::size_t whole = kFrameHeader + std::min<std::size_t>(frame_length(buffer_.data()), kMaxFrame);
    if (whole > end_) wanted = std::max(wanted, whole - end_);
  }
  if (buffer_.size() < end_ + wanted) buffer_.resize(end_ + wanted);
  return {buffer_.data() + end_, buffer_.size() - end_};
}

Result<std::optional<std::string_view>> FrameReader::next() {
  using Frame = std::optional<std::string_view>;
  const std::size_t available = end_ - begin_;
  if (available < kFrameHeader) return Frame{};
  const std::size_t length = frame_length(buffer_.data() + begin_);
  if (length == 0 || length > kMaxFrame) {
    return Error{ErrorCode::kProtocol, "a frame of " + std::to_string(length) + " bytes (1 to " +
                                           std::to_string(kMaxFrame) + " are allowed)"};
  }
  if (available < kFrameHeader + length) return Frame{};
  const std::string_view payload(buffer_.data() + begin_ + kFrameHeader, length);
  begin_ += kFrameHeader + length;
  return Frame{payload};
}

}  // namespace ddp::rendezvous
