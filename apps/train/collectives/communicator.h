#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddp::train {

/// How ranks talk. kAuto: shared memory inside a node where the environment tells which ranks share one, TCP
/// between nodes. kShm: the same, but an environment that does not tell is a mistake. kTcp: TCP only. kNccl:
/// NVIDIA's library, over GPUs.
enum class CommKind : std::uint8_t { kAuto, kTcp, kShm, kNccl };

class DeviceOperations;
class DeviceAllReducer;

/// What data-parallel training needs of a network. All ranks call the same operations in the same order with
/// the same sizes; an operation returns when this rank's part is complete. Results are bit-equal on all
/// ranks. Blocking, one thread.
///
/// Errors: kLinkLost (a peer's connection broke), kTimeout (a step of the operation made no progress in
/// time), kProtocol (a peer is at another operation), kCancelled (revoked through the interrupt descriptor).
/// The text names this rank, the peer, its address and the operation, and ends in the operation's name: the
/// caller appends " of …". After an error every call fails; buffers hold anything.
class Communicator {
 public:
  /// Of a sum under way; 0 is never one.
  using Handle = std::uint64_t;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// The rank of the job's world whose loss ended the work, where that is known; -1: not.
  virtual int lost_rank() const { return -1; }

  /// Each element becomes its sum over the ranks.
  virtual Result<> all_reduce_sum(std::span<float> values) = 0;
  virtual Result<> all_reduce_sum(std::span<double> values) = 0;
  /// `data` of `root` to all.
  virtual Result<> broadcast(std::span<std::byte> data, int root) = 0;
  /// A few numbers of each rank, in rank order.
  virtual Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) = 0;
  /// Returns when all ranks have called it.
  virtual Result<> barrier() = 0;

  /// `values` are world_size() parts of equal size (the caller pads), part r belongs to rank r. Afterwards
  /// the own part holds its sum, bit-equal to what all_reduce_sum() makes of the same values; the other parts
  /// hold anything.
  virtual Result<> reduce_scatter_sum(std::span<float> values) { return all_reduce_sum(values); }
  virtual Result<> reduce_scatter_sum(std::span<double> values) { return all_reduce_sum(values); }
  /// Equal parts as above: each rank's own part to all.
  virtual Result<> all_gather_parts(std::span<std::byte> parts) {
    const std::size_t size = parts.size() / static_cast<std::size_t>(world_size());
    for (int root = 0; root < world_size(); ++root) {
      auto done = broadcast(parts.subspan(static_cast<std::size_t>(root) * size, size), root);
      if (!done) return done;
    }
    return {};
  }

  /// Memory in which large sums are faster, zeroed, as long as this lives; empty: there is none. All ranks
  /// call it with the same size, before their first sum. Errors show in the next operation.
  virtual std::span<std::byte> share_memory(std::size_t) { return {}; }

  /// The same ranks, for what lies on their GPUs; owned by this. Null: only the host's memory can be summed.
  virtual DeviceAllReducer* device_all_reducer() { return nullptr; }
  virtual DeviceOperations* device_operations() { return nullptr; }

  /// An all-reduce that may run while the caller computes: `values` belong to it until wait(). Waits come in
  /// the order of the starts, and before any other operation all have been waited for.
  virtual Result<Handle> start_all_reduce(std::span<float> values) { return started(all_reduce_sum(values)); }
  virtual Result<Handle> start_all_reduce(std::span<double> values) {
    return started(all_reduce_sum(values));
  }
  virtual Result<> wait(Handle) { return {}; }
  /// Moves on what was started, as far as that goes without blocking.
  virtual Result<> progress() { return {}; }

 private:
  static Result<Handle> started(const Result<>& done) {
    if (!done) return done.error();
    return Handle{1};
  }
};

/// An error of a communicator, completed by what the operation was part of: "… during all-reduce" + " of step
/// 17".
inline Error of(Error error, const std::string& what) {
  error.text += " of " + what;
  return error;
}

/// A world of one: every operation is complete at once.
class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Result<> all_reduce_sum(std::span<float>) override { return {}; }
  Result<> all_reduce_sum(std::span<double>) override { return {}; }
  Result<> broadcast(std::span<std::byte>, int) override { return {}; }
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override {
    return std::vector<std::uint64_t>(mine.begin(), mine.end());
  }
  Result<> barrier() override { return {}; }
};

}  // namespace ddp::train
