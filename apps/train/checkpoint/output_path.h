#pragma once

#include <string>

#include "base/result.h"

namespace ddp::train {

/// Whether a file can be written at `path`, as an error that begins with the option and the path. What is
/// there stays as it is, what is not there is not left behind; what is no regular file (a pipe, /dev/null) is
/// not touched.
Result<> check_output_path(const std::string& option, const std::string& path);

/// The directory that holds `path`.
std::string directory_of(const std::string& path);
/// Flushes a directory's names to the disk.
Result<> sync_directory(const std::string& path);

}  // namespace ddp::train
