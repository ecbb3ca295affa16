#pragma once

// Debian 12 ships Catch2 v2, Ubuntu 24.04 ships v3. The tests use only features of both.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>

#include <string>

namespace Catch::Matchers {
/// Version 3's name.
inline auto ContainsSubstring(const std::string& text) {
  return Contains(text);
}
}  // namespace Catch::Matchers
#endif
