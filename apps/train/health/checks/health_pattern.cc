#include "apps/train/health/checks/health_pattern.h"

#include <algorithm>

namespace ddp::train {

PatternFaults with_sample(PatternFaults told, const PatternFaults& seen) {
  if (seen.words == 0) return told;
  told.words = std::max(told.words, seen.words);
  told.first = std::min(told.first, seen.first);
  told.bits |= seen.bits;
  return told;
}

PatternFaults test_patterns(std::span<std::uint64_t> memory, bool plant) {
  PatternFaults faults = PatternFaults::none();
  for (int i = 0; i < kHealthPatterns; ++i) {
    const auto pattern = static_cast<HealthPattern>(i);
    for (std::size_t word = 0; word < memory.size(); ++word)
      memory[word] = pattern_word(pattern, word);
    asm volatile("" : : "r"(memory.data()) : "memory");  // the compiler knows what was written
    if (plant && pattern == HealthPattern::kFives) memory[memory.size() / 2] ^= 1u << 4;
    asm volatile("" : : "r"(memory.data()) : "memory");
    for (std::size_t word = 0; word < memory.size(); ++word)
      faults.look(memory[word], pattern, word);
  }
  return faults;
}

}  // namespace ddp::train
