#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Prints to standard output and flushes. When the output cannot be written any more (full, or its reader has
/// gone), one line on stderr says so, and later output is dropped: the training is worth more than its lines.
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
/// For the end of main: returns `code`, or 116 if `code` is 0 but some output was lost, with the reason on
/// stderr (like ddplaunch's own results, docs/users/exit_codes.md).
int exit_code_after_printing(int code);

/// A file to which a training appends whole lines. A training is worth more than its record. After a failed
/// write (a full disk, a pipe whose reader has gone), one line on stderr says so. A half line is removed, and
/// later lines are dropped.
class LineFile {
 public:
  /// `option` gave the path, and is named in messages.
  Result<> open(const std::string& option, const std::string& path);
  bool is_open() const { return static_cast<bool>(file_); }
  /// Appends `line`, which includes its line end; does nothing if no file is open.
  void append(const std::string& line);

 private:
  std::string name_;  ///< "--metrics-file FILE"
  UniqueFd file_;
};

/// Returns the beginning of every record of --metrics-file and --json: the schema (docs/users/train.md), the
/// kind, the time, this host, the writing rank and the number of ranks.
nlohmann::ordered_json begin_record(std::string_view kind, int rank, int world_size);

/// Returns the record as a line with its line end. Bytes that are not UTF-8 become U+FFFD; nan and infinity
/// become null.
std::string record_line(const nlohmann::ordered_json& record);

/// Rounds a measured value, so that a record has no meaningless digits.
double rounded(double value, int decimals);

}  // namespace ddp::train
