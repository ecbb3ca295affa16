#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

namespace ddp::train::kernels::device {

/// Position of one array in an arena, for a program that compares two memories.
struct ArenaPart {
  std::size_t begin;  ///< bytes
  std::size_t count;  ///< numbers
  std::size_t size;   ///< bytes of a number
  bool floating_point;
};

/// Divides one piece of memory, the host's or a GPU's, into arrays. Without memory, it only counts:
///
///   Arena counting;  lay_out(counting);  allocate(counting.size());  Arena arena(memory);  lay_out(arena);
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::byte* memory) : memory_(memory) {}
  /// Only counts, and records each array in `parts`.
  explicit Arena(std::vector<ArenaPart>& parts) : parts_(&parts) {}

  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = size_;
    size_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (parts_ != nullptr) parts_->push_back({at, count, sizeof(T), std::is_floating_point_v<T>});
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kAlignment = 256;  // bytes that a GPU reads at once
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::vector<ArenaPart>* parts_ = nullptr;
};

}  // namespace ddp::train::kernels::device
