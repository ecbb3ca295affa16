#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp {

/// Returns the first line of a file without its line end; empty if it cannot be read.
std::string first_line(const std::string& path);

/// Returns at most `limit` bytes from the beginning of a file. If it cannot be read, the text is empty and
/// errno says why. `flags` are further flags of open(). For files that never block.
std::string read_start(const std::string& path, std::size_t limit, int flags = 0);

/// Writes all bytes; errors name `path`.
Result<> write_bytes(int fd, std::string_view bytes, const std::string& path);

}  // namespace ddp
