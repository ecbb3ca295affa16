#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddp::train {

/// What is written into each word of memory and must be read again: its own address (from 0), so that a wrong
/// line of the address is seen, the complement of that, and the bits in turn.
enum class HealthPattern : int { kAddress, kComplement, kFives, kTens };
inline constexpr int kHealthPatterns = 4;

constexpr std::uint64_t pattern_word(HealthPattern pattern, std::uint64_t index) {
  return pattern == HealthPattern::kAddress      ? index * sizeof(std::uint64_t)
         : pattern == HealthPattern::kComplement ? ~(index * sizeof(std::uint64_t))
         : pattern == HealthPattern::kFives      ? 0x5555555555555555u
                                                 : 0xaaaaaaaaaaaaaaaau;
}

struct PatternFaults {
  std::uint64_t words = 0;  ///< read wrong, over all patterns
  std::uint64_t first = 0;  ///< offset in bytes of the first such word
  std::uint64_t bits = 0;   ///< that were ever wrong
};

/// Writes and reads `memory` once for each pattern. `plant`: a bit in the middle is turned over in between.
PatternFaults test_patterns(std::span<std::uint64_t> memory, bool plant = false);

}  // namespace ddp::train
