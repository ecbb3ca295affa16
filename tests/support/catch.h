#pragma once

#include <string>
#include <type_traits>

namespace ddp::test {
/// Returns the fields of a value that Catch2 cannot print, "{3, gpu01, {?}}", so that a failed comparison of
/// structs shows them.
template <class T>
std::string fields_text(const T& value);
}  // namespace ddp::test

// Debian 12 ships Catch2 v2, Ubuntu 24.04 ships v3. The tests use only features of both.
#define CATCH_CONFIG_FALLBACK_STRINGIFIER ::ddp::test::fields_text
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>

namespace Catch::Matchers {
/// Version 3's name.
inline auto ContainsSubstring(const std::string& text) {
  return Contains(text);
}
}  // namespace Catch::Matchers
#endif

#include <boost/pfr/core.hpp>

template <class T>
std::string ddp::test::fields_text(const T& value) {
  if constexpr (std::is_aggregate_v<T> && !std::is_union_v<T>) {
    std::string text;
    boost::pfr::for_each_field(value, [&text](const auto& field) {
      text += (text.empty() ? "{" : ", ") + Catch::Detail::stringify(field);
    });
    return text + "}";
  } else {
    return "{?}";
  }
}
