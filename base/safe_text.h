#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

/// One character of text that came from outside: from a worker, another host, a file.
struct Utf8Character {
  char32_t code = 0;       ///< not `valid`: the byte
  std::size_t length = 1;  ///< bytes
  bool valid =
      true;  ///< false: a byte that belongs to no UTF-8 character (overlong forms, surrogates, cut ones)

  /// A terminal acts on it, or shows text that reads otherwise than it is: the control characters of both
  /// blocks (also as single bytes, as an 8-bit terminal takes them), line separators, marks that turn the
  /// direction of writing, and what is invisible: soft hyphens, spaces and joiners without width,
  /// annotations, tags.
  bool unsafe() const;
};

/// The first character of `text`, which is not empty.
Utf8Character first_character(std::string_view text);

/// `text` with '?' in place of each unsafe character; newlines and tabs stay. Other bytes that are no UTF-8
/// stay, too: a terminal shows them as such.
std::string replace_unsafe(std::string_view text);

/// A JSON document with its unsafe characters beyond ASCII as \uXXXX, which means the same to a program.
std::string escape_unsafe_in_json(std::string_view document);

/// Text that came from outside (a path, an option's value), fit for one line of a terminal: unsafe characters
/// (Utf8Character) are spelled out (\n, \t, \x1b, \u202e, \U000e0001). All else stays, so that twice is the
/// same as once; a backslash is not doubled.
std::string one_line(std::string_view text);

}  // namespace ddp
