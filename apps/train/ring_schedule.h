#pragma once

#include <cstddef>
#include <vector>

namespace ddp::train {

/// The ring algorithms as data, without IO: which part of the buffer a rank sends to the next rank and which
/// it receives from the previous one, step by step. A step's two halves run at the same time. Each part is
/// summed along one path and then handed round, so all ranks end with the same bits.
struct RingStep {
  static constexpr int kNothing = -1;

  int send = kNothing;  ///< number of the part; kNothing: no message
  int receive = kNothing;
  bool add = false;  ///< add what comes to the own part instead of replacing it

  friend bool operator==(const RingStep&, const RingStep&) = default;
};

/// Parts are numbered 0 … world-1. After reduce-scatter (world-1 steps) and all-gather (world-1 steps) every
/// part holds the sum over all ranks. Empty for a world of one.
std::vector<RingStep> ring_all_reduce(int rank, int world);
/// Part r begins at rank r; after world-1 steps all ranks have all parts.
std::vector<RingStep> ring_all_gather(int rank, int world);
/// One part (number 0) travels from `root` round the ring.
std::vector<RingStep> ring_broadcast(int rank, int world, int root);

struct RingPart {
  std::size_t begin = 0;
  std::size_t size = 0;
};
/// `count` elements in `parts` parts whose sizes differ by at most one; the larger come first; may be empty.
RingPart ring_part(std::size_t count, int parts, int number);

}  // namespace ddp::train
