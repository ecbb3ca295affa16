#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

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

}  // namespace ddp::train
