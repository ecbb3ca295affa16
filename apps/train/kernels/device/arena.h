#pragma once

#include <cstddef>

namespace ddp::train::kernels::device {

/// Divides one piece of memory, the host's or a GPU's, into arrays. Without memory it only counts:
///
///   Arena counting;  lay_out(counting);  allocate(counting.size());  Arena arena(memory);  lay_out(arena);
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = size_;
    size_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kAlignment = 256;  // what a GPU reads at once
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ddp::train::kernels::device
