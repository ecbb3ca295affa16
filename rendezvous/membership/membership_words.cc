#include "rendezvous/membership/membership_words.h"

#include <cstdint>

namespace ddp::rendezvous {

std::string counted(int count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string duration_words(std::chrono::nanoseconds time) {
  const std::int64_t ms = (time.count() + 500'000) / 1'000'000;
  if (ms < 1'000) return std::to_string(ms) + " ms";
  if (ms % 3'600'000 == 0) return std::to_string(ms / 3'600'000) + " h";
  if (ms >= 120'000 && ms % 60'000 == 0) return std::to_string(ms / 60'000) + " min";
  const std::int64_t tenths = (ms + 50) / 100;
  const std::string whole = std::to_string(tenths / 10);
  return (tenths % 10 == 0 ? whole : whole + "." + std::to_string(tenths % 10)) + " s";
}

}  // namespace ddp::rendezvous
