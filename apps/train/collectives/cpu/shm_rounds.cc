#include "apps/train/collectives/cpu/shm_group.h"

#include <algorithm>
#include <utility>
#include <vector>

// Sums of a ShmGroup that are too large for one area.

namespace ddp::train {

namespace {

/// Bytes of one part in one round. The data that a rank copies, sums and reads back then stays in its own
/// cache.
constexpr std::size_t kPieceBytes = 64 * 1024;
constexpr std::size_t kBlockBytes = 8 * 1024;

}  // namespace

/// The same piece of each part. `begin` and `size`: bytes in the values, by part.
struct ShmGroup::Round {
  struct RoundPiece {
    std::size_t begin = 0;
    std::size_t size = 0;
  };
  std::span<std::byte> values;
  std::vector<RoundPiece> pieces;
  std::uint64_t turn = 0;
  /// Returns where rank `of`'s slot holds the piece of `part`; the slot leaves out `of`'s own part.
  std::size_t place(int of, int part) const {
    std::size_t place = 0;
    for (int p = 0; p < part; ++p)
      place += p == of ? 0 : pieces[static_cast<std::size_t>(p)].size;
    return place;
  }
  /// Tests the first part, which is the largest.
  bool empty() const { return pieces.front().size == 0; }
};

/// Returns round `number` of values in `parts` parts.
ShmGroup::Round ShmGroup::round_at(std::span<std::byte> values, std::size_t element, int parts,
                                   std::size_t number) {
  const std::size_t area = ShmSegment::kAreaSize / static_cast<std::size_t>(parts);
  const std::size_t most = std::min(kPieceBytes, area) / element;
  Round round;
  round.values = values;
  for (int part = 0; part < parts; ++part) {
    const PartBounds bounds = part_bounds(values.size() / element, parts, part);
    const std::size_t begin = std::min(number * most, bounds.size);
    const std::size_t size = std::min(most, bounds.size - begin);
    round.pieces.push_back({(bounds.begin + begin) * element, size * element});
  }
  return round;
}

void ShmGroup::copy_others_parts(const Round& round) {
  std::byte* to = segment_.slot(rank(), round.turn).data();
  for (std::size_t part = 0; part < round.pieces.size(); ++part) {
    if (static_cast<int>(part) == rank()) continue;
    const Round::RoundPiece& piece = round.pieces[part];
    copy_bytes(to, round.values.data() + piece.begin, piece.size);
    to += piece.size;
  }
}

void ShmGroup::sum_own_part(const Round& round, const VectorSum& sum) {
  const Round::RoundPiece& piece = round.pieces[static_cast<std::size_t>(rank())];
  std::byte* own = round.values.data() + piece.begin;
  // The sum runs in the order of the ranks, with this rank's values at their place.
  const auto values_of = [&](int other) -> const std::byte* {
    return other == rank() ? own : segment_.slot(other, round.turn).data() + round.place(other, rank());
  };
  std::byte* result = segment_.result(rank(), stage_).data();
  // Block by block, so that the copies read fresh sums from the nearest cache.
  for (std::size_t at = 0; at < piece.size; at += kBlockBytes) {
    const std::size_t size = std::min(kBlockBytes, piece.size - at);
    sum.sum(result + at, values_of(0) + at, values_of(1) + at, size);
    for (int other = 2; other < this->size(); ++other)
      sum.add(result + at, values_of(other) + at, size);
    copy_bytes(own + at, result + at, size);
  }
}

void ShmGroup::copy_own_part(const Round& round) {
  const Round::RoundPiece& own = round.pieces[static_cast<std::size_t>(rank())];
  copy_bytes(segment_.result(rank(), stage_).data(), round.values.data() + own.begin, own.size);
}

void ShmGroup::copy_results(const Round& round) {
  for (std::size_t part = 0; part < round.pieces.size(); ++part) {
    if (static_cast<int>(part) == rank()) continue;
    const Round::RoundPiece& piece = round.pieces[part];
    copy_bytes(round.values.data() + piece.begin, segment_.result(static_cast<int>(part), round.turn).data(),
               piece.size);
  }
}

/// Between two waits, the ranks sum one piece of every part and copy the pieces for the next round. So a sum
/// that goes to all ranks takes one wait per round. A rank writes an area again two turns later: by then, all
/// have published once more after they read it.
Result<> ShmGroup::rounds(std::span<std::byte> values, const VectorSum& sum, int parts, bool reduce,
                          bool gather) {
  if (size() == 1) return {};
  const bool owns = rank() < parts;
  Round round = round_at(values, sum.element, parts, 0);
  if (reduce) {
    round.turn = stage_;
    copy_others_parts(round);
    if (auto all = sync(values.size()); !all) return all;
  }
  for (std::size_t number = 1;; ++number) {
    Round next = round_at(values, sum.element, parts, number);
    const std::uint64_t turn = stage_;
    if (reduce && owns) sum_own_part(round, sum);
    if (reduce && !next.empty()) {
      next.turn = turn;
      copy_others_parts(next);
    }
    if (!reduce && owns) copy_own_part(round);
    if (!reduce || gather || !next.empty()) {
      if (auto all = sync(values.size()); !all) return all;
    }
    if (gather) {
      round.turn = turn;
      copy_results(round);
    }
    if (next.empty()) return {};
    round = std::move(next);
  }
}

}  // namespace ddp::train
