#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace ddp::train {

/// What data-parallel training needs of a network. All ranks call the same operations in the same order with
/// the same sizes; an operation returns when this rank's part is complete. Results are bit-equal on all
/// ranks. Blocking, one thread. Backends: tcp (a ring of sockets), none for a world of one; nccl and shm
/// belong behind the same interface.
///
/// Errors: kLinkLost (a peer's connection broke), kTimeout (a step of the operation made no progress in
/// time), kProtocol (a peer is at another operation), kCancelled (revoked through the interrupt descriptor).
/// The text names this rank, the peer, its address and the operation, and ends in the operation's name: the
/// caller appends " of …". After an error every call fails; buffers hold anything.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Each element becomes its sum over the ranks.
  virtual Result<> all_reduce_sum(std::span<float> values) = 0;
  virtual Result<> all_reduce_sum(std::span<double> values) = 0;
  /// `data` of `root` to all.
  virtual Result<> broadcast(std::span<std::byte> data, int root) = 0;
  /// A few numbers of each rank, in rank order.
  virtual Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) = 0;
  /// Returns when all ranks have called it.
  virtual Result<> barrier() = 0;
};

}  // namespace ddp::train
