#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ddp::train {

/// zlib's CRC-32, as in gzip; `state` chains several ranges. It finds damage and mix-ups, not malice.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t state = 0);

/// Returns eight hexadecimal digits: "1c291ca3".
std::string crc32_text(std::uint32_t crc);

inline constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325u;

/// FNV-1a, 64 bits; `state` chains several ranges. It finds unequal bits, not malice.
constexpr std::uint64_t fnv_hash(std::span<const std::byte> bytes, std::uint64_t state = kFnvStart) {
  for (const std::byte b : bytes)
    state = (state ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
  return state;
}

}  // namespace ddp::train
