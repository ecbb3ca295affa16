#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ddp {

/// Busy streams are read into blocks of this size; all links of the process share the pool. A fresh block
/// would cost one page fault per page. Any thread may take a block, and another thread may release it.
class BlockPool {
 public:
  static constexpr std::size_t kBlockSize = 512u << 10;

  /// Returns `size` bytes of memory, not zeroed. For kBlockSize it reuses a released block when the pool has
  /// one.
  static std::shared_ptr<char[]> take(std::size_t size) {
    if (size != kBlockSize) return std::shared_ptr<char[]>(new char[size]);
    std::unique_ptr<char[]> block;
    {
      const std::lock_guard lock(pool().mutex_);
      if (!pool().spare_.empty()) {
        block = std::move(pool().spare_.back());
        pool().spare_.pop_back();
      }
    }
    if (!block) block = std::make_unique_for_overwrite<char[]>(kBlockSize);
    return {block.release(), give_back};
  }

 private:
  static constexpr std::size_t kSpares = 8;

  static BlockPool& pool() {
    static BlockPool& all = *new BlockPool;  // never destroyed: a thread that outlives main may use it
    return all;
  }

  static void give_back(char* returned) {
    std::unique_ptr<char[]> block(returned);
    const std::lock_guard lock(pool().mutex_);
    if (pool().spare_.size() < kSpares) pool().spare_.push_back(std::move(block));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> spare_;
};

}  // namespace ddp
