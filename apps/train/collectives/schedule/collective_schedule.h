#pragma once

#include <cstddef>
#include <vector>

namespace ddp::train {

/// Collective algorithms as data, without IO. Each rank has a list of steps. A step is a message to one rank
/// and one from another at the same time, over numbered parts of the buffer. Each part is summed along one
/// path that ends at one rank, and is then distributed: all ranks end with the same bits.
///
/// Two families work for any world size. In a ring, each rank exchanges with its neighbors only, in world-1
/// steps. Halving and doubling along halving_distances() takes about log2(world) steps with the same volume.
/// It is recursive halving generalized to any number of ranks: J. L. Träff, "Optimal, non-pipelined
/// reduce-scatter and allreduce algorithms", arXiv:2410.14234.

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
  bool add = false;  ///< received values are added to this rank's parts instead of replacing them

  friend bool operator==(const CollectiveStep&, const CollectiveStep&) = default;
};
using Schedule = std::vector<CollectiveStep>;

/// Returns rising distances below `world`: 1 is the first, and each is half (rounded up) of the next. Empty
/// for a world of one.
std::vector<int> halving_distances(int world);

/// Rank r ends with the sum of part r. There are `world` parts.
Schedule ring_reduce_scatter(int rank, int world);
Schedule halving_reduce_scatter(int rank, int world);
/// Part r begins at rank r; all ranks end with all parts.
Schedule ring_all_gather(int rank, int world);
Schedule doubling_all_gather(int rank, int world);
/// Part r begins at rank r; `root` ends with all parts, the others with those that they pass on. Ranks that
/// are connected with the root send straight to it.
Schedule tree_gather(int rank, int world, int root);
/// Sends one part (number 0) from `root` to all ranks, in about log2(world) steps.
Schedule tree_broadcast(int rank, int world, int root);
/// Sends `parts` parts around the ring, one behind the other.
Schedule chain_broadcast(int rank, int world, int root, int parts);

/// Returns the ranks that these schedules exchange with: both directions along each of halving_distances().
std::vector<int> peers_of(int rank, int world);

struct PartBounds {
  std::size_t begin = 0;
  std::size_t size = 0;
};
/// Divides `count` elements into `parts` parts. Sizes differ by at most one; larger parts come first; parts
/// may be empty.
PartBounds part_bounds(std::size_t count, int parts, int number);

}  // namespace ddp::train
