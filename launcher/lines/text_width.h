#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Columns that a terminal gives to text: East Asian and emoji two, combining marks none, SGR sequences none.
/// Text is UTF-8 whatever the locale says, as terminals take it; an invalid byte counts one.
std::size_t text_width(std::string_view text);

/// Appends as much of `row` as `width` columns hold, in whole characters, for one row of a terminal: colours
/// pass and are ended, unsafe characters become spaces, invalid bytes U+FFFD. Returns the columns used.
std::size_t append_row(std::string_view row, std::size_t width, std::string& out);

/// Appends finished lines as a terminal may get them: control characters other than tab and newline as ^X
/// (those from U+0080 as ^[X), other unsafe characters (Utf8Character) but joiners as '?'; a line with
/// colours ends without them.
void append_visible(std::string_view lines, std::string& out);

}  // namespace ddp::launcher
