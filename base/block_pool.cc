#include "base/block_pool.h"

#include <mutex>
#include <utility>
#include <vector>

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kSpares = 8;

struct SpareBlocks {
  std::mutex mutex;
  std::vector<std::unique_ptr<char[]>> spare;
};

SpareBlocks& pool() {
  static SpareBlocks& all = *new SpareBlocks;  // never destroyed: a thread that outlives main may use it
  return all;
}

void give_back(char* returned) {
  std::unique_ptr<char[]> block(returned);
  const std::lock_guard lock(pool().mutex);
  if (pool().spare.size() < kSpares) pool().spare.push_back(std::move(block));
}

}  // namespace

std::shared_ptr<char[]> take_block(std::size_t size) {
  if (size != kBlockSize) return std::shared_ptr<char[]>(new char[size]);
  std::unique_ptr<char[]> block;
  {
    const std::lock_guard lock(pool().mutex);
    if (!pool().spare.empty()) {
      block = std::move(pool().spare.back());
      pool().spare.pop_back();
    }
  }
  if (!block) block = std::make_unique_for_overwrite<char[]>(kBlockSize);
  return {block.release(), give_back};
}

}  // namespace ddp::rendezvous
