#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

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
