#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/job/job_spec.h"
#include "launcher/lines/output_lines.h"

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

/// Returns how many bytes of `row` are a frame of the bar that drew `previous`; 0 when this is uncertain. A
/// program that logs while its bar is open writes right behind the bar ("45%|### | 9/20 [00:01]ERROR…"). Only
/// the similarity of the frames shows where the log line begins. Numbers and runs of fill characters may
/// differ in value and length; everything else must be equal.
std::size_t frame_length(std::string_view previous, std::string_view row);

/// Returns true if `row` is a further frame of the bar that drew `previous`, with the same limits.
bool is_same_bar(std::string_view previous, std::string_view row);

/// Returns a line of LineAssembler without its color sequences.
std::string without_colours(std::string_view row);

/// Returns the row without trailing spaces.
std::string_view trimmed(std::string_view row);

/// Returns the progress of a bar in percent, from its first "45%" or "9/20"; unset if it has none.
std::optional<double> progress_of(std::string_view row);

/// Folds the live rows of one stream of all ranks to the rows that are shown (--bars). Either it shows the
/// rows of the first rank that has some, in the job or per node, with the spread of the others; or it shows
/// the rows of all ranks.
class BarFold {
 public:
  explicit BarFold(Bars bars) : bars_(bars) {}

  /// Sets the open rows of a rank, separated by '\n'; empty: it has none. `label` is put before each row.
  void set(std::uint32_t rank, int node, std::string_view label, std::string_view rows);
  std::vector<LiveRow> rows() const;
  bool empty() const { return ranks_.empty(); }
  /// Returns whether a row has a progress; others are unfinished lines, such as prompts.
  bool has_bar() const;
  void clear() { ranks_.clear(); }

 private:
  struct Entry {
    int node = 0;
    std::string label;
    std::vector<std::string> rows;
    std::vector<std::optional<double>> progress;  ///< by row
  };
  using Members = std::vector<const Entry*>;
  static void append_folded(const Members& members, std::vector<LiveRow>& out);

  Bars bars_;
  std::map<std::uint32_t, Entry> ranks_;  ///< ranks that have rows
};

/// Tracks the open rows of all streams over time (sans-IO). It decides which rows are shown below the lines,
/// and when rows that no bar rewrites become lines. If no rows can be shown below the lines, it writes a
/// bar's row as a line, at most every kSample. The driver
///   1. calls changed() after each change of an entry's lines,
///   2. calls tick() at the time that due() returns,
///   3. shows rows() of a stream when take_change() says that they are new.
class LiveBoard {
 public:
  using Time = std::chrono::nanoseconds;  ///< of a monotonic clock
  static constexpr Time kFrame = std::chrono::milliseconds(66);
  static constexpr Time kQuiet = std::chrono::milliseconds(200);
  static constexpr Time kLongQuiet = std::chrono::seconds(2);
  static constexpr Time kSample = std::chrono::seconds(30);

  /// One stream of one rank. The driver owns it and must call clear() before destroying it.
  struct Entry {
    Entry(Label label, std::uint32_t of_rank, int of_node, int of_stream)
        : lines(std::move(label)), rank(of_rank), node(of_node), stream(of_stream) {}
    LineAssembler lines;
    std::uint32_t rank;
    int node;
    int stream;  ///< 1 or 2

   private:
    friend class LiveBoard;
    std::uint64_t seen_ = 0;  ///< revision of `lines`
    std::uint64_t line_ = 0;  ///< number of the unfinished line, from 1; 0: none yet
    Time line_since_{0};
    Time since_{0};  ///< when a tick saw the latest change
    bool watched_ = false;
    bool touched_ = false;
    bool settled_ = false;
    bool on_board_ = false;
  };

  /// `has_view` is given for stdout and stderr.
  LiveBoard(Bars bars, std::array<bool, 2> has_view)
      : sides_{Side(bars, has_view[0]), Side(bars, has_view[1])} {}

  void changed(Entry& entry) {
    if (entry.seen_ != entry.lines.revision()) note(entry);
  }
  /// Appends the lines that are due, for stdout and stderr.
  void tick(Time now, std::array<std::string, 2>& lines);
  /// Returns when tick() must be called; unset: not before the next change.
  std::optional<Time> due() const;
  bool take_change(int stream) { return std::exchange(side(stream).rows_changed, false); }
  std::vector<LiveRow> rows(int stream) const;
  /// Sets the row below the bars of both streams. It is shown while there is a bar.
  void set_footer(std::string text);
  /// Forgets all entries.
  void clear();

 private:
  struct Side {
    Side(Bars bars, bool view) : fold(bars), has_view(view) {}
    BarFold fold;
    bool has_view;
    bool rows_changed = false;  ///< rows() has changed
    bool unsampled = false;     ///< changed since the last sample
    std::optional<Time> sample_at;
  };
  Side& side(int stream) { return sides_[static_cast<std::size_t>(stream - 1)]; }
  void note(Entry& entry);
  bool take_sample(Entry& entry, Time now, std::string& lines);
  void post(Entry& entry, const std::string& rows);
  void sample(Side& side, Time now, std::string& lines) const;

  std::array<Side, 2> sides_;
  std::string footer_;
  std::vector<Entry*> watched_;
  Time last_tick_{0};
};

}  // namespace ddp::launcher
