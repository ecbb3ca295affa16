#pragma once

#include <cstdint>
#include <cstring>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// The upper half of a float: its range, with 8 bits of precision. To keep numbers in; none is computed with.
/// By integers alone, so that a GPU and the host have the same bits, whatever the GPU's age (CUDA's own
/// conversion makes one nan of all).
struct Bf16 {
  std::uint16_t bits;

  Bf16() = default;
  /// To the nearest, of two equally near ones to the even one; beyond the largest to infinity; a nan stays a
  /// nan of the same sign.
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
      // Cut off, a nan whose upper half is that of infinity would be infinite.
      return static_cast<std::uint16_t>((upper & 0x7fU) == 0 ? upper | 0x40U : upper);
    }
    return static_cast<std::uint16_t>((whole + 0x7fffU + (upper & 1U)) >> 16);
  }
};

}  // namespace ddp::train::kernels::device
