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

/// A counter-based generator: a number depends on (seed, stream, counter) only. Every rank can compute any
/// number in any order. The mixing is SplitMix64's finalizer (Steele, Lea, Flood 2014), applied once per
/// argument.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  return mix_bits(mix_bits(mix_bits(seed) ^ stream) ^ counter);
}

/// Uniform in [0, 1), 53 bits.
constexpr double random_unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  return static_cast<double>(random_bits(seed, stream, counter) >> 11) * 0x1p-53;
}

}  // namespace ddp::train
