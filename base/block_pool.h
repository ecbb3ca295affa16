#pragma once

#include <cstddef>
#include <memory>

namespace ddp::rendezvous {

/// Busy streams are read into blocks of this size; all links of the process share the pool. A fresh block
/// would cost one page fault per page. Any thread may take a block, and another thread may release it.
inline constexpr std::size_t kBlockSize = 512u << 10;

/// Returns `size` bytes of memory, not zeroed. For kBlockSize it reuses a released block when the pool has
/// one.
std::shared_ptr<char[]> take_block(std::size_t size);

}  // namespace ddp::rendezvous
