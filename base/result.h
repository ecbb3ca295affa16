#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <boost/system/result.hpp>

namespace ddp {

/// Kind of a failure. Programs decide by it; the text is for people. Each kind has one exit code, so a new
/// kind needs a row in docs/users/exit_codes.md.
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

/// Prefixes the text: `within("node gpu02", e)` gives "node gpu02: …".
Error within(std::string_view where, Error error);

/// The value or the Error. Everything below apps/ returns it; exceptions are for broken invariants only.
template <class T = void>
using Result = boost::system::result<T, Error>;

/// boost::system::result calls this when value() is called on an error, which is a broken invariant.
[[noreturn]] inline void throw_exception_from_error(const Error& error, const boost::source_location&) {
  throw std::logic_error("unchecked error: " + error.text);
}

}  // namespace ddp
