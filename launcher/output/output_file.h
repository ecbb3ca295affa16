#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
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
  /// `whole`: of a write that fails nothing stays in the part, since half a record would make the rest of the
  /// file unreadable.
  struct Limits {
    std::uint64_t part_size = 0;
    std::uint32_t keep_parts = 0;
    bool rename = false;
    bool whole = false;
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

/// Replaces the file with `text` by a rename, so that readers see the old or the whole new content. Writes
/// directly to a target that is no regular file (a terminal, a pipe with a reader). Does not follow another
/// user's link (base/files.h). Blocking. After an error kSystem the old file is still there.
/// `mode` is that of a new file, without the bits of the umask.
Result<> write_report(const std::string& path, std::string_view text, mode_t mode = 0666);

/// Space for the report of a job's end. Most reports are shorter.
inline constexpr std::size_t kReservedBytes = 64u << 10;
/// Reserves kReservedBytes for the report at `path` in a file beside it, which is no report: a disk that is
/// full at the end of the job has room for how it ended. Error kSystem: it
/// has none now. Blocking.
Result<> reserve_report(const std::string& path);

struct ReportFile {
  std::string path;
  mode_t mode = 0666;     ///< of a new file
  bool reserved = false;  ///< by reserve_report
};
/// Writes `text`, the report of a job's end, to each of `files` in turn. `brief` takes its place in a
/// reserved file if the disk has no room for more. Blocking; `done` counts the finished files, for other
/// threads. Returns messages for the user, usually none.
std::vector<std::string> write_reports(std::string_view text, std::string_view brief,
                                       const std::vector<ReportFile>& files, std::atomic<std::size_t>& done);

}  // namespace ddp::launcher
