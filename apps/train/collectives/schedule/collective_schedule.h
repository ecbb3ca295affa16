#pragma once

#include <cstddef>
#include <vector>

namespace ddp::train {

/// Collective algorithms as data, without IO: for each rank the steps, each a message to one rank and one
/// from another at the same time, over numbered parts of the buffer. Each part is summed along one path that
/// ends at one rank, and is then handed round: all ranks end with the same bits.
///
/// Two families, for any world size. A ring (each rank speaks with its neighbours only, world-1 steps) and
/// halving and doubling along the distances of halving_distances(): about log2(world) steps with the same
/// volume. The latter is recursive halving generalised to any number of ranks, J. L. Träff, "Optimal,
/// non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234.

/// Parts first, first + 1, … modulo the number of parts.
struct PartRange {
  int first = 0;
  int count = 0;

  friend bool operator==(const PartRange&, const PartRange&) = default;
};

struct CollectiveStep {
  static constexpr int kNobody = -1;

  int send_to = kNobody;
  PartRange sent;
  int receive_from = kNobody;
  PartRange received;
  bool add = false;  ///< what comes is added to the own parts instead of replacing them

  friend bool operator==(const CollectiveStep&, const CollectiveStep&) = default;
};
using Schedule = std::vector<CollectiveStep>;

/// 1 = the first, then each the half (rounded up) of the next, below `world`. Empty for a world of one.
std::vector<int> halving_distances(int world);

/// Rank r ends with the sum of part r. Parts: world.
Schedule ring_reduce_scatter(int rank, int world);
Schedule halving_reduce_scatter(int rank, int world);
/// Part r begins at rank r; all ranks end with all parts.
Schedule ring_all_gather(int rank, int world);
Schedule doubling_all_gather(int rank, int world);
/// One part (number 0) from `root` to all, in about log2(world) steps.
Schedule tree_broadcast(int rank, int world, int root);
/// `parts` parts travel one behind the other round the ring.
Schedule chain_broadcast(int rank, int world, int root, int parts);

/// Who these schedules speak with: both directions along each of halving_distances().
std::vector<int> peers_of(int rank, int world);

struct PartBounds {
  std::size_t begin = 0;
  std::size_t size = 0;
};
/// `count` elements in `parts` parts whose sizes differ by at most one; the larger come first; may be empty.
PartBounds part_bounds(std::size_t count, int parts, int number);

}  // namespace ddp::train
