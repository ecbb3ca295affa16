#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/lines/escape_reader.h"

namespace ddp::launcher {

inline constexpr std::size_t kMaxLine = std::size_t{1} << 20;  ///< bytes of one line; a longer one is split
inline constexpr std::string_view kSplitMark = " [ddplaunch: line longer than 1 MiB, goes on]";

/// Where finished lines go: label, line, newline.
struct LineSink {
  std::string_view label;
  std::string& out;
  void line(std::string_view text) const {
    out.append(label).append(text);
    out += '\n';
  }
  /// The same for a line with its newline, or without a label for many.
  void whole(std::string_view text) const { out.append(label).append(text); }
};

/// The rows at the end of one stream that may still change: the unfinished line, and what a bar keeps
/// rewriting by CR, cursor up and erasing (tqdm also nested, rich, hand-made ones). A line is finished when
/// nothing can come back to it:
///   an ordinary row at its LF, with all rows above it;
///   a row that was rewritten stays at its LF, for a bar below may move up again: until an ordinary line ends
///   below it, a bar below is redrawn without moving up, or more rows stand below it than the cursor ever
///   went up; while the cursor is hidden every row is such a row.
/// What CR makes of a row: the next text replaces it, as terminals show it (the tail of a longer old row is
/// not kept, though). The columns of a terminal are not modelled. Bounded: kMaxRows rows, kMaxLine bytes in
/// all.
class OpenRows {
 public:
  static constexpr std::size_t kMaxRows = 64;

  void text(std::string_view part, const LineSink& sink);  ///< any bytes but LF, CR, BS and ESC
  void line_feed(const LineSink& sink);
  void carriage_return();
  void backspace() { ++back_, ++revision_; }
  void escape(EscapeReader::Effect effect, const EscapeReader& sequence, const LineSink& sink);
  /// Nothing came for a while (`long_quiet`: for a long while): what no bar will come back to is finished.
  void settle(bool long_quiet, const LineSink& sink);
  /// The stream's end: every row is a line. The object may be used again.
  void finish(const LineSink& sink);

  /// Nothing is open: a whole line may pass by.
  bool idle() const;
  std::size_t bytes() const;
  /// Appends the rows without trailing spaces, '\n' between them. True when something rewrites them; false
  /// for an unfinished line, which is mostly about to be finished.
  bool live(std::string& rows) const;
  std::uint64_t revision() const { return revision_; }  ///< grows with every change
  std::uint64_t line_feeds() const {
    return line_feeds_;
  }  ///< the same: the unfinished line is still the same

 private:
  struct OpenRow {
    std::string text;
    std::string previous;  ///< the frame that text replaced
    bool ended = false;    ///< by LF
    bool stays = false;    ///< at its LF
    bool rewritten = false;
    bool erased = false;   ///< it held something
    bool log = false;      ///< a line of its own above a bar's row
    bool made_up = false;  ///< was finished already when a bar came back to it; empty, it is none
  };
  void begin_text(const LineSink& sink);
  void begin_row(OpenRow& row);
  void up(int count);
  void down(int count, const LineSink& sink);
  void erase_row();
  void erase_below();
  void back_up(OpenRow& row);
  bool split_log(const LineSink& sink);
  void finish_rows(const LineSink& sink);
  void finish_above(std::size_t count, const LineSink& sink);
  void finish_beyond_reach(const LineSink& sink);
  void bound(const LineSink& sink);
  OpenRow& row() { return rows_[row_]; }

  std::vector<OpenRow> rows_{1};
  std::size_t row_ = 0;    ///< the cursor's
  std::size_t reach_ = 0;  ///< how far above the lowest row the cursor went
  std::size_t back_ = 0;   ///< backspaces since the last text
  std::string colour_;     ///< SGR since the last text
  std::uint64_t revision_ = 0;
  std::uint64_t line_feeds_ = 0;
  bool at_start_ = true;   ///< the cursor is in the first column
  bool returned_ = false;  ///< by CR
  bool moved_up_ = false;  ///< since the last text
  bool drew_ = false;      ///< text after moving up, since the last LF
  bool above_ = false;     ///< text that follows without CR is a line of its own, above the row
  bool hidden_ = false;    ///< the cursor
};

}  // namespace ddp::launcher
