#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace ddp {

/// A value that DDP_REQUIRE prints: a number, a bool, an enumerator's number, or a text.
struct RequiredValue {
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> RequiredValue(
      T number)  // NOLINT(google-explicit-constructor): only as an argument of DDP_REQUIRE
      : text(std::to_string(static_cast<long long>(number))) {}
  RequiredValue(std::string_view words) : text(words) {}    // NOLINT(google-explicit-constructor)
  RequiredValue(const char* words) : text(words) {}         // NOLINT(google-explicit-constructor)
  RequiredValue(const std::string& words) : text(words) {}  // NOLINT(google-explicit-constructor)
  std::string text;
};

/// Writes "internal error: FILE:LINE: RULE (values: …); please report" to stderr and aborts the process. The
/// keeper of an agent then ends the workers, and the agents of a master end theirs when the link closes.
[[noreturn]] void report_broken_rule(const char* file, int line, const char* rule,
                                     std::initializer_list<RequiredValue> values);

}  // namespace ddp

/// Ends the process if `rule` does not hold, in release builds too. Use it for what only a mistake of
/// ddplaunch can break: preconditions, invariants, and both ends of a message. Input of users, nodes and the
/// network gets an Error instead. The values after the rule are printed and are evaluated only if it is
/// broken.
#define DDP_REQUIRE(rule, ...)                     \
  (__builtin_expect(static_cast<bool>(rule), true) \
       ? static_cast<void>(0)                      \
       : ::ddp::report_broken_rule(__FILE__, __LINE__, #rule, {__VA_ARGS__}))
