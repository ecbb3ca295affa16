#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/lines/open_rows.h"

namespace ddp::launcher {

/// Identifies the writer of a line. `stream` is "stdout" or "stderr".
struct LineSource {
  std::string_view host;
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string_view stream;
};

/// Checks --label. Placeholders: {host} {rank} {local_rank} {node_rank} {stream} {time}; "{{" and "}}" are
/// braces. Returns an error (kUsage) with the column for an unknown placeholder, a lone brace or a line
/// break. Accepts everything else.
Result<> check_label_template(std::string_view label);

/// Characters of {time}: "07:18:13.250".
inline constexpr std::size_t kTimeWidth = 12;

/// The text before each line of one stream of one rank. It is built once; a line only copies text().
class Label {
 public:
  Label() = default;  ///< no label
  /// A fixed text before each line.
  explicit Label(std::string text) : text_(std::move(text)) {}
  /// `label` must have passed check_label_template. `colour` is an SGR parameter such as 36; 0: none.
  Label(std::string_view label, const LineSource& source, int colour = 0);
  /// Values of a line that several ranks wrote alike, as text ("0-63"); `hosts` is "*" when they differ.
  struct LabelGroup {
    std::string hosts;
    std::string ranks;
    std::string local_ranks;
    std::string node_ranks;
    std::string_view stream;
  };
  Label(std::string_view label, const LabelGroup& group);

  /// True if stamp() has an effect: the template has {time}.
  bool has_time() const { return !holes_.empty(); }
  /// Sets the time of the following lines, kTimeWidth characters.
  void stamp(std::string_view time);
  std::string_view text() const { return text_; }

 private:
  std::string text_;
  std::vector<std::size_t> holes_;  ///< offsets of the time in text_
};

/// Returns the color of a node's labels, an SGR parameter. Successive nodes differ.
int label_colour(int node_rank);
/// True if labels are colored. `no_color` and `term` are the variables NO_COLOR and TERM; nullptr: unset.
bool colours_wanted(bool is_terminal, const char* no_color, const char* term);

/// Converts the bytes of one stream of one rank for the terminal (docs/users/output.md). It yields finished
/// lines (label + line + '\n'), in order and without loss, and the rows that a bar rewrites. The lines do not
/// depend on how the bytes were split into chunks. All bytes pass, including NUL, except:
///   CR LF ends a line as LF does. CR, BS, cursor up and down, and erasing change the open rows as on a
///   terminal (OpenRows). Colors pass; other escape sequences are removed. A log line written right behind a
///   bar becomes a separate line. A line over kMaxLine bytes is split; each part but the last ends with
///   kSplitMark. (The files get the raw bytes.)
/// Ordinary lines are copied from the chunk to `out` at the speed of memchr. Any thread, one at a time.
class LineAssembler {
 public:
  explicit LineAssembler(std::string label) : label_(std::move(label)) {}
  explicit LineAssembler(Label label) : label_(std::move(label)) {}

  /// Appends the lines that `bytes` complete to `out`.
  void add(std::string_view bytes, std::string& out);
  /// Finishes the rows of ended bars after a time without output. If `long_quiet`, also finishes the rows of
  /// a program that hid the cursor.
  void finish_idle(bool long_quiet, std::string& out) { rows_.finish_idle(long_quiet, sink(out)); }
  /// Ends the stream: a last line without a newline gets one. The object may be used again.
  void finish(std::string& out);

  /// Appends the open rows without label, separated by '\n'. Returns true when a bar rewrites them. Returns
  /// false for an unfinished line, which usually is finished soon.
  bool live(std::string& rows) const { return rows_.live(rows); }
  std::uint64_t revision() const { return rows_.revision(); }  ///< increases with each change of open rows
  std::uint64_t line_feeds() const { return rows_.line_feeds(); }
  std::size_t held() const { return rows_.bytes(); }
  Label& label() { return label_; }
  /// Leaves out the last frames of bars, which otherwise become lines.
  void drop_bar_ends() { bar_ends_ = false; }

 private:
  friend class HeldLines;
  LineSink sink(std::string& out) const { return {label_.text(), out, bar_ends_}; }
  void add_plain(std::string_view bytes, const LineSink& sink);
  void add_marked(std::string_view bytes, const LineSink& sink);
  void add_special(char c, const LineSink& sink);

  Label label_;
  OpenRows rows_;
  EscapeReader escape_;
  bool bar_ends_ = true;
  std::size_t counted_ = 0;  ///< by HeldLines
};

/// Bounds the unfinished lines of all streams of a job together, for a compromised node may have many ranks,
/// each with a line of almost kMaxLine bytes. A long line that exceeds the bound ends early.
class HeldLines {
 public:
  static constexpr std::size_t kMost = 16u << 20;
  static constexpr std::size_t kShort = 4u << 10;  ///< a line of this size is never ended

  void add(LineAssembler& lines, std::string_view bytes, std::string& out);
  void finish(LineAssembler& lines, std::string& out);
  std::size_t bytes() const { return bytes_; }

 private:
  void count(LineAssembler& lines);
  std::size_t bytes_ = 0;
};

/// The end of one rank's stderr for the report: at most kMaxBytes, allocated with the first byte.
class StderrTail {
 public:
  static constexpr std::size_t kMaxBytes = 8 * 1024;
  static constexpr std::size_t kMaxLines = 20;

  void add(std::string_view bytes);
  /// Returns the last lines, oldest first, without line ends; bars are resolved as in LineAssembler. A line
  /// whose start was overwritten is omitted, or begins with "…" when it is the only one.
  std::vector<std::string> lines() const;

 private:
  std::string ring_;
  std::size_t next_ = 0;  ///< offset of the next byte once the ring is full
  bool overwritten_ = false;
};

/// Appends `bytes` as a JSON string in quotes. Invalid UTF-8 is kept as in Python's surrogateescape: byte
/// 0xHH becomes \udcHH, so that json.loads(...)["line"].encode("utf-8", "surrogateescape") returns the bytes.
void append_json_string(std::string_view bytes, std::string& out);

/// Implements --jsonl: the lines of all ranks as JSON, one object per line (docs/users/output.md):
///   {"time":"2026-11-21T07:18:13.250Z","host":"gpu02","rank":13,"local_rank":5,"stream":"stderr","line":"…"}
/// A line is what a terminal would show: the last state of a progress bar, without a label. Any thread, one
/// at a time.
class JsonLines {
 public:
  /// Appends the objects of the lines that `bytes` complete, for stream 1 or 2 of `source`; empty bytes: the
  /// stream has ended. `time` is when they were written, as RFC 3339.
  void add(const LineSource& source, std::uint8_t stream, std::string_view bytes, std::string_view time,
           std::string& out);

 private:
  struct JsonStream {
    LineAssembler lines{std::string()};
    std::string facts;  ///< `","host":…,"line":`
  };
  std::map<std::pair<int, std::uint8_t>, JsonStream> streams_;
  HeldLines held_;     ///< lines of streams_
  std::string lines_;  ///< scratch buffer
};

}  // namespace ddp::launcher
