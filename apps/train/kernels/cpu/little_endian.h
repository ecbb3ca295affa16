#pragma once

#include <cstddef>

namespace ddp::train {

/// Writes an unsigned number at `at`, lowest byte first. Returns the position behind it.
template <class T>
std::byte* put_little_endian(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    *at++ = static_cast<std::byte>(value >> (8 * i) & 0xff);
  return at;
}

template <class T>
const std::byte* take_little_endian(const std::byte* at, T& value) {
  value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(*at++) << (8 * i);
  return at;
}

}  // namespace ddp::train
