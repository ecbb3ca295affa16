#include "apps/train/data/hash.h"

#include <zlib.h>

#include "base/text.h"

namespace ddp::train {

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t state) {
  return static_cast<std::uint32_t>(
      ::crc32_z(state, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string crc32_text(std::uint32_t crc) {
  return format_text("%08x", static_cast<unsigned>(crc));
}

}  // namespace ddp::train
