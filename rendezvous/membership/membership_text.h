#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddp::rendezvous {

/// "1 node", "3 nodes".
inline std::string counted(int count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

/// "500 ms", "3 s", "2.5 s", "10 min", "1 h".
inline std::string format_duration(std::chrono::nanoseconds time) {
  const std::int64_t ms = (time.count() + 500'000) / 1'000'000;
  if (ms < 1'000) return std::to_string(ms) + " ms";
  if (ms % 3'600'000 == 0) return std::to_string(ms / 3'600'000) + " h";
  if (ms >= 120'000 && ms % 60'000 == 0) return std::to_string(ms / 60'000) + " min";
  const std::int64_t tenths = (ms + 50) / 100;
  const std::string whole = std::to_string(tenths / 10);
  return (tenths % 10 == 0 ? whole : whole + "." + std::to_string(tenths % 10)) + " s";
}

}  // namespace ddp::rendezvous
