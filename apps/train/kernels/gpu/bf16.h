#pragma once

#include <cstdint>
#include <cstring>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// The upper half of a float: its range, with 8 bits of precision. It only stores numbers; no kernel computes
/// with it. Conversions use integers alone, so that every GPU and the host get the same bits. (CUDA's own
/// conversion maps all nans to one.)
struct Bf16 {
  std::uint16_t bits;

  Bf16() = default;
  /// Rounds to the nearest, ties to even. A value beyond the largest becomes infinity; a nan stays a nan of
  /// the same sign.
  explicit DDP_HD Bf16(float value) : bits(rounded(value)) {}

  explicit DDP_HD operator float() const {
    const std::uint32_t whole = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &whole, sizeof value);
    return value;
  }

 private:
  static DDP_HD std::uint16_t rounded(float value) {
    std::uint32_t whole;
    std::memcpy(&whole, &value, sizeof whole);
    const std::uint32_t upper = whole >> 16;
    if ((whole & 0x7fffffffU) > 0x7f800000U) {
      // Truncation would turn a nan whose upper half is that of infinity into infinity.
      return static_cast<std::uint16_t>((upper & 0x7fU) == 0 ? upper | 0x40U : upper);
    }
    return static_cast<std::uint16_t>((whole + 0x7fffU + (upper & 1U)) >> 16);
  }
};

}  // namespace ddp::train::kernels::device
