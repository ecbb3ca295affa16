#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/schedule/collective_machine.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// What the ranks of one node hold of one of them.
struct RankDescriptors {
  UniqueFd doorbell;  ///< eventfd that wakes the rank
  UniqueFd liveness;  ///< a pipe's read end: it hangs up when the rank is gone; empty for this rank itself
  UniqueFd buffer;    ///< memfd of make_shm_buffer()
};
struct NodeDescriptors {
  UniqueFd memory;                     ///< memfd of a ShmSegment
  std::vector<RankDescriptors> ranks;  ///< by local rank
  UniqueFd own_liveness;               ///< write end of this rank's pipe; held, never written
};

/// Returns a new memfd for memory of one rank that the other ranks of its node also map, so that they read
/// and write it without copies. It is empty until its owner gives it a size. It can grow and never shrink,
/// since shrinking would end a process that maps it with SIGBUS. It has no name, so nothing is left behind.
Result<UniqueFd> make_shm_buffer();

/// Allows an empty span without address, which memcpy does not take.
inline void copy_bytes(void* to, const void* from, std::size_t size) {
  if (size > 0) std::memcpy(to, from, size);
}

/// The memory that the ranks of one node share. Each rank has a line of counters and four areas, used in
/// turns: two for its data (`slot`) and two for its sums (`result`). A memfd without a name backs it, so
/// nothing is left when all ranks have died. Each rank that maps it trusts all others.
///
/// Two areas and two tags of a kind are enough. A rank publishes stage s + 1 only after all others have
/// published s and it has read what it needs of theirs. So as long as one rank still reads what belongs to s,
/// no other rank is further than s + 1, and each of them writes only what belongs to s + 1. With one area,
/// each round would need a second wait, for the readers. A rank whose wait fails never publishes again.
class ShmSegment {
 public:
  /// Bytes of one area.
  static constexpr std::size_t kAreaSize = 512 * 1024;

  /// Two groups on cache lines of their own: all ranks read the first, publishing ranks the second.
  struct RankLine {
    alignas(128) std::atomic<std::uint64_t> stage;   ///< how many times this rank has published
    std::atomic<std::uint64_t> tag[2];               ///< the rank's current operation; by the stage's parity
    alignas(128) std::atomic<std::uint32_t> asleep;  ///< 1: this rank wants its doorbell rung
    std::atomic<std::uint32_t> liveness;             ///< grows while this rank waits
  };

  /// Returns a new memfd, sealed against a change of size.
  static Result<UniqueFd> make(int ranks);
  /// Maps the memfd; kProtocol if its size is not that of `ranks`.
  static Result<ShmSegment> map(int memory, int ranks);

  RankLine& line(int rank) const;
  /// Returns the rank of the world whose loss ended the work, plus 1; 0: none.
  std::atomic<std::uint32_t>& lost() const;
  std::span<std::byte> slot(int rank, std::uint64_t turn) const { return area(rank, turn % 2); }
  std::span<std::byte> result(int rank, std::uint64_t turn) const { return area(rank, 2 + turn % 2); }

 private:
  ShmSegment(MappedBytes memory, int ranks) : memory_(std::move(memory)), ranks_(ranks) {}
  std::span<std::byte> area(int rank, std::size_t number) const;

  MappedBytes memory_;
  int ranks_;
};

/// Collectives among the ranks of one node over a ShmSegment. All ranks make the same calls in the same
/// order. Blocking, one thread. Sums run in the order of the local ranks, so they have the same bits on all
/// ranks.
///
/// Each call is a series of rounds. In a round, a rank copies the data that the others need into its area,
/// publishes it, waits until all have published, and reads. A wait spins briefly if each rank has its own
/// processor. Then it sleeps in poll on its doorbell (an eventfd), the interrupt and the liveness of the
/// others. So a death or a revocation ends the wait at once, which a futex could not do (decision 0012). The
/// first rank that sees a death records it in the segment and wakes all. A waiting rank shows the others that
/// it is alive. A rank that neither publishes nor waits for `step_timeout` is given up.
class ShmGroup {
 public:
  /// Maps `descriptors.memory` as the segment.
  static Result<ShmGroup> open(GroupConfig config, NodeDescriptors descriptors);

  int rank() const { return config_.rank; }
  int size() const { return config_.world_size; }

  /// Returns zeroed memory of this rank that the others map as well; valid as long as the group. Sums over it
  /// need no copies. Empty if memory is not available, on all ranks alike. Call it once for each group.
  Result<std::span<std::byte>> share(std::size_t bytes);

  Result<> all_reduce(std::span<std::byte> values, const VectorSum& sum);
  /// Divides the elements by part_bounds() into `parts` <= size() parts; rank p < parts ends with the sum of
  /// part p.
  Result<> reduce_parts(std::span<std::byte> values, const VectorSum& sum, int parts);
  /// Copies rank p's part p to all ranks.
  Result<> gather_parts(std::span<std::byte> values, std::size_t element, int parts);
  Result<> broadcast(std::span<std::byte> data, int root);
  /// Copies `mine` of each rank to `all` of `root`, which has size() times its size.
  Result<> gather(std::span<const std::byte> mine, std::span<std::byte> all, int root);
  /// The same to all ranks.
  Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  Result<> barrier();

  /// Shows the others that this rank is alive but waits elsewhere.
  void show_activity() { segment_.line(rank()).liveness.fetch_add(1, std::memory_order_relaxed); }
  /// `call` runs while this rank waits for another, about every quarter of step_timeout.
  void while_waiting(std::function<void()> call) { while_waiting_ = std::move(call); }

  /// Ends all calls of all ranks of the node, because a rank of the world is lost elsewhere.
  void abandon(int lost_rank);
  /// Returns the lost rank of the world; -1: none.
  int lost_rank() const;
  /// Returns the recorded loss as this rank's failure.
  Error ended_by_mark();
  /// Sets the operation's kind, for messages and for the comparison between ranks.
  void set_kind(CollectiveKind kind) { kind_ = kind; }

 private:
  const RankDescriptors& descriptors_of(int rank) const {
    return descriptors_.ranks[static_cast<std::size_t>(rank)];
  }
  ShmGroup(GroupConfig config, NodeDescriptors descriptors, ShmSegment segment);

  struct Round;
  Result<> rounds(std::span<std::byte> values, const VectorSum& sum, int parts, bool reduce, bool gather);
  Result<> direct_sum(std::span<std::byte> values, const VectorSum& sum);
  static Round round_at(std::span<std::byte> values, std::size_t element, int parts, std::size_t number);
  void copy_others_parts(const Round& round);
  void sum_own_part(const Round& round, const VectorSum& sum);
  void copy_results(const Round& round);

  /// Returns the offset of `values` in the shared memory; nothing if they lie elsewhere.
  std::optional<std::size_t> shared_at(std::span<const std::byte> values) const;
  static std::uint64_t tag_in_place(std::size_t at, std::size_t size);
  Result<> sum_in_place(std::span<std::byte> values, std::size_t at, const VectorSum& sum, int parts,
                        bool gather);
  Result<> gather_in_place(std::span<std::byte> values, std::size_t at, std::size_t element, int parts);

  /// Publishes this rank's areas of this turn and waits until all others have published theirs.
  Result<> sync(std::uint64_t size);
  Result<> wait_for(int rank);
  bool spin(int rank);
  Result<> sleep_until(int rank);
  Result<> detect_ended_ranks();
  void wake(int rank);
  bool has_published(int rank) const;
  Error revoked();
  Error lost(int rank, std::string_view reason, ErrorCode code = ErrorCode::kLinkLost);
  Error fail(Error error);

  GroupConfig config_;
  NodeDescriptors descriptors_;
  ShmSegment segment_;
  std::vector<MappedBytes> buffers_;  ///< of all ranks; empty: none are shared
  UniqueFd liveness_;                 ///< epoll of all RankDescriptors::liveness
  std::vector<bool> gone_;
  bool spins_ = false;
  std::chrono::nanoseconds spin_time_;
  std::uint64_t stage_ = 0;
  CollectiveKind kind_ = CollectiveKind::kBarrier;
  std::function<void()> while_waiting_;
  std::optional<Error> failed_;
};

}  // namespace ddp::train
