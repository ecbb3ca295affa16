#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/label.h"

namespace ddp::launcher {

inline constexpr std::size_t kMaxLine = std::size_t{1} << 20;  ///< bytes of one line; a longer one is split
inline constexpr std::string_view kSplitMark = " [ddplaunch: line longer than 1 MiB, goes on]";

/// Puts the bytes of one stream of one rank together to lines for the terminal: label + line + '\n'. The
/// output does not depend on how the bytes were cut into chunks. Any bytes pass, NUL included, but:
///   CR LF ends a line as LF does; CR before anything else throws away what the line held, as a terminal
///   would show it, so that a progress bar leaves its last state only. (Files get the raw bytes; this is for
///   the view.) A line over kMaxLine bytes is split; each part but the last ends with kSplitMark.
/// Holds at most one unfinished line. Any thread, one at a time; no allocation per line.
class LineAssembler {
 public:
  explicit LineAssembler(std::string label) : label_(std::move(label)) {}

  /// Appends the lines that `bytes` completes to `out`.
  void add(std::string_view bytes, std::string& out);
  /// End of the stream: a last line without a newline gets one. The object may be used again afterwards.
  void finish(std::string& out);

  std::size_t held() const { return held_.size(); }  ///< bytes of the unfinished line

 private:
  void add_text(std::string_view text, std::string& out);
  void end_line(std::string& out);
  void emit(std::string_view line, std::string& out);

  std::string label_;
  std::string held_;
  bool pending_cr_ = false;  ///< a CR came last: the next byte decides what it meant
};

/// The end of one rank's stderr, for the report: at most kMaxBytes, allocated with the first byte.
class StderrTail {
 public:
  static constexpr std::size_t kMaxBytes = 8 * 1024;
  static constexpr std::size_t kMaxLines = 20;

  void add(std::string_view bytes);
  /// The last lines, oldest first, without line ends, carriage returns resolved as LineAssembler does. A line
  /// whose start has been overwritten is left out, or begins with "…" when it is the only one.
  std::vector<std::string> lines() const;

 private:
  std::string ring_;
  std::size_t next_ = 0;  ///< where the next byte goes, once the ring is full
  bool overwritten_ = false;
};

}  // namespace ddp::launcher
