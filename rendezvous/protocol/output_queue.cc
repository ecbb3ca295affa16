#include "rendezvous/protocol/output_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/result.h"
#include "rendezvous/protocol/codec.h"
#include "rendezvous/protocol/frame.h"

namespace ddp::rendezvous {
namespace {

/// Size of the first allocation, and limit of the memory that an empty queue keeps. A buffer for the windows
/// of both streams is reused while much is written.
constexpr std::size_t kFirst = 128u << 10;
constexpr std::size_t kKept = 4u << 20;

}  // namespace

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
    std::swap(sending_, filling_);
  }
  std::size_t size = 0;
  while (sending_.begin + size < sending_.end) {
    const std::size_t frame = kFrameHeader + frame_length(sending_.bytes.get() + sending_.begin + size);
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
