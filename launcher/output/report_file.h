#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// Replaces the file with `text` by a rename, so that readers see the old or the whole new content. Writes
/// directly to a target that is no regular file (a terminal, a pipe with a reader). Does not follow another
/// user's link (base/files.h). Blocking. After an error kSystem the old file is still there.
/// `mode` is that of a new file, without the bits of the umask.
Result<> write_report(const std::string& path, std::string_view text, mode_t mode = 0666);

/// Space for the report of a job's end. Most reports are shorter.
inline constexpr std::size_t kReservedBytes = 64u << 10;
/// Reserves kReservedBytes for the report at `path` in a file beside it, which is no report: a disk that is
/// full at the end of the job has room for how it ended. Without effect where the disk has no room. Blocking.
void reserve_report(const std::string& path);

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
