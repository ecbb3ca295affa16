#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/train/collectives/cpu/node_links.h"
#include "apps/train/collectives/cpu/shm_buffer.h"
#include "apps/train/collectives/cpu/shm_segment.h"
#include "apps/train/collectives/schedule/collective_machine.h"
#include "apps/train/collectives/schedule/vector_sum.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Collectives among the ranks of one node over a ShmSegment. All ranks make the same calls in the same
/// order. Blocking, one thread. Sums run in the order of the local ranks, so they have the same bits on all
/// ranks.
///
/// Each call is a series of rounds. In a round, a rank copies the data that the others need into its area,
/// publishes it, waits until all have published, and reads. A wait spins briefly if each rank has its own
/// processor. Then it sleeps in poll on its doorbell (an eventfd), the interrupt and the liveness of the
/// others. So a death or a revocation ends the wait at once. The first rank that sees a death records it in
/// the segment and wakes all. A waiting rank shows the others that it is alive. A rank that neither publishes
/// nor waits for `step_timeout` is given up.
class ShmGroup {
 public:
  /// Maps `links.memory` as the segment.
  static Result<ShmGroup> open(NodeConfig config, NodeLinks links);

  int rank() const { return config_.local_rank; }
  int size() const { return config_.local_world_size; }

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
  void call_it(CollectiveKind kind) { kind_ = kind; }

 private:
  ShmGroup(NodeConfig config, NodeLinks links, ShmSegment segment);

  struct Round;
  Result<> rounds(std::span<std::byte> values, const VectorSum& sum, int parts, bool reduce, bool gather);
  Result<> direct_sum(std::span<std::byte> values, const VectorSum& sum);
  static Round round_at(std::span<std::byte> values, std::size_t element, int parts, std::size_t number);
  void copy_others_parts(const Round& round);
  void sum_own_part(const Round& round, const VectorSum& sum);
  void copy_own_part(const Round& round);
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
  std::string me() const;
  Error revoked();
  Error lost(int rank, std::string_view reason, ErrorCode code = ErrorCode::kLinkLost);
  Error fail(Error error);

  NodeConfig config_;
  NodeLinks links_;
  ShmSegment segment_;
  std::vector<ShmBuffer> buffers_;  ///< of all ranks; empty: none are shared
  UniqueFd liveness_;               ///< epoll of links_.liveness
  std::vector<bool> gone_;
  bool spins_ = false;
  std::chrono::nanoseconds spin_time_;
  std::uint64_t stage_ = 0;
  CollectiveKind kind_ = CollectiveKind::kBarrier;
  std::function<void()> while_waiting_;
  std::optional<Error> failed_;
};

}  // namespace ddp::train
