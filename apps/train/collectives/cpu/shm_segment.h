#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// An empty span may have no address, which memcpy does not take.
inline void copy_bytes(void* to, const void* from, std::size_t size) {
  if (size > 0) std::memcpy(to, from, size);
}

/// The memory that the ranks of one node share: for each rank a line of counters and four areas, two that it
/// gives to the others (`slot`) and two for what it has summed (`result`), used in turns. Backed by a memfd,
/// so that nothing has a name and nothing is left when all have died. Whoever maps it trusts all others.
class ShmSegment {
 public:
  /// Bytes of one area.
  static constexpr std::size_t kAreaSize = 512 * 1024;
  static constexpr int kMostRanks = 1024;

  /// Each on cache lines of its own: the first is read by all, the second by whoever publishes.
  struct RankLine {
    alignas(128) std::atomic<std::uint64_t> stage;   ///< how many times this rank has published
    std::atomic<std::uint64_t> tag[2];               ///< which operation it is at; by the stage's parity
    alignas(128) std::atomic<std::uint32_t> asleep;  ///< 1: wants its doorbell rung
    std::atomic<std::uint32_t> liveness;             ///< grows while this rank waits
  };

  /// A new memfd, sealed against a change of size.
  static Result<UniqueFd> make(int ranks);
  /// Maps it; kProtocol when its size is not that of `ranks`.
  static Result<ShmSegment> map(int memory, int ranks);

  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) = delete;
  ~ShmSegment();

  RankLine& line(int rank) const;
  /// The rank of the world whose loss ended the work, plus 1; 0: none.
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
