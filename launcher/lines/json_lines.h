#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/lines/label.h"
#include "launcher/lines/output_lines.h"

namespace ddp::launcher {

/// Appends `bytes` as a JSON string in quotes. What is not UTF-8 is kept as Python's surrogateescape keeps
/// it: byte 0xHH becomes \udcHH, so that json.loads(...)["line"].encode("utf-8", "surrogateescape") gives
/// the bytes back.
void append_json_string(std::string_view bytes, std::string& out);

/// --jsonl: the lines of all ranks as JSON, one object a line (docs/output.md):
///   {"time":"2026-11-21T07:18:13.250Z","host":"gpu02","rank":13,"local_rank":5,"stream":"stderr","line":"…"}
/// Lines are what a person would see of them: the last state of a progress bar, no label. Any thread, one at
/// a time.
class JsonLines {
 public:
  /// Appends the objects of the lines that `bytes` of stream 1 or 2 of `source` complete; empty bytes: the
  /// stream has ended. `time`: when they were written, RFC 3339.
  void add(const LineSource& source, std::uint8_t stream, std::string_view bytes, std::string_view time,
           std::string& out);

 private:
  struct JsonStream {
    LineAssembler lines{std::string()};
    std::string facts;  ///< `","host":…,"line":`
  };
  std::map<std::pair<int, std::uint8_t>, JsonStream> streams_;
  std::string lines_;  ///< scratch
};

}  // namespace ddp::launcher
