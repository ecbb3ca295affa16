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

struct ReportFile {
  std::string path;
  mode_t mode = 0666;  ///< of a new file
};
/// Writes `text`, the report of a job's end, to each of `files` in turn. Blocking; `done` counts the finished
/// files, for other threads. Returns messages for the user, usually none.
std::vector<std::string> write_reports(std::string_view text, const std::vector<ReportFile>& files,
                                       std::atomic<std::size_t>& done);

}  // namespace ddp::launcher
