#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/result.h"

namespace ddp {

/// Returns the first line of a file without its line end; empty if it cannot be read.
std::string first_line(const std::string& path);

/// Returns at most `limit` bytes from the beginning of a file. If it cannot be read, the text is empty and
/// errno says why. `flags` are further flags of open(). For files that never block.
std::string read_start(const std::string& path, std::size_t limit, int flags = 0);

/// Writes all bytes; errors name `path`.
Result<> write_bytes(int fd, std::string_view bytes, const std::string& path);

/// Returns the entries of a directory, unsorted, without "." and "..". If reading fails (a directory of /proc
/// whose process has ended, a disk with errors), returns the entries read so far and sets `failed`. Does not
/// throw.
inline std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory,
                                                         std::error_code& failed) {
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed))
    entries.push_back(at->path());
  return entries;
}

inline std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory) {
  std::error_code ignored;
  return list_directory(directory, ignored);
}

}  // namespace ddp
