#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

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

/// A row that stays at the bottom of the terminal. `suffix` is shown whole, `text` gets the columns that are
/// left.
struct LiveRow {
  std::string text;
  std::string suffix;
  bool operator==(const LiveRow&) const = default;
};

/// What one terminal shows: finished lines, which scroll away upwards, and live rows below them, drawn again
/// and again in place (sans-IO: it returns the bytes). The cursor rests in the first column of the row below
/// the live rows, nothing is hidden and no mode is changed: wherever the program ends, even by SIGKILL, the
/// terminal is as a shell wants it. Rows are cut, so that they never wrap.
///
/// The driver asks the terminal for its size before each draw, for a resize moves what was drawn.
class TerminalView {
 public:
  struct Size {
    std::size_t columns = 80;
    std::size_t rows = 24;
    bool operator==(const Size&) const = default;
  };

  /// `reflows`: a terminal that became narrower wraps the rows that it shows (most do; xterm and the Linux
  /// console do not).
  explicit TerminalView(bool reflows) : reflows_(reflows) {}

  /// The bytes that add `lines` (each with its newline) above and make `rows` the live rows. Empty when
  /// nothing is to be changed.
  std::string draw(std::string_view lines, const std::vector<LiveRow>& rows, Size size);
  /// The live rows are no longer where they were: somebody else wrote to the terminal.
  void forget() { widths_.clear(), drawn_.clear(); }
  bool shows_rows() const { return !widths_.empty(); }

 private:
  std::string fitted(const std::vector<LiveRow>& rows, Size size, std::vector<std::size_t>& widths) const;
  std::size_t height_now(Size size) const;
  std::string back_to_first(Size size, bool erase) const;

  bool reflows_;
  Size size_;                        ///< at the last draw
  std::vector<std::size_t> widths_;  ///< of the rows on the screen
  std::string drawn_;                ///< these rows' bytes
};

}  // namespace ddp::launcher
