#pragma once

#include <cstdlib>

/// Ends a fuzzer, which then reports its input, unless the condition holds.
inline void require(bool holds) {
  if (!holds) std::abort();
}
