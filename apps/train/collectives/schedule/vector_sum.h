#pragma once

#include <cstddef>

namespace ddp::train {

/// Adds to[i] += from[i] over `bytes` bytes of one scalar type. Optimized in every build type.
using AddFunction = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);
/// Sets to[i] = left[i] + right[i].
using SumFunction = void (*)(std::byte* to, const std::byte* left, const std::byte* right, std::size_t bytes);

/// The arithmetic of a scalar type for code that handles bytes. All pointers must be aligned for the type.
struct VectorSum {
  std::size_t element = 0;
  AddFunction add = nullptr;
  SumFunction sum = nullptr;
};

/// T: float or double.
template <class T>
VectorSum vector_sum();

}  // namespace ddp::train
