#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

/// One character of text from outside: from a worker, another host, or a file.
struct Utf8Character {
  char32_t code = 0;       ///< if not `valid`, the byte
  std::size_t length = 1;  ///< bytes
  bool valid =
      true;  ///< false: a byte outside any UTF-8 character (overlong forms, surrogates, truncated ones)

  /// Returns whether a terminal would act on the character or show misleading text. Unsafe are the control
  /// characters of both blocks, also as single bytes, as 8-bit terminals read them. Unsafe are also line
  /// separators, marks that change the direction of writing, and invisible characters: soft hyphens,
  /// zero-width spaces and joiners, annotations, tags.
  bool unsafe() const;
  /// Returns whether it is invisible or looks like a blank, but is none: an unsafe character except a tab, or
  /// a blank beyond ASCII, which comes with text copied from a page.
  bool invisible() const;
  /// "no-break space (U+00A0)", "invisible character U+200B", "control character (byte 1)".
  std::string name() const;
};

/// Returns the first character of `text`, which must not be empty.
Utf8Character first_character(std::string_view text);

/// Returns "; the text has a no-break space (U+00A0)" if an error's text quotes an invisible character beyond
/// ASCII, else an empty text.
std::string invisible_hint(std::string_view text);

/// Returns `text` with '?' in place of each unsafe character except newlines and tabs. Other bytes that are
/// not UTF-8 stay: a terminal shows them as invalid.
std::string replace_unsafe(std::string_view text);

/// Returns a JSON document with its unsafe characters beyond ASCII as \uXXXX, which programs read as the same
/// text.
std::string escape_unsafe_in_json(std::string_view document);

/// Makes text from outside (a path, an option's value) safe for one line of a terminal. Unsafe characters
/// (Utf8Character) are spelled out (\n, \t, \x1b, \u202e, \U000e0001). Everything else stays and a backslash
/// is not doubled, so that a second call changes nothing.
std::string one_line(std::string_view text);

}  // namespace ddp
