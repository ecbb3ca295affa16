#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/system/result.hpp>

#include "remote/hosts/host.h"

namespace ddp::remote {

/// One error in the user's input, and its place.
struct Diagnostic {
  SourceLocation location;
  std::string message;
};

/// All errors of one input, in the order of the input, so that the user fixes a file in one pass.
struct DiagnosticList {
  std::vector<Diagnostic> list;
};

/// A reader stops after this many errors: a file that is no hostfile at all is not reported line by line.
inline constexpr std::size_t kMaxDiagnostics = 100;

/// The value, or all errors.
template <class T>
using Validated = boost::system::result<T, DiagnosticList>;

/// Formats "hosts:3:7: message". Parts of the place that are 0 or empty are left out ("--host, column 5:
/// message").
inline std::string to_text(const Diagnostic& diagnostic) {
  const SourceLocation& location = diagnostic.location;
  std::string text = location.file;
  if (location.line > 0) {
    text += ':' + std::to_string(location.line);
    if (location.column > 0) text += ':' + std::to_string(location.column);
  } else if (location.column > 0) {
    text += ", column " + std::to_string(location.column);
  }
  return text.empty() ? diagnostic.message : text + ": " + diagnostic.message;
}

/// Called by boost::system::result: value() of a failed result is a broken invariant.
[[noreturn]] inline void throw_exception_from_error(const DiagnosticList& diagnostics,
                                                    const boost::source_location&) {
  throw std::logic_error("internal error: unchecked diagnostics (please report): " +
                         std::to_string(diagnostics.list.size()));
}

}  // namespace ddp::remote
