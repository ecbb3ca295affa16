#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/lines/escape_reader.h"
#include "launcher/lines/label.h"
#include "launcher/lines/open_rows.h"

namespace ddp::launcher {

/// Makes what the terminal gets of the bytes of one stream of one rank: finished lines (label + line + '\n'),
/// in order and none lost, and the rows that a bar keeps rewriting (docs/output.md). The lines do not depend
/// on how the bytes were cut into chunks. Any bytes pass, NUL included, but:
///   CR LF ends a line as LF does; CR, BS, cursor up and down, and erasing do to the open rows what they do
///   on a terminal (OpenRows); colours pass; other escape sequences are left out. A log line that was written
///   right behind a bar is a line of its own. A line over kMaxLine bytes is split; each part but the last
///   ends with kSplitMark. (Files get the raw bytes; this is for the view.)
/// Ordinary lines go from the chunk to `out` at the speed of memchr. Any thread, one at a time.
class LineAssembler {
 public:
  explicit LineAssembler(std::string label) : label_(std::move(label)) {}
  explicit LineAssembler(Label label) : label_(std::move(label)) {}

  /// Appends the lines that `bytes` finish to `out`.
  void add(std::string_view bytes, std::string& out);
  /// Nothing came for a while: finishes the rows of bars that have ended. For a `long_quiet` time: also those
  /// of a program that hid the cursor.
  void settle(bool long_quiet, std::string& out) { rows_.settle(long_quiet, sink(out)); }
  /// End of the stream: a last line without a newline gets one. The object may be used again afterwards.
  void finish(std::string& out);

  /// Appends the open rows, '\n' between them, no label. True when a bar rewrites them; false for an
  /// unfinished line, which is mostly about to be finished.
  bool live(std::string& rows) const { return rows_.live(rows); }
  std::uint64_t revision() const { return rows_.revision(); }  ///< grows with every change of the open rows
  std::uint64_t line_feeds() const { return rows_.line_feeds(); }
  std::size_t held() const { return rows_.bytes(); }
  Label& label() { return label_; }

 private:
  LineSink sink(std::string& out) const { return {label_.text(), out}; }
  void add_plain(std::string_view bytes, const LineSink& sink);
  void add_marked(std::string_view bytes, const LineSink& sink);
  void add_special(char c, const LineSink& sink);

  Label label_;
  OpenRows rows_;
  EscapeReader escape_;
};

/// The end of one rank's stderr, for the report: at most kMaxBytes, allocated with the first byte.
class StderrTail {
 public:
  static constexpr std::size_t kMaxBytes = 8 * 1024;
  static constexpr std::size_t kMaxLines = 20;

  void add(std::string_view bytes);
  /// The last lines, oldest first, without line ends, bars resolved as LineAssembler does. A line whose start
  /// has been overwritten is left out, or begins with "…" when it is the only one.
  std::vector<std::string> lines() const;

 private:
  std::string ring_;
  std::size_t next_ = 0;  ///< where the next byte goes, once the ring is full
  bool overwritten_ = false;
};

}  // namespace ddp::launcher
