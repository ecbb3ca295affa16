#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// Reads one terminal escape sequence at a time, however the input is split (ECMA-48; xterm's ctlseqs). It
/// interprets the sequences that bars use. It recognizes all others, so that they can be removed whole. It
/// allocates at most kMaxBytes; any bytes are valid input.
class EscapeReader {
 public:
  static constexpr std::size_t kMaxBytes = 128;  ///< of a control sequence; a longer one is ignored
  static constexpr int kMaxCount = 9999;

  enum class Effect : std::uint8_t {
    kMore,       ///< the sequence continues
    kBroken,     ///< the byte does not belong to the sequence; treat it as text
    kIgnored,    ///< done; nothing to show in a line
    kColour,     ///< SGR: pass bytes() on
    kUp,         ///< cursor up count() rows, same column
    kDown,       ///< cursor down count() rows, same column
    kUpToStart,  ///< up, to the first column
    kDownToStart,
    kStartOfRow,  ///< cursor to the first column
    kEraseRow,    ///< the whole row
    kEraseToEnd,  ///< from the cursor to the row's end
    kEraseBelow,  ///< from the cursor to the screen's end
    kEraseScreen,
    kHideCursor,
    kShowCursor,
  };

  /// Starts a sequence after its ESC was read.
  void start();
  /// Takes the next byte. After any result but kMore the reader is outside a sequence.
  Effect feed(char c);
  bool inside() const { return state_ != State::kOutside; }
  /// Forgets an unfinished sequence.
  void reset() { state_ = State::kOutside; }

  int count() const { return count_; }               ///< 1..kMaxCount
  std::string_view bytes() const { return bytes_; }  ///< the whole sequence, from its ESC

 private:
  enum class State : std::uint8_t {
    kOutside,
    kEscape,        ///< after ESC
    kControl,       ///< after ESC [
    kCharset,       ///< after ESC and an intermediate byte such as ( or #
    kString,        ///< a title, a link: up to BEL or ESC backslash
    kStringEscape,  ///< an ESC inside a string
  };
  Effect after_escape(char c);
  Effect in_control(char c);
  Effect in_string(char c);
  Effect finish(Effect effect);
  Effect control_done(char final);
  void read_count();

  State state_ = State::kOutside;
  int count_ = 1;
  std::size_t string_bytes_ = 0;
  std::string bytes_;
};

inline constexpr std::size_t kMaxLine = std::size_t{1} << 20;  ///< bytes of one line; a longer one is split
inline constexpr std::string_view kSplitMark = " [ddplaunch: line longer than 1 MiB, continued]";

/// Receives finished lines and appends label, line, newline.
struct LineSink {
  std::string_view label;
  std::string& out;
  bool bar_ends = true;  ///< false: the last frames of bars are left out
  void line(std::string_view text) const {
    out.append(label).append(text);
    out += '\n';
  }
  /// Does the same for a line with its newline, or for many lines without a label.
  void whole(std::string_view text) const { out.append(label).append(text); }
};

/// The rows at the end of one stream that may still change: the unfinished line, and rows that a bar rewrites
/// by CR, cursor up and erasing (tqdm also nested, rich, hand-made ones). A line is finished when nothing can
/// return to it:
///   an ordinary row at its LF, with all rows above it;
///   a rewritten row stays open at its LF, since a bar below may move up again. It is finished when an
///   ordinary line ends below it, or when a bar below is redrawn without moving up. It is also finished when
///   more rows are below it than the cursor ever went up. While the cursor is hidden, every row is treated as
///   rewritten.
/// The text after a CR replaces the row, as on a terminal; but the tail of a longer old row is not kept.
/// Terminal columns are not modeled. Bounded: kMaxRows rows, kMaxLine bytes in total.
class OpenRows {
 public:
  static constexpr std::size_t kMaxRows = 64;

  void text(std::string_view part, const LineSink& sink);  ///< any bytes except LF, CR, BS and ESC
  void line_feed(const LineSink& sink);
  void carriage_return();
  void backspace() { ++back_, ++revision_; }
  void escape(EscapeReader::Effect effect, const EscapeReader& sequence, const LineSink& sink);
  /// Finishes rows to which no bar will return, after a time without output (`long_quiet`: a long time).
  void finish_idle(bool long_quiet, const LineSink& sink);
  /// Ends the stream: every row becomes a line. The object may be used again.
  void finish(const LineSink& sink);

  /// True if no row is open, so that a whole line may bypass this object.
  bool idle() const;
  std::size_t bytes() const;
  /// Appends the rows without trailing spaces, separated by '\n'. Returns true when a bar rewrites them.
  /// Returns false for an unfinished line, which usually is finished soon.
  bool live(std::string& rows) const;
  std::uint64_t revision() const { return revision_; }  ///< increases with every change
  std::uint64_t line_feeds() const {
    return line_feeds_;
  }  ///< unchanged while the unfinished line is the same

 private:
  struct OpenRow {
    std::string text;
    std::string previous;  ///< the frame that `text` replaced
    bool ended = false;    ///< by an LF
    bool stays = false;    ///< stays open at its LF
    bool rewritten = false;
    bool erased = false;   ///< it held text
    bool log = false;      ///< a separate line above a bar's row
    bool made_up = false;  ///< it was finished before a bar returned to it; no row if empty
    bool is_bar() const;
    void keep_as_previous();
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
  std::size_t row_ = 0;    ///< row of the cursor
  std::size_t reach_ = 0;  ///< how far above the lowest row the cursor went
  std::size_t back_ = 0;   ///< backspaces since the last text
  std::string colour_;     ///< SGR since the last text
  std::uint64_t revision_ = 0;
  std::uint64_t line_feeds_ = 0;
  bool at_start_ = true;   ///< the cursor is in the first column
  bool returned_ = false;  ///< by CR
  bool moved_up_ = false;  ///< since the last text
  bool drew_ = false;      ///< text was written after moving up, since the last LF
  bool above_ = false;     ///< text without a CR is a separate line above the row
  bool hidden_ = false;    ///< the cursor is hidden
};

}  // namespace ddp::launcher
