#pragma once

#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

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

struct UnmapMemory {
  std::size_t size = 0;
  void operator()(std::byte* memory) const { ::munmap(memory, size); }
};
/// Memory of a file, mapped until the end of this object.
using MappedBytes = std::unique_ptr<std::byte, UnmapMemory>;

/// The arguments are those of mmap. Null: it failed, and errno says why.
inline MappedBytes map_file(int file, std::size_t size, int protection, int flags,
                            std::ptrdiff_t offset = 0) {
  void* const memory = ::mmap(nullptr, size, protection, flags, file, offset);
  return {memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory), UnmapMemory{size}};
}
inline std::span<std::byte> span_of(const MappedBytes& memory) {
  return {memory.get(), memory.get_deleter().size};
}

static_assert(std::endian::native == std::endian::little, "messages and files are as they lie in memory");

/// Returns the bytes of one object, for messages and files.
template <class T>
std::span<std::byte> bytes_of(T& object) {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);
  return std::as_writable_bytes(std::span(&object, 1));
}

}  // namespace ddp::train
