#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train {

/// What is written into each word of memory and must be read again: its own address (from 0), so that a wrong
/// line of the address is seen, the complement of that, and the bits in turn.
enum class HealthPattern : int { kAddress, kComplement, kFives, kTens };
inline constexpr int kHealthPatterns = 4;

DDP_HD constexpr std::uint64_t pattern_word(HealthPattern pattern, std::uint64_t index) {
  return pattern == HealthPattern::kAddress      ? index * sizeof(std::uint64_t)
         : pattern == HealthPattern::kComplement ? ~(index * sizeof(std::uint64_t))
         : pattern == HealthPattern::kFives      ? 0x5555555555555555u
                                                 : 0xaaaaaaaaaaaaaaaau;
}

/// What was wrong with some words; the same on a GPU and on the host. Begins as none().
struct PatternFaults {
  std::uint64_t compared;  ///< words that were compared, over all patterns
  std::uint64_t words;     ///< of these read wrong
  std::uint64_t first;     ///< offset in bytes of the first wrong one; all bits when there is none
  std::uint64_t bits;      ///< that were ever wrong

  static DDP_HD constexpr PatternFaults none() { return {0, 0, ~std::uint64_t{0}, 0}; }
  /// Word number `index`, as it was read.
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

/// What holds of a part of memory of which a GPU has told and that the host has then seen itself: wrong words
/// of which the GPU told nothing count too.
PatternFaults with_sample(PatternFaults merged, const PatternFaults& seen);

/// Writes and reads `memory` once for each pattern. `inject`: a bit in the middle is inverted in between.
PatternFaults test_patterns(std::span<std::uint64_t> memory, bool inject = false);

}  // namespace ddp::train
