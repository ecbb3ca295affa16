#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// Returns the columns that text takes on a terminal: two for East Asian characters and emoji, none for
/// combining marks and SGR sequences. Text is UTF-8 in any locale, as on terminals; an invalid byte counts as
/// one.
std::size_t text_width(std::string_view text);

/// Appends as much of `row` as fits into `width` columns, in whole characters, for one row of a terminal.
/// Colors pass and are reset at the end, unsafe characters become spaces, invalid bytes U+FFFD. Returns the
/// columns used.
std::size_t append_row(std::string_view row, std::size_t width, std::string& out);

/// Appends finished lines in a form that is safe for a terminal. Control characters other than tab and
/// newline become ^X (from U+0080: ^[X). Other unsafe characters (Utf8Character), except joiners, become '?'.
/// Colors are reset at the end of a line.
void append_visible(std::string_view lines, std::string& out);

/// A row that stays at the bottom of the terminal. `suffix` is shown whole, or omitted if it needs more than
/// half of the width; `text` gets the remaining columns.
struct LiveRow {
  std::string text;
  std::string suffix;
  bool needs_room = false;  ///< omitted where not all rows have room
  bool operator==(const LiveRow&) const = default;
};

/// The content of one terminal (sans-IO: it returns the bytes). Finished lines scroll up; live rows below
/// them are redrawn in place. The cursor stays in the first column of the row below the live rows. Nothing is
/// hidden and no mode is changed, so the terminal is usable after any end of the program, even by SIGKILL.
/// Rows are cut, so that they never wrap.
///
/// The driver must get the terminal's size before each draw, because a resize moves the drawn rows.
class TerminalView {
 public:
  struct Size {
    std::size_t columns = 80;
    std::size_t rows = 24;
    bool operator==(const Size&) const = default;
  };

  /// `reflows`: a terminal that becomes narrower wraps the rows that it shows. Most do; xterm and the Linux
  /// console do not.
  explicit TerminalView(bool reflows) : reflows_(reflows) {}

  /// Returns the bytes that add `lines` (each with its newline) above and set the live rows to `rows`. Empty
  /// when nothing changes.
  std::string draw(std::string_view lines, const std::vector<LiveRow>& rows, Size size);
  /// Forgets the drawn rows, because another program wrote to the terminal and moved them.
  void forget() { widths_.clear(), drawn_.clear(); }
  bool shows_rows() const { return !widths_.empty(); }

 private:
  std::string fitted(std::vector<LiveRow> rows, Size size, std::vector<std::size_t>& widths) const;
  std::size_t height_now(Size size) const;
  std::string back_to_first(Size size, bool erase) const;

  bool reflows_;
  Size size_;                        ///< at the last draw
  std::vector<std::size_t> widths_;  ///< of the rows on the screen
  std::string drawn_;                ///< the bytes of these rows
};

}  // namespace ddp::launcher
