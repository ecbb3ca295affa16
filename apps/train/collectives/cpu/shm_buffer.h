#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Memory of one rank that the other ranks of its node map too, so that they read and write it without
/// copies. Backed by a memfd, empty until its owner gives it a size; nothing has a name, nothing is left.
class ShmBuffer {
 public:
  /// A new memfd that can grow and never shrink: whoever maps it would end with SIGBUS.
  static Result<UniqueFd> make();
  /// Maps `bytes` of it, which are there; with all pages, so that no sum waits for them.
  static Result<ShmBuffer> map(int memory, std::size_t bytes);

  ShmBuffer(ShmBuffer&& other) noexcept;
  ShmBuffer& operator=(ShmBuffer&& other) = delete;
  ~ShmBuffer();

  std::span<std::byte> span() const { return {base_, size_}; }

 private:
  ShmBuffer(std::byte* base, std::size_t size) : base_(base), size_(size) {}
  std::byte* base_;
  std::size_t size_;
};

}  // namespace ddp::train
