#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Allows an empty span without address, which memcpy does not take.
inline void copy_bytes(void* to, const void* from, std::size_t size) {
  if (size > 0) std::memcpy(to, from, size);
}

/// The memory that the ranks of one node share. Each rank has a line of counters and four areas, used in
/// turns: two for its data (`slot`) and two for its sums (`result`). A memfd without a name backs it, so
/// nothing is left when all ranks have died. Each rank that maps it trusts all others.
class ShmSegment {
 public:
  /// Bytes of one area.
  static constexpr std::size_t kAreaSize = 512 * 1024;
  static constexpr int kMostRanks = 1024;

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

  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) = delete;
  ~ShmSegment();

  RankLine& line(int rank) const;
  /// Returns the rank of the world whose loss ended the work, plus 1; 0: none.
  std::atomic<std::uint32_t>& lost() const;
  std::span<std::byte> slot(int rank, std::uint64_t turn) const { return area(rank, turn % 2); }
  std::span<std::byte> result(int rank, std::uint64_t turn) const { return area(rank, 2 + turn % 2); }

 private:
  ShmSegment(std::byte* base, std::size_t size, int ranks) : base_(base), size_(size), ranks_(ranks) {}
  std::span<std::byte> area(int rank, std::size_t number) const;

  std::byte* base_;
  std::size_t size_;
  int ranks_;
};

}  // namespace ddp::train
