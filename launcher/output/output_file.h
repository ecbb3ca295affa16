#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// Bytes that could not be written to a file.
struct FileGap {
  std::string path;          ///< of the part
  std::uint64_t offset = 0;  ///< where in the file they are missing
  std::uint64_t bytes = 0;
};

/// One file of output: appended to, closed and opened again as the owner likes, cut into parts at line ends
/// when a limit is given. What the disk refuses is lost to the file and counted; the next write tries again.
/// Blocking writes; the thread of JobWriter only.
class OutputFile {
 public:
  /// The first part is `path`, then `path`.1, `path`.2 and so on: `part_size` bytes, and the rest of a line.
  /// 0: one part without limit. `keep_parts`: the oldest are deleted so that so many remain; 0: all stay.
  /// `rename`: there are two parts, and the newest is always `path`; a full one becomes `path`.1.
  struct Limits {
    std::uint64_t part_size = 0;
    std::uint32_t keep_parts = 0;
    bool rename = false;
  };
  OutputFile(std::string path, Limits limits) : path_(std::move(path)), limits_(limits) {}

  /// What a write met. `error.sys` is 0 when all is well.
  struct WriteOutcome {
    Error error;
    bool vanished = false;  ///< the file had been deleted; it was made anew and begins with these bytes
  };
  /// Appends all of `bytes`, or counts what was not written. Makes missing directories.
  WriteOutcome write(std::string_view bytes);

  /// Counts bytes that never come as a gap.
  void lose(std::uint64_t bytes);

  bool is_open() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }
  const std::string& path() const { return path_; }
  /// Gaps since the last call; a gap whose end has not come counts as far as it goes.
  std::vector<FileGap> take_gaps() { return std::exchange(gaps_, {}); }

 private:
  Error open();
  Error write_all(std::string_view& bytes);
  Error next_part();
  bool deleted() const;
  std::string part_path(std::uint32_t part) const;

  std::string path_;
  Limits limits_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;  ///< of the part
  std::uint32_t part_ = 0;
  bool line_start_ = true;  ///< the last byte that came was a line end
  bool made_ = false;       ///< the part has been opened once
  std::vector<FileGap> gaps_;
};

}  // namespace ddp::launcher
