#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/lines/label.h"
#include "launcher/lines/output_lines.h"

namespace ddp::launcher {

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
