#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/train/collectives/communicator.h"

/// Gathers `size` bytes of each rank to `root`. All ranks call it. Returns the error; empty: the bytes are
/// right.
inline std::string gather_is_right(ddp::train::Communicator& all, std::size_t size, int root) {
  const auto byte_of = [](int rank, std::size_t at) {
    return static_cast<std::byte>(at * 7 + at / 1000 + static_cast<std::size_t>(rank));
  };
  std::vector<std::byte> mine(size);
  for (std::size_t at = 0; at < size; ++at)
    mine[at] = byte_of(all.rank(), at);
  const auto world = static_cast<std::size_t>(all.world_size());
  std::vector<std::byte> whole(all.rank() == root ? size * world : 0);
  if (auto done = all.gather(mine, whole, root); !done) return done.error().text;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] != byte_of(static_cast<int>(i / size), i % size)) return "wrong byte " + std::to_string(i);
  }
  return "";
}
