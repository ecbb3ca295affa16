#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// printf to standard output, at once. When it cannot be written any more (full, or its reader has gone),
/// that is said once on stderr, and from then on nothing is written there: training is worth more than its
/// lines.
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
/// At the end of main: `code`, or, when all went well but not all could be printed, 116, with the reason on
/// stderr (as ddplaunch's own results, docs/exit_codes.md).
int exit_code_after_printing(int code);

/// A file at whose end whole lines are put while a training runs, which is worth more than its record: what
/// can no longer be written (a full disk, a pipe whose reader has gone) is said once on stderr, takes no half
/// line, and is written no more.
class LineFile {
 public:
  Result<> open(const std::string& path);
  bool is_open() const { return static_cast<bool>(file_); }
  /// `line` with its end; nothing where no file is open.
  void append(const std::string& line);

 private:
  std::string path_;
  UniqueFd file_;
};

/// How every record of --metrics-file and --json begins: the schema (docs/train.md), what kind it is, the
/// time, this host, the rank that writes and the number of ranks. An open JSON object: "{…" without its end.
std::string record_head(std::string_view kind, int rank, int world_size);

/// Of this machine; empty: it has none.
std::string host_name();

/// Of plain text as a JSON string, with its quotation marks; what is not printable ASCII is "?".
std::string json_string(std::string_view text);

}  // namespace ddp::train
