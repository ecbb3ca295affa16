#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ddp::train {

/// zlib's CRC-32, as gzip has it; `state` chains several ranges. Finds damage and mix-ups, not malice.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t state = 0);

/// "1c291ca3".
std::string crc32_text(std::uint32_t crc);

}  // namespace ddp::train
