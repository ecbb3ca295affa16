#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train {

/// The value that is written into each word of memory and read again. It is the word's address (from 0),
/// which reveals a faulty address line, the complement of the address, or alternating bits.
enum class HealthPattern : int { kAddress, kComplement, kFives, kTens };
inline constexpr int kHealthPatterns = 4;

DDP_HD constexpr std::uint64_t pattern_word(HealthPattern pattern, std::uint64_t index) {
  return pattern == HealthPattern::kAddress      ? index * sizeof(std::uint64_t)
         : pattern == HealthPattern::kComplement ? ~(index * sizeof(std::uint64_t))
         : pattern == HealthPattern::kFives      ? 0x5555555555555555u
                                                 : 0xaaaaaaaaaaaaaaaau;
}

/// Faults of some words, with the same layout on a GPU and on the host. It begins as none().
struct PatternFaults {
  std::uint64_t compared;  ///< words that were compared, over all patterns
  std::uint64_t words;     ///< compared words that were wrong
  std::uint64_t first;     ///< offset in bytes of the first wrong word; all bits set: none
  std::uint64_t bits;      ///< mask of the bits that were ever wrong

  static DDP_HD constexpr PatternFaults none() { return {0, 0, ~std::uint64_t{0}, 0}; }
  /// Compares `word`, which was read at number `index`.
  DDP_HD void compare(std::uint64_t word, HealthPattern pattern, std::uint64_t index) {
    const std::uint64_t wrong = word ^ pattern_word(pattern, index);
    ++compared;
    if (wrong == 0) return;
    ++words;
    if (index * sizeof word < first) first = index * sizeof word;
    bits |= wrong;
  }
  DDP_HD void add(const PatternFaults& other) {
    compared += other.compared;
    words += other.words;
    if (other.first < first) first = other.first;
    bits |= other.bits;
  }
  bool operator==(const PatternFaults&) const = default;
};

/// Merges what a GPU reported of a part of memory with what the host saw in a sample of the same part. Wrong
/// words that the GPU did not report count, too.
PatternFaults with_sample(PatternFaults merged, const PatternFaults& seen);

/// Writes and reads `memory` once for each pattern. `inject`: a bit in the middle is inverted in between.
PatternFaults test_patterns(std::span<std::uint64_t> memory, bool inject = false);

}  // namespace ddp::train
