#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "rendezvous/protocol/message.h"

namespace ddp::rendezvous {

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
