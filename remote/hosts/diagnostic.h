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

/// One thing that is wrong in what the user wrote, and where.
struct Diagnostic {
  SourceLocation location;
  std::string message;
};

/// Everything that is wrong in one input, in the order of the input: the user fixes a file once, not once a
/// mistake.
struct DiagnosticList {
  std::vector<Diagnostic> list;
};

/// A reader stops collecting after this many: a file that is no hostfile at all is not listed line by line.
inline constexpr std::size_t kMaxDiagnostics = 100;

/// The value, or all mistakes.
template <class T>
using Validated = boost::system::result<T, DiagnosticList>;

/// "hosts:3:7: message"; parts of the place that are 0 or empty are left out ("--host, column 5: message").
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

/// Found by boost::system::result: value() of a failed result is a broken invariant.
[[noreturn]] inline void throw_exception_from_error(const DiagnosticList& diagnostics,
                                                    const boost::source_location&) {
  throw std::logic_error("unchecked mistakes: " + std::to_string(diagnostics.list.size()));
}

/// Number of single-character edits (insert, delete, replace, swap of neighbours) between two words.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that the user most likely meant: one that `word` is the unique beginning of (three letters
/// at least), else the nearest by edit_distance when it is near enough (a third of the word's length, at
/// least 1 edit). Empty: none is near. The first of equally near ones. The result views into `candidates`.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace ddp::remote
