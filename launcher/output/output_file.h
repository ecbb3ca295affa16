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
  std::uint64_t offset = 0;  ///< where in the file bytes are missing
  std::uint64_t bytes = 0;
};

/// One file of output. The owner may close it at any time; the next write opens it again and appends. A limit
/// cuts it into parts at line ends. Bytes that the disk refuses are lost to the file and counted; the next
/// write tries again. Writes block; only the thread of JobWriter calls this class.
class OutputFile {
 public:
  /// Parts are named `path`, `path`.1, `path`.2 and so on. A part has `part_size` bytes, plus the rest of a
  /// line; 0: one part without limit. `keep_parts` is the number of parts to keep, the oldest are deleted; 0:
  /// all stay. `rename`: there are two parts, and the newest is always `path`; a full one becomes `path`.1.
  struct Limits {
    std::uint64_t part_size = 0;
    std::uint32_t keep_parts = 0;
    bool rename = false;
  };
  OutputFile(std::string path, Limits limits) : path_(std::move(path)), limits_(limits) {}

  /// Result of a write. `error.sys` is 0 on success.
  struct WriteOutcome {
    Error error;
    bool vanished = false;  ///< the file was deleted; a new one begins with these bytes
  };
  /// Appends all of `bytes`, or counts the unwritten ones. Creates missing directories.
  WriteOutcome write(std::string_view bytes);

  /// Counts bytes that will never arrive as a gap.
  void lose(std::uint64_t bytes);

  bool is_open() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }
  const std::string& path() const { return path_; }
  /// The part that the next bytes go into, and its size.
  std::string part() const { return part_path(part_); }
  std::uint64_t size() const { return size_; }
  bool has_gaps() const { return !gaps_.empty(); }
  /// Returns the gaps since the last call. A gap that continues is returned with its size so far.
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
  bool line_start_ = true;  ///< the last received byte was a line end
  bool made_ = false;       ///< the part has been opened once
  std::vector<FileGap> gaps_;
};

}  // namespace ddp::launcher
