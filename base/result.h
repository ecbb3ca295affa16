#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <boost/system/result.hpp>

namespace ddp {

/// Kind of a failure. Programs decide by it; the text is for people. Each kind has one exit code, so a new
/// kind needs a row in docs/users/exit_codes.md. Messages carry the number: append, and never reorder.
enum class ErrorCode {
  kUsage,          ///< the user's input is wrong; nothing was started
  kUnreachable,    ///< a host could not be resolved, connected to, or authenticated with
  kTimeout,        ///< a deadline passed
  kAgentMissing,   ///< the host has no ddplaunchd at the expected path
  kAgentMismatch,  ///< the host's ddplaunchd has another version, or another program answered
  kRefused,        ///< a node's check before the start failed (working directory, device, …)
  kExec,           ///< a program could not be executed (sys holds the errno)
  kLinkLost,       ///< the control link to a node closed or broke
  kProtocol,       ///< a peer sent what the protocol does not allow
  kCancelled,      ///< stopped on request
  kSystem,         ///< the operating system refused something (sys holds the errno)
  kInternal,       ///< internal error
  kHung,           ///< no worker did anything for --hang-timeout
};

/// A failure: a kind for programs, and text with what, where and why for people. `sys` is the errno, or 0.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
  int sys = 0;
};

/// The only place where errno becomes an Error: "open /x: No such file or directory".
Error system_error(int err, std::string_view what, ErrorCode code = ErrorCode::kSystem);

/// Returns texts and numbers one behind the other; numbers are in decimal.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  const auto add = [&text]<class Part>(const Part& part) {
    if constexpr (std::is_arithmetic_v<Part> && !std::is_same_v<Part, char>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (add(parts), ...);
  return text;
}

/// Returns an error whose text is concat(parts…).
template <class... Parts>
Error error_of(ErrorCode code, const Parts&... parts) {
  return {code, concat(parts...)};
}
template <class... Parts>
Error usage_error(const Parts&... parts) {
  return error_of(ErrorCode::kUsage, parts...);
}

/// Prefixes the text: `within("node gpu02", e)` gives "node gpu02: …".
Error within(std::string_view where, Error error);

/// The value or the Error. Everything below apps/ returns it; exceptions are for broken invariants only.
template <class T = void>
using Result = boost::system::result<T, Error>;

/// Prefixes the text of an error.
template <class T>
Result<T> within(std::string_view where, Result<T> result) {
  if (!result) return within(where, std::move(result).error());
  return result;
}

/// Moves the value out of a result that has one; for DDP_TRY.
template <class T>
T take_value(Result<T>& result) {
  return std::move(*result);
}
inline void take_value(Result<>&) {}

/// boost::system::result calls this when value() is called on an error, which is a broken invariant.
[[noreturn]] inline void throw_exception_from_error(const Error& error, const boost::source_location&) {
  throw std::logic_error("unchecked error: " + error.text);
}

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

/// Returns the error of a Result from the calling function, or gives its value: `const auto size =
/// DDP_TRY(read_size(file));`. Nothing before it in its statement may make a temporary: a return out of the
/// middle of an expression leaves that expression's temporaries behind. A coroutine has no `return`, so it
/// needs the long form.
#define DDP_TRY(...)                                     \
  __extension__({                                        \
    auto ddp_tried = (__VA_ARGS__);                      \
    if (!ddp_tried) return std::move(ddp_tried).error(); \
    ::ddp::take_value(ddp_tried);                        \
  })
