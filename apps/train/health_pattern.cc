#include "apps/train/health_pattern.h"

namespace ddp::train {

PatternFaults test_patterns(std::span<std::uint64_t> memory, bool plant) {
  PatternFaults faults;
  for (int i = 0; i < kHealthPatterns; ++i) {
    const auto pattern = static_cast<HealthPattern>(i);
    for (std::size_t word = 0; word < memory.size(); ++word)
      memory[word] = pattern_word(pattern, word);
    asm volatile("" : : "r"(memory.data()) : "memory");  // the compiler knows what was written
    if (plant && pattern == HealthPattern::kFives) memory[memory.size() / 2] ^= 1u << 4;
    asm volatile("" : : "r"(memory.data()) : "memory");
    for (std::size_t word = 0; word < memory.size(); ++word) {
      const std::uint64_t wrong = memory[word] ^ pattern_word(pattern, word);
      if (wrong == 0) continue;
      if (faults.words++ == 0) faults.first = word * sizeof(std::uint64_t);
      faults.bits |= wrong;
    }
  }
  return faults;
}

}  // namespace ddp::train
