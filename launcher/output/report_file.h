#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/report_json.h"

namespace ddp::launcher {

/// Puts `text` into the file, so that whoever looks sees the old one or the whole new one: a file beside it
/// is written and renamed. What is no regular file (a terminal, a pipe with a reader) is written to as it is.
/// Blocking. Error kSystem, and the old file is still there.
Result<> write_report(const std::string& path, std::string_view text);

/// The report of a job's end, as report.json in its directory (facts.job_dir, unless empty) and as the file of
/// --report (unless empty). Returns what a person should read, nothing for the most part.
std::vector<std::string> write_reports(const JobEnd& end, const ExitReport& exit, const JobFacts& facts,
                                       const std::string& report_path);

}  // namespace ddp::launcher
