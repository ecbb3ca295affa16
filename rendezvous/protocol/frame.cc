#include "rendezvous/protocol/frame.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/block_pool.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::rendezvous {
namespace {

/// Maximum size of one read of a busy stream.
constexpr std::size_t kMostRead = BlockPool::kBlockSize / 2;
/// Maximum size of one read while the memory is kept. Such memory is not reused, but a read of this size is
/// worth its system call.
constexpr std::size_t kKeptRead = 64u << 10;
/// Size of the first allocation of an output queue, and limit of the memory that an empty one keeps. A buffer
/// for the windows of both streams is reused while much is written.
constexpr std::size_t kFirst = 128u << 10;
constexpr std::size_t kKept = 4u << 20;

/// Returns the length field at the start of a frame; reads kFrameHeader bytes.
std::uint32_t frame_length(const char* bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kFrameHeader; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

}  // namespace

FrameReader::Limits FrameReader::default_limits() {
  return {kMaxFrame, kMostRead};
}

std::span<char> FrameReader::space() {
  if (begin_ == end_ && !kept_) begin_ = end_ = 0;
  std::size_t wanted = kept_ ? std::min(read_size_, kKeptRead) : read_size_;
  // next() has refused lengths over the limit, so a peer cannot make this grow beyond one frame.
  if (end_ - begin_ >= kFrameHeader) {
    const std::size_t whole =
        kFrameHeader + std::min<std::size_t>(frame_length(buffer_.get() + begin_), limits_.frame);
    if (whole > end_ - begin_) wanted = std::max(wanted, whole - (end_ - begin_));
  }
  if (capacity_ - end_ < wanted) make_room(wanted);
  return {buffer_.get() + end_, capacity_ - end_};
}

/// Moves the rest of the last frame to the front, into a larger buffer if necessary.
void FrameReader::make_room(std::size_t wanted) {
  const std::size_t left = end_ - begin_;
  if (kept_ || capacity_ < left + wanted) {
    // Twice the read size, so that the rest of a frame moves only after every second read. The memory is not
    // zeroed: pages that are never read into cost nothing.
    const std::size_t larger = std::max(left + wanted, 2 * read_size_);
    auto fresh = BlockPool::take(larger);
    if (left > 0) std::memcpy(fresh.get(), buffer_.get() + begin_, left);
    buffer_ = std::move(fresh);
    capacity_ = larger;
    kept_ = false;
  } else {
    std::memmove(buffer_.get(), buffer_.get() + begin_, left);
  }
  begin_ = 0;
  end_ = left;
}

std::shared_ptr<const char[]> FrameReader::keep() {
  DDP_REQUIRE(buffer_ && "keep() follows a payload", end_);
  kept_ = true;
  return buffer_;
}

void FrameReader::filled(std::size_t bytes) {
  DDP_REQUIRE(bytes <= capacity_ - end_, bytes, capacity_, end_);
  end_ += bytes;
  // A read that fills its room shows a busy stream.
  if (bytes >= read_size_) read_size_ = std::min(2 * read_size_, limits_.read);
}

Result<std::optional<std::string_view>> FrameReader::next() {
  using Frame = std::optional<std::string_view>;
  DDP_REQUIRE(begin_ <= end_, begin_, end_);
  const std::size_t available = end_ - begin_;
  if (available < kFrameHeader) return Frame{};
  const std::size_t length = frame_length(buffer_.get() + begin_);
  if (length == 0 || length > limits_.frame) {
    return Error{ErrorCode::kProtocol,
                 "a frame of " + std::to_string(length) + " bytes (1 to " + std::to_string(limits_.frame) +
                     " are allowed): the bytes of the link are damaged; check for a wrapper or "
                     "a terminal between the hosts that changes bytes"};
  }
  if (available < kFrameHeader + length) return Frame{};
  const std::string_view payload(buffer_.get() + begin_ + kFrameHeader, length);
  begin_ += kFrameHeader + length;
  return Frame{payload};
}

// ---- output

void OutputQueue::Buffer::reserve(std::size_t more) {
  if (capacity - end >= more) return;
  const std::size_t wanted = std::max({kFirst, 2 * capacity, end + more});
  auto larger = std::make_unique_for_overwrite<char[]>(wanted);  // unused pages cost nothing
  if (!empty()) std::memcpy(larger.get() + begin, bytes.get() + begin, end - begin);
  bytes = std::move(larger);
  capacity = wanted;
}

std::span<char> OutputQueue::space(std::size_t size) {
  DDP_REQUIRE(size <= kMaxOutputData, size);
  filling_.reserve(kOutputHeader + size);
  return {filling_.bytes.get() + filling_.end + kOutputHeader, size};
}

void OutputQueue::commit(const Output& output) {
  DDP_REQUIRE(
      output.data.empty() || output.data.data() == filling_.bytes.get() + filling_.end + kOutputHeader,
      output.rank, output.data.size());
  filling_.reserve(kOutputHeader);  // an end of stream is committed without a space() before
  write_output_header(output, filling_.bytes.get() + filling_.end);
  filling_.end += kOutputHeader + output.data.size();
}

std::string_view OutputQueue::front(std::size_t limit) {
  if (sending_.empty()) {
    if (sending_.capacity > kKept) sending_ = {};
    sending_.begin = sending_.end = 0;
    // Two buffers: what is being sent stays in place while more is committed.
    std::swap(sending_, filling_);
  }
  std::size_t size = 0;
  while (sending_.begin + size < sending_.end) {
    const std::size_t frame = kFrameHeader + frame_length(sending_.bytes.get() + sending_.begin + size);
    // Whole frames only. A control message can then go between any two pieces.
    if (size > 0 && size + frame > limit) break;
    size += frame;
  }
  DDP_REQUIRE(size <= sending_.end - sending_.begin, size, sending_.begin, sending_.end);
  return {sending_.bytes.get() + sending_.begin, size};
}

void OutputQueue::pop(std::size_t bytes) {
  DDP_REQUIRE(bytes <= sending_.end - sending_.begin, bytes, sending_.begin, sending_.end);
  sending_.begin += bytes;
}

}  // namespace ddp::rendezvous
