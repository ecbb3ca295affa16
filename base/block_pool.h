#pragma once

#include <cstddef>
#include <memory>

namespace ddp::rendezvous {

/// The blocks that busy streams are read into, of all links of the process: a fresh one would cost a page
/// fault for each of its pages. Any thread; a block may be let go of on another one.
inline constexpr std::size_t kBlockSize = 512u << 10;

/// Memory of `size` bytes, not zeroed; of kBlockSize: a used one when there is one.
std::shared_ptr<char[]> take_block(std::size_t size);

}  // namespace ddp::rendezvous
