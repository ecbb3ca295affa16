#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace ddp::train {

/// Owns `size` zeroed elements on a cache line's border, so that no vector load straddles two lines.
template <class T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size)
      : size_(size), data_(static_cast<T*>(::operator new[](size * sizeof(T), kAlignment))) {
    std::uninitialized_fill_n(data_.get(), size, T{});
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::span<T> span() { return {data(), size_}; }
  std::span<const T> span() const { return {data(), size_}; }
  T* at(std::size_t index) { return data() + index; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* data) const { ::operator delete[](data, kAlignment); }
  };

  std::size_t size_ = 0;
  std::unique_ptr<T[], Free> data_;
};

}  // namespace ddp::train
