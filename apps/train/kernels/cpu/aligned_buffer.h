#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace ddp::train {

/// Requests large pages for memory that is read from end to end: without them, sums over shared memory take a
/// third longer. The kernel may ignore the request. Call it before the memory is first touched.
inline void wish_large_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 4096;
  constexpr std::size_t kWorthIt = 4 * 1024 * 1024;
  if (bytes < kWorthIt) return;
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kPage * kPage;
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

/// Owns `size` zeroed elements, aligned to a cache line, so that no vector load straddles two lines.
template <class T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size) : AlignedBuffer(uninitialized(size)) {
    std::uninitialized_fill_n(data_.get(), size, T{});
  }
  /// Returns elements whose values are undefined, for a caller that overwrites all.
  static AlignedBuffer uninitialized(std::size_t size) {
    AlignedBuffer buffer;
    buffer.size_ = size;
    buffer.data_.reset(static_cast<T*>(::operator new[](size * sizeof(T), kAlignment)));
    wish_large_pages(buffer.data_.get(), size * sizeof(T));
    return buffer;
  }

  /// Uses memory of another owner, which must be aligned alike and outlive the buffer.
  explicit AlignedBuffer(std::span<T> others)
      : size_(others.size()), data_(others.data(), FreeAligned{false}) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::span<T> span() { return {data(), size_}; }
  std::span<const T> span() const { return {data(), size_}; }
  T* at(std::size_t index) { return data() + index; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct FreeAligned {
    bool owned = true;
    void operator()(T* data) const {
      if (owned) ::operator delete[](data, kAlignment);
    }
  };

  std::size_t size_ = 0;
  std::unique_ptr<T[], FreeAligned> data_;
};

/// Writes an unsigned number at `at`, lowest byte first. Returns the position behind it.
template <class T>
std::byte* put_little_endian(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    *at++ = static_cast<std::byte>(value >> (8 * i) & 0xff);
  return at;
}

template <class T>
const std::byte* take_little_endian(const std::byte* at, T& value) {
  value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(*at++) << (8 * i);
  return at;
}

}  // namespace ddp::train
