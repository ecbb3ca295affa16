#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Memory of one rank that the other ranks of its node also map, so that they read and write it without
/// copies. A memfd backs it, empty until its owner gives it a size. The memfd has no name, so nothing is left
/// behind.
class ShmBuffer {
 public:
  /// Returns a new memfd that can grow and never shrink: shrinking would end a process that maps it with
  /// SIGBUS.
  static Result<UniqueFd> make();
  /// Maps `bytes` bytes, which must exist. All pages are populated, so that no sum waits for them.
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
