#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "rendezvous/protocol/message.h"

namespace ddp::rendezvous {

/// Frames of worker output that wait to be sent (sans-IO). They are made in place: the bytes are read from
/// the worker straight to where they are sent from. The owner's duties:
///   1. read into `space()`, then `commit()` what was read, before the next call of space;
///   2. send `front()`, then `pop()` it: a piece is sent whole before anything else may go out.
/// Not bounded: its callers keep to their credit, and at a stop to what the workers' pipes hold. Holds on to
/// little memory once it is empty.
class OutputQueue {
 public:
  /// Room for the data of the next frame, `size` bytes (kMaxOutputData at most).
  std::span<char> space(std::size_t size);
  /// Ends that frame; `output.data` is the beginning of the space, or empty.
  void commit(const Output& output);

  /// Whole frames to send next: as many as fit into `limit` bytes, one at least; empty: nothing waits. They
  /// stay where they are until pop(), whatever is committed meanwhile.
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
