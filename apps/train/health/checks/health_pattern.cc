#include "apps/train/health/checks/health_pattern.h"

#include <algorithm>

namespace ddp::train {

PatternFaults with_sample(PatternFaults merged, const PatternFaults& seen) {
  if (seen.words == 0) return merged;
  merged.words = std::max(merged.words, seen.words);
  merged.first = std::min(merged.first, seen.first);
  merged.bits |= seen.bits;
  return merged;
}

PatternFaults test_patterns(std::span<std::uint64_t> memory, bool inject) {
  PatternFaults faults = PatternFaults::none();
  for (int i = 0; i < kHealthPatterns; ++i) {
    const auto pattern = static_cast<HealthPattern>(i);
    for (std::size_t word = 0; word < memory.size(); ++word)
      memory[word] = pattern_word(pattern, word);
    asm volatile("" : : "r"(memory.data()) : "memory");  // the compiler must forget the written values
    if (inject && pattern == HealthPattern::kFives) memory[memory.size() / 2] ^= 1u << 4;
    asm volatile("" : : "r"(memory.data()) : "memory");
    for (std::size_t word = 0; word < memory.size(); ++word)
      faults.compare(memory[word], pattern, word);
  }
  return faults;
}

}  // namespace ddp::train
