#pragma once

#include <string>

#include "base/result.h"

namespace ddp::train {

/// Returns an error that begins with the option and the path if no file can be written at `path`. An existing
/// file stays unchanged, and a new one is removed again. A path that is no regular file (a pipe, /dev/null)
/// is not touched.
Result<> check_output_path(const std::string& option, const std::string& path);

/// Returns the directory that holds `path`.
std::string directory_of(const std::string& path);
/// Flushes a directory's entries to the disk.
Result<> sync_directory(const std::string& path);

}  // namespace ddp::train
