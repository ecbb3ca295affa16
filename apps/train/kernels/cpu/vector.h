#pragma once

// Only isa_kernels.cc includes this file, once per instruction set. Everything is in an unnamed namespace, so
// that no copy for a newer processor can be linked in place of one for an older.

#include <cstddef>

namespace ddp::train::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTilePixels =
    14;  // times two vectors: 28 of 32 registers, and both widths (28, 14) are whole tiles
constexpr int kTileTaps = 10;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kTilePixels = 6;  // times two vectors: 12 of 16 registers
constexpr int kTileTaps = 5;
#else
constexpr int kVectorBytes = 16;
constexpr int kTilePixels = 6;
constexpr int kTileTaps = 5;
#endif

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

/// V is Vector<T>, or T itself for channels that fill no vector: the same code serves both.
template <class V, class T>
[[gnu::always_inline]] inline V load(const T* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class V, class T>
[[gnu::always_inline]] inline void store(T* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

/// Calls body.template operator()<V>(channel) for all channels: vectors first, then single ones.
template <class T, class Body>
[[gnu::always_inline]] inline void for_channels(int channels, Body body) {
  int channel = 0;
  for (; channel + kLanes<T> <= channels; channel += kLanes<T>)
    body.template operator()<Vector<T>>(channel);
  for (; channel < channels; ++channel)
    body.template operator()<T>(channel);
}

}  // namespace
}  // namespace ddp::train::kernels
