#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// Puts `text` into the file, so that whoever looks sees the old one or the whole new one: a file beside it
/// is written and renamed. What is no regular file (a terminal, a pipe with a reader) is written to as it is.
/// A link of another user is not followed (base/trusted_path.h). Blocking. Error kSystem, and the old file is
/// still there.
Result<> write_report(const std::string& path, std::string_view text);

/// Writes `text`, the report of a job's end, to each of `paths` in turn. Blocking; `done` counts those that
/// are done with, for other threads. Returns what a person should read, nothing for the most part.
std::vector<std::string> write_reports(std::string_view text, const std::vector<std::string>& paths,
                                       std::atomic<std::size_t>& done);

}  // namespace ddp::launcher
